"""Large neighbourhood search: segments of a long plan are scheduled again by an exact model."""
