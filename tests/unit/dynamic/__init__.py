"""Profiles of route decisions, and what is chosen by them."""
