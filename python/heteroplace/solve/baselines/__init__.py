"""Published methods to compare with, which `auto` never runs."""
