"""EXACT.md and PLACE.md, made whole: `benchmarks tables`."""
