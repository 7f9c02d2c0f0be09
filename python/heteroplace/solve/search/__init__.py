"""The search of the core over placement and order."""
