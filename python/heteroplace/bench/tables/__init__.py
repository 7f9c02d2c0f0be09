"""EXACT.md and PLACE.md, made whole: `bench tables`."""
