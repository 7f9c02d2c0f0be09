"""The tables of the papers, beside their numbers: `benchmarks exact`."""
