"""Pipelines of scikit-learn -> how many are equal to onnxruntime, refused, wrong, or crash."""
