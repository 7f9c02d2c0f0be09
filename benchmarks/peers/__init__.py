"""What we are compared with, and how it is timed."""
