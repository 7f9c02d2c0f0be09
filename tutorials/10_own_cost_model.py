"""
Costs of your own
=================

A plan is as good as the costs that it is made with. Here kernels of a network are measured, a model
with two constants is fitted to half of them, and it is given to the placement in place of
measurements. It takes half a minute and needs no GPU.
"""

# %%
# What is measured
# ----------------
# A network of convolutions of many sizes. Each task of its solution knows its operations and the
# bytes that it reads and writes; the cost table has what was measured.

import matplotlib.pyplot as plt
import numpy as np
import tvm
from tvm import relay

import heteroplace
from heteroplace.model.cost import Cost, build_table
from heteroplace.relay.annotate.annotation_reader import read_solution
from heteroplace.report.headline import solution_headline
from heteroplace.report.tables import cost_sources_line

random = np.random.default_rng(0)


def convolution(value, channels_in, channels, kernel):
    """Add a convolution with random weights and a relu."""
    shape = (channels, channels_in, kernel, kernel)
    weight = relay.const(random.standard_normal(shape).astype("float32"))
    sizes = {"channels": channels, "kernel_size": (kernel, kernel), "padding": (kernel // 2,) * 2}
    return relay.nn.relu(relay.nn.conv2d(value, weight, **sizes))


value = image = relay.var("image", shape=(1, 16, 56, 56))
channels = 16
for layer, (wider, kernel) in enumerate([(16, 3), (32, 1), (32, 3), (64, 1), (64, 3), (32, 1)]):
    value = convolution(value, channels, wider, kernel)
    channels = wider
    if layer % 2:
        value = relay.nn.max_pool2d(value, pool_size=(2, 2), strides=(2, 2))
mod = tvm.IRModule.from_expr(relay.Function([image], value))
cluster = heteroplace.local_cluster(has_gpus=False)


def place(costs):
    """Place the network by these costs; return its solution."""
    with tvm.transform.PassContext(opt_level=3):
        return read_solution(relay.transform.HeteroPlace(cluster, costs=costs)(mod))


measured = place("isolated")
print(solution_headline(measured))
print(cost_sources_line(measured.costs))

# %%
# A model of two constants
# ------------------------
# Time is a part for each operation and a part for each byte. The constants of a device come from
# every other task, by least squares of relative errors; the rest shows how good the model is.


def features(graph, task):
    """Return operations and bytes of a task."""
    tensors = (*graph.task_inputs[task], *graph.task_outputs[task])
    moved = graph.tasks[task].weight_bytes + sum(graph.tensors[one].bytes for one in tensors)
    return np.array([graph.tasks[task].flops, moved], float)


tasks = range(len(measured.graph.tasks))
constants = []
for device in range(len(cluster.devices)):
    rows = np.array([features(measured.graph, task) for task in tasks])
    times_ns = np.array([measured.costs.run_ns(task, device) for task in tasks], float)
    fitted = slice(0, None, 2)
    relative = rows[fitted] / times_ns[fitted, None]
    found, *_ = np.linalg.lstsq(relative, np.ones(len(relative)), rcond=None)
    constants.append(np.maximum(found, 0))
    errors = np.abs(rows @ constants[-1] / times_ns - 1)
    print(f"{cluster.devices[device].name}: {constants[-1][0]:.4f} ns for an operation, "
          f"{constants[-1][1]:.4f} for a byte; median error {np.median(errors[1::2]):.0%} "
          "of tasks that it has not seen")  # fmt: skip

# %%
# Predicted and measured, as a picture: what is on the line is right.

figure, axes = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
for device, marker in zip(range(len(cluster.devices)), "osv^D", strict=False):
    predicted = [features(measured.graph, task) @ constants[device] / 1e3 for task in tasks]
    times_us = [measured.costs.run_ns(task, device) / 1e3 for task in tasks]
    axes.loglog(times_us, predicted, marker, label=cluster.devices[device].name, alpha=0.7)
axes.axline((10, 10), (100, 100), color="grey", linewidth=1)
axes.set_xlabel("measured, us")
axes.set_ylabel("predicted, us")
axes.legend()
figure.savefig("own_cost_model.png", dpi=110)

# %%
# Placed by it
# ------------
# A function from graph and cluster to a table stands wherever costs are given. A cost says how it
# was come by, and the tables of a plan repeat it: these are no measurements.


def my_costs(graph, cluster):
    """Return the cost of every task on every device by the model."""

    def cost(task, device):
        return Cost.regressed(max(1, round(features(graph, task) @ constants[device])))

    return build_table(graph, cluster, cost)


modelled = place(my_costs)
print(solution_headline(modelled))
print(cost_sources_line(modelled.costs))
