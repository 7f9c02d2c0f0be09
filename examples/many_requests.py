"""Several calls at work at a time, outputs in the order of the inputs."""

import numpy as np

import heteroplace
from heteroplace.demo.networks import small_cnn

mod, params, shapes = small_cnn()
cluster = heteroplace.local_cluster(has_gpus=False)
executable = heteroplace.compile(mod, cluster, params=params, costs="isolated")
executor = heteroplace.Executor(executable, max_in_flight=2)
inputs = ({name: np.full(shape, n, "float32") for name, shape in shapes.items()} for n in range(8))
for number, (output, *_) in enumerate(executor.run_many(inputs)):
    print(number, output.ravel()[:3])
