"""Pipelines of scikit-learn -> how many are equal, refused, wrong, crash, or too slow."""
