"""TaskGraph -> modules between narrow cuts."""

MAX_MODULE_TASKS = 40
"""Larger modules are cut further: CP-SAT proves little about them in seconds."""
