"""Whatever runs kernels to learn a time."""
