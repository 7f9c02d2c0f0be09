"""Placement by every solver, side by side: `bench place`."""
