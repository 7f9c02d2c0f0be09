"""Caches of keys and values with a fixed capacity: written rows, and attention over them."""
