"""What was promised for plans, against runs of them: `benchmarks prediction`."""
