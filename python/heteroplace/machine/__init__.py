"""This computer, probed: its processors, cores, memories and GPUs -> a cluster."""
