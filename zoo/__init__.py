"""Networks and task graphs that benchmarks, tests and tutorials share."""
