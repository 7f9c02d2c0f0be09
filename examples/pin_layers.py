"""Place a network freely, then with its first layers on one core, and compare the predictions."""

import heteroplace
from heteroplace.demo.networks import small_cnn

mod, params, _ = small_cnn()
cluster = heteroplace.local_cluster(has_gpus=False)
core = cluster.devices[0].name
for pins in ({}, {"nn.conv2d*": core}):
    solution = heteroplace.place(mod, cluster, params=params, costs="isolated", pin=pins)
    convolutions = {name: solution.placement[name] for name in ("conv2d.1", "conv2d.2")}
    print(f"{solution.predicted_ns / 1e3:.0f} us with {pins or 'no pins'}: {convolutions}")
