"""
Why is it there, and put it elsewhere
=====================================

Every task says why it is where it is. Here a plan is read, then parts of the network are put on a
device by a pin, by keeping layers together, and by editing the map of layers, and the predictions
are compared. It takes a minute and needs no GPU.
"""

# %%
# A network with names
# --------------------
# Pins name tasks, ops or layers of the model, by patterns. This one has two towers, which do not
# need each other; its layers are ``left/conv0``, ``left/conv1`` and so on.

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import heteroplace

random = np.random.default_rng(0)
nodes, weights = [], []
for tower in ("left", "right"):
    value = "image"
    for layer in range(4):
        name = f"{tower}/conv{layer}"
        kernel = (random.standard_normal((32, 32, 3, 3)) / 17).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{name}.weight"))
        inputs = [value, f"{name}.weight"]
        nodes.append(helper.make_node("Conv", inputs, [f"{name}.out"], name, pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"{name}.out"], [name], f"{tower}/relu{layer}"))
        value = name
nodes.append(helper.make_node("Add", ["left/conv3", "right/conv3"], ["sum"], "sum"))
tensors = [
    helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32, 28, 28])
    for name in ("image", "sum")
]
graph = helper.make_graph(nodes, "towers", tensors[:1], tensors[1:], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, "towers.onnx")
cluster = heteroplace.local_cluster(has_gpus=False)

# %%
# Why
# ---
# ``explain`` takes a task, a layer, an op or a pattern. It gives the times on all devices, what
# moving the task would cost, and what waits for it.


def place(**options):
    """Place the network with some options. Measuring kernels one by one is quicker, less exact."""
    return heteroplace.place("towers.onnx", cluster, costs="isolated", **options)


solution = place()
print(solution)
print(*solution.explain("left/conv0"), sep="\n")

# %%
# The plan as a picture:

solution.plot().savefig("pinning.png", dpi=110)

# %%
# Put it elsewhere
# ----------------
# Commands have the same options: ``--pin 'left/*=cpu.0'``, ``--exclude cpu.all`` and
# ``--no-split 'nn.conv2d*'``. Measurements are kept, so nothing is measured again.

core = cluster.devices[0].name
choices = {
    "free": {},
    f"the left tower on {core}": {"pin": {"left/*": core}},
    f"both towers on {core}": {"pin": {"left/*": core, "right/*": core}},
    "all convolutions on one device": {"no_split": ["nn.conv2d*"]},
    "without the first core": {"exclude": [core]},
}
for name, options in choices.items():
    other = place(**options)
    times = f"{other.predicted_ns / 1e3:.0f} us, at least {other.bound_ns / 1e3:.0f} us"
    print(f"{name}: {times}, on {'+'.join(other.devices_used)}")

# %%
# Edit the map
# ------------
# ``layers()`` is a map from each layer to its device. Change it, and give it back. Here everything
# goes to the last device of the cluster.

layers = dict.fromkeys(solution.layers(), cluster.devices[-1].name)
moved = place(layers=layers)
print("on", "+".join(moved.devices_used))

# %%
# It runs like any other, and the numbers are the same wherever a layer runs.

image = random.standard_normal((1, 32, 28, 28)).astype("float32")
outputs = []
for options in ({}, {"layers": layers}):
    executable = heteroplace.compile("towers.onnx", cluster, costs="isolated", **options)
    with heteroplace.Executor(executable) as executor:
        outputs += executor.run(image=image)
assert np.allclose(*outputs, rtol=1e-4, atol=1e-5)
print("equal to a rounding error")
