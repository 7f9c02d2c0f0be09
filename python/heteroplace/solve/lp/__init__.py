"""Linear and mixed-integer programmes: built, and solved by HiGHS."""
