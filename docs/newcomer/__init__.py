"""README and tutorials, typed by somebody who has nothing: commands, an empty place, outputs."""
