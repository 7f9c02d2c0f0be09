"""Plans of one network against the peers: `bench run`."""
