"""The only importer of the C++ core in this part."""
