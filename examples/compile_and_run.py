"""Compile a network for the cores of this machine into one file, load it and run it."""

import numpy as np

import heteroplace
from heteroplace.demo.networks import small_cnn

mod, params, shapes = small_cnn()
cluster = heteroplace.local_cluster(has_gpus=False)
executable = heteroplace.compile(mod, cluster, params=params, costs="isolated")  # or "model.onnx"
executable.export_library("small_cnn.so")
inputs = {name: np.ones(shape, "float32") for name, shape in shapes.items()}
with heteroplace.load("small_cnn.so") as executor:
    print([output.shape for output in executor.run(**inputs)])
