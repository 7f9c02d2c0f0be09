"""ONNX's own test suite -> how many cases are equal, refused, wrong, or crash."""
