"""Placements in the words of other programs, by the seam `export_formats` of the registry."""
