"""Caches of keys and values with a fixed capacity: rows that are written, and attention over them."""
