"""`make demo`: the first minute of a newcomer, on this machine."""
