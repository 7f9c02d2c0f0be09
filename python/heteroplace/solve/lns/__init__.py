"""Large neighbourhood search: parts of a long plan are scheduled again by an exact model."""
