"""
Place a first network
=====================

A network with two branches is placed over the cores of this machine, compiled to one file, run,
and compared with what TVM alone computes. It takes half a minute.
"""

# %%
# The machine
# -----------
# A cluster lists the devices that may run something, and the links between their memories. Here
# it is made from the CPU of this machine: each core is a device, and all cores together are one
# more. ``heteroplace.local_cluster()`` has its GPUs too, and ``heteroplace probe -o cluster.json``
# writes all of it to a file with measured links, which ``heteroplace.load_cluster`` reads.

import tempfile
from pathlib import Path

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relay
from tvm.contrib import graph_executor

import heteroplace
from heteroplace.machine.probe import local_cpu_cluster
from heteroplace.report.tables import placement_table
from heteroplace.tvm_bridge import llvm_cpu_target

cluster = local_cpu_cluster(llvm_cpu_target())
for device in cluster.devices:
    print(f"{device.name}: cores {device.cores}, target {device.target!r}")

# %%
# The network
# -----------
# Any ONNX file will do; this one has a stem and four branches that do not need each other.

BRANCHES = ("a", "b", "c", "d")
random = np.random.default_rng(0)
nodes, weights = [], []


def convolution(source, name, channels_in, channels_out, kernel):
    """Add a convolution with random weights and a relu; the result is called `name`."""
    shape = (channels_out, channels_in, kernel, kernel)
    values = random.standard_normal(shape) / np.sqrt(channels_in * kernel * kernel)
    weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}.weight"))
    conv = helper.make_node(
        "Conv", [source, f"{name}.weight"], [f"{name}.conv"], name=name, pads=[kernel // 2] * 4
    )
    nodes.extend([conv, helper.make_node("Relu", [f"{name}.conv"], [name])])


convolution("image", "stem", 3, 32, 3)
for branch in BRANCHES:
    convolution("stem", f"{branch}1", 32, 32, 3)
    convolution(f"{branch}1", f"{branch}2", 32, 32, 3)
nodes += [
    helper.make_node("Concat", [f"{branch}2" for branch in BRANCHES], ["all"], axis=1),
    helper.make_node("GlobalAveragePool", ["all"], ["pooled"]),
    helper.make_node("Flatten", ["pooled"], ["features"]),
]
image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 28, 28])
features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 128])
graph = helper.make_graph(nodes, "branches", [image], [features], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

folder = Path(tempfile.mkdtemp())
onnx.save(model, folder / "branches.onnx")

# %%
# ONNX to Relay. The report says what was changed on the way; the size that the file leaves free
# has to be given.

imported = heteroplace.frontend.from_onnx(
    folder / "branches.onnx", input_shapes={"image": (1, 3, 28, 28)}
)
print("\n".join(imported.report))
mod, params = imported

# %%
# The placement
# -------------
# ``HeteroPlace`` is a Relay pass like any other. It measures every task on every device, decides
# where each runs, and writes that into the module as ``on_device`` and ``device_copy``.

with tvm.transform.PassContext(opt_level=3):
    sequence = tvm.transform.Sequential(
        [relay.transform.HeteroPlace(cluster, params=params, time_limit=5.0)]
    )
    placed = sequence(mod)
print(
    "\n".join(line[:150] for line in placed["main"].astext(show_meta_data=False).split("\n")[:12])
)

# %%
# Compile, and ask why
# --------------------
# ``build`` makes the kernels of all devices and the program that connects them.

executable = heteroplace.build(placed)
print(executable.summary())

# %%
# One file, and a run
# -------------------
# The file holds kernels, weights, program and plan. ``tvmc run branches.so`` would run it, too.

executable.export_library(folder / "branches.so")
executor = heteroplace.load(folder / "branches.so")
data = random.standard_normal((1, 3, 28, 28)).astype(np.float32)
(result,) = executor.run(image=data)

# %%
# The same network by TVM alone, on one target, gives the same numbers.

with tvm.transform.PassContext(opt_level=3):
    library = relay.build(mod, target=llvm_cpu_target(), params=params)
stock = graph_executor.GraphModule(library["default"](tvm.cpu()))
stock.run(image=data)
np.testing.assert_allclose(result, stock.get_output(0).numpy(), rtol=1e-4, atol=1e-5)
print("same numbers as TVM alone")

# %%
# What really happened
# --------------------
# The same table, with measured times in place of the predicted ones. A task with a dash, such as
# a reshape, needs no kernel.

placement, measured = executor.solution, executor.timeline()
print(placement_table(placement.graph, placement.cluster, placement.plan, measured))
median_us = np.median(executor.benchmark(100)) / 1e3
print(f"predicted {placement.expected_ns / 1e3:.0f} us, median of 100 runs {median_us:.0f} us")
