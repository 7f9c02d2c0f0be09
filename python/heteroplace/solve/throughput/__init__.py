"""Least time per item."""
