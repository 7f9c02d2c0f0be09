"""Plans for throughput and for several items in one run (DiviML)."""
