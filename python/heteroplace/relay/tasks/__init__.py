"""Relay module <-> tasks: optimise, cut along TVM's fusion, count, give other batch sizes."""
