"""DiviML's mixed-integer programme of several items in batches (section III), solved by HiGHS."""
