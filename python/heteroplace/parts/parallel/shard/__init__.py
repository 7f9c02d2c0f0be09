"""A Relay module -> the same for several shards that share its weights (tensor parallelism)."""
