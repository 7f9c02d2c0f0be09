"""Which numbers the values of a Relay function may hold, and which its inputs should."""
