"""Explicit schedules of Relay modules: data, tensor and pipeline parallelism, searched and run."""
