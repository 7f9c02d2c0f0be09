"""Compile a network for the cores of this machine into one file, load it and run it."""

import numpy as np
import tvm

import heteroplace
from heteroplace.demo.networks import small_cnn

mod, params, shapes = small_cnn()
cluster = heteroplace.local_cluster(has_gpus=False)
with tvm.transform.PassContext(opt_level=3):
    executable = heteroplace.build(mod, cluster, params=params, costs="isolated")
executable.export_library("small_cnn.so")
executor = heteroplace.load("small_cnn.so")
inputs = {name: np.ones(shape, "float32") for name, shape in shapes.items()}
print([output.shape for output in executor.run(**inputs)])
