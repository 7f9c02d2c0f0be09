"""Networks that the benchmarks measure."""
