"""The tables of the papers, beside their numbers: `bench exact`."""
