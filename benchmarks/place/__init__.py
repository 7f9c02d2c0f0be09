"""Placement by every solver, side by side: `benchmarks place`."""
