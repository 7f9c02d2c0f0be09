"""TaskGraph -> modules between narrow cuts."""
