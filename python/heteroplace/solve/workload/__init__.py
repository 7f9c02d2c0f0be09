"""Several entries of one model, which share weights and state, are placed at once."""
