"""Kernels that TVM's tuners find: what is left to gain, a search, and what was gained."""
