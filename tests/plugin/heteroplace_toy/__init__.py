"""A package of someone else that plugs into heteroplace: docs/guide/plugins.md shows its files."""
