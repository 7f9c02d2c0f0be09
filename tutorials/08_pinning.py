"""
Why is it there, and put it elsewhere
=====================================

Every task says why it is where it is. Here a plan is read, then parts of the network are put on a
device by a pin, by keeping layers together, and by hand in the module, and what that costs is
compared. It takes a minute and needs no GPU.
"""

# %%
# A network with names
# --------------------
# Pins name tasks, ops or layers of the model, by patterns. This one has two towers, which do not
# need each other; its layers are ``left/conv0``, ``left/conv1`` and so on.

import tempfile
from pathlib import Path

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relay

import heteroplace
from heteroplace.model.units import format_ns
from heteroplace.relay.annotate.annotation_reader import read_solution
from heteroplace.relay.annotate.writer import tvm_devices
from heteroplace.report.headline import solution_headline
from heteroplace.report.tables import format_table, placement_table
from heteroplace.simulate.simulator import simulate

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
file = Path(tempfile.mkdtemp()) / "towers.onnx"
onnx.save(model, file)
mod, params = heteroplace.frontend.from_onnx(file)
cluster = heteroplace.local_cluster(has_gpus=False)

# %%
# Why
# ---
# The table has a row for each task: device, start, time, and the reason, with the times on the
# other devices and what moving the task would do.


def place(**options):
    """Place the network with some options. Measuring kernels one by one is quicker, less exact."""
    sequence = relay.transform.HeteroPlace(cluster, params=params, costs="isolated", **options)
    with tvm.transform.PassContext(opt_level=3):
        return sequence(mod)


placed = place()
solution = read_solution(placed)
timeline = simulate(solution.graph, solution.cluster, solution.costs, solution.plan)
print(solution_headline(solution))
print(placement_table(solution.graph, solution.cluster, solution.plan, timeline))

# %%
# Put it elsewhere
# ----------------
# The same are options of commands: ``tvmc compile --placement-option 'pin=left/*=cpu.0'``,
# ``--placement-option exclude=cpu.all``, ``--placement-option 'no_split=nn.conv2d*'``. What was
# measured is in the store, so that nothing is measured again.

core = cluster.devices[0].name
choices = {
    "as it likes": {},
    f"the left tower on {core}": {"pin": {"left/*": core}},
    f"both towers on {core}": {"pin": {"left/*": core, "right/*": core}},
    "all convolutions on one device": {"no_split": ["nn.conv2d*"]},
    "without the first core": {"exclude": [core]},
}
rows = []
for name, options in choices.items():
    solution = read_solution(place(**options))
    devices = "+".join(solution.devices_used)
    rows.append((name, devices, format_ns(solution.predicted_ns), format_ns(solution.bound_ns)))
print(format_table(("choice", "devices", "predicted", "lower bound"), rows))

# %%
# By hand
# -------
# The annotations in the module are the truth that ``build`` reads. Here each ``on_device`` is moved
# to the last device of the cluster; the plan follows, and says what was moved.


class MoveAll(relay.ExprMutator):
    """Puts every op on one device."""

    def visit_call(self, call):
        """Write each `on_device` anew."""
        call = super().visit_call(call)
        if call.op == relay.op.get("on_device"):
            return relay.annotation.on_device(call.args[0], tvm_devices(cluster)[-1])
        return call


moved = tvm.IRModule({"main": MoveAll().visit(placed["main"])})
with tvm.transform.PassContext(opt_level=3):
    executable = heteroplace.build(moved, verify="off")
print("moved by hand:", executable.solution.plan.moved_by_hand)
print("on:", "+".join(executable.solution.devices_used))

# %%
# It runs like any other, and the numbers are the same wherever an op is.

image = random.standard_normal((1, 32, 28, 28)).astype("float32")
(output,) = heteroplace.Executor(executable).run(image=image)
with tvm.transform.PassContext(opt_level=3):
    (expected,) = heteroplace.Executor(heteroplace.build(placed, verify="off")).run(image=image)
assert np.allclose(output, expected, rtol=1e-4, atol=1e-5)
print("equal to a rounding error")
