"""Plans of one network against the peers: `benchmarks run`."""
