"""ONNX's own test suite -> how many cases are equal, refused, wrong, crash, or too slow."""
