"""Linear and mixed-integer programs: built, and solved by HiGHS."""
