"""A compiled network and the model that it came from -> how far their outputs are apart."""
