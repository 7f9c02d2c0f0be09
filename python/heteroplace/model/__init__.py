"""The values that flow through the package. Pure standard library: no numpy, no TVM."""
