"""What the package says about each op: one record per op, in files by family."""
