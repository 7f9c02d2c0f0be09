"""Mutated files of every format, read in child processes: typed error or right result."""
