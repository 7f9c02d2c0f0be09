"""Plans for several items, run in batches (DiviML)."""
