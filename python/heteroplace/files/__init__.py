"""Values of `heteroplace.model` <-> JSON files, each described once."""
