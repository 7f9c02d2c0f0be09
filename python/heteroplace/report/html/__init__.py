"""Solutions and measurements as one self-contained HTML page."""
