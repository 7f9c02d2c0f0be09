"""Two small networks of our own: for README, examples, tests and first steps."""
