"""
Hardware that you do not have
=============================

What would a second GPU bring? Is a faster link worth it? A plan needs costs, not devices: here a
network is planned for machines that are described by a file, and nothing is run. It takes a few
seconds and needs neither a GPU nor TVM.
"""

# %%
# The network
# -----------
# A stem and eight branches of six tasks, joined at the end: work for several devices, if the copies
# between them do not eat up what is gained. With TVM and an ONNX file,
# ``heteroplace profile --predict model.onnx --cluster cpu-two-gpus -o costs.json`` takes costs from
# what was measured here and from the figures of 23 known GPUs and CPUs; below they are estimated
# from peak speeds.

import dataclasses

import matplotlib.pyplot as plt

import heteroplace
from heteroplace import Task, TaskGraphBuilder
from heteroplace.costs.roofline import estimate_costs
from heteroplace.model.check import check_plan
from heteroplace.model.units import format_ns
from heteroplace.report.tables import placement_table
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, get_solver

SHAPE = (8, 64, 56, 56)
builder = TaskGraphBuilder("branches")
builder.add_input("x", shape=SHAPE, dtype="float32")


def convolution(name, reads, channels=64):
    """Add a convolution over 56 x 56 pixels with `channels` in and out, for eight images."""
    flops = 2 * 8 * 56 * 56 * channels * channels * 9
    task = Task(name, "conv2d+relu", flops=flops, weight_bytes=4 * channels * channels * 9)
    builder.add_task(task, reads)
    return builder.add_tensor(name, shape=SHAPE, dtype="float32")


stem = convolution("stem", ["x"])
ends = []
for branch in "abcdefgh":
    value = stem
    for depth in range(6):
        value = convolution(f"{branch}{depth}", [value])
    ends.append(value)
builder.add_task(Task("join", "add", flops=8 * 64 * 56 * 56 * 7), ends)
graph = builder.finalize([builder.add_tensor("join", shape=SHAPE, dtype="float32")])

# %%
# One question after the other
# ----------------------------
# A cluster is a value: a device or a link more is a changed copy of it.


def planned(cluster):
    """Return the time of the best plan that is found, and its lower bound, in ms."""
    problem = Problem(graph, cluster, estimate_costs(graph, cluster))
    result = get_solver("search").solve(problem, SolveOptions(iterations=400, threads=1))
    check_plan(graph, cluster, problem.costs, result.plan)
    return problem, result


def with_links(cluster, times):
    """Return the cluster with links that are so many times as fast."""
    links = tuple(
        dataclasses.replace(link, bytes_per_second=int(link.bytes_per_second * times))
        for link in cluster.links
    )
    return dataclasses.replace(cluster, links=links)


one, two = (heteroplace.load_cluster(name) for name in ("cpu-one-gpu", "cpu-two-gpus"))
machines = {
    "one GPU": one,
    "two GPUs": two,
    "two GPUs, links of a quarter": with_links(two, 0.25),
    "two GPUs, links of four times": with_links(two, 4),
}
found = {name: planned(cluster) for name, cluster in machines.items()}
for name, (_, result) in found.items():
    print(f"{name:30} {format_ns(result.objective_ns):>8}, bound {format_ns(result.bound_ns):>8}")

# %%
# Where everything would be, on the machine of two GPUs. All of this is simulated, and holds as far
# as the costs do.

problem, result = found["two GPUs"]
timeline = simulate(graph, two, problem.costs, result.plan)
print("\n".join(placement_table(graph, two, result.plan, timeline).splitlines()[:14]))

# %%
# The timeline as a picture: a row for each device and each channel that copies go over.

rows = list(dict.fromkeys(span.resource for span in timeline.spans))
figure, axes = plt.subplots(figsize=(8, 0.6 * len(rows) + 1), layout="constrained")
for span in timeline.spans:
    is_device = span.resource in {device.name for device in two.devices}
    axes.barh(rows.index(span.resource), (span.finish_ns - span.start_ns) / 1e6,
              left=span.start_ns / 1e6, color="tab:blue" if is_device else "tab:orange",
              edgecolor="white", linewidth=0.4)  # fmt: skip
axes.set_yticks(range(len(rows)), rows)
axes.invert_yaxis()
axes.set_xlabel("simulated time, ms")
axes.set_title("kernels (blue) and copies (orange)")
figure.savefig("two_gpus.png", dpi=110)

# %%
# A machine from a paper
# ----------------------
# Moirai's four unlike GPUs in four servers are ready-made, with links that are slower one way.

problem, result = planned(heteroplace.load_cluster("moirai-inter-server"))
devices = [device.name for device in problem.cluster.devices]
print(
    f"on {'+'.join(devices)}: {format_ns(result.objective_ns)}, bound {format_ns(result.bound_ns)}"
)
