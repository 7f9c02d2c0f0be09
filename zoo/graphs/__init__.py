"""Task graphs, clusters and costs for benchmarks of solvers. Works without TVM."""
