"""
A model that no device can hold
===============================

Memories limit a plan as much as speed does. A network of 16 GiB of weights is placed on two GPUs
and a CPU whose memories become smaller and smaller, until there is no plan, and the error says what
is missing. Nothing is run, so neither a GPU nor TVM is needed; it takes a few seconds.
"""

# %%
# The network
# -----------
# Sixteen layers of two branches. A task says how much it computes, which weights it holds and which
# scratch memory it takes; tensors say their size. ``heteroplace profile --graph-out`` writes the
# same of an ONNX model. Costs are estimated here, from peak speeds (the roofline).

import matplotlib.pyplot as plt

import heteroplace
from heteroplace import Task, TaskGraphBuilder
from heteroplace.costs.roofline import estimate_costs
from heteroplace.errors import InfeasibleError
from heteroplace.model.demands import with_max_memory
from heteroplace.report.headline import headline
from heteroplace.report.tables import device_table
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, get_solver

GIB = 2**30
LAYERS = 16

builder = TaskGraphBuilder("two-branches")
value = builder.add_input("x", shape=(1024, 4096), dtype="float32")
for layer in range(LAYERS):
    halves = []
    for side in "ab":
        name = f"{side}{layer}"
        builder.add_task(Task(name, "dense+relu", flops=3 * 10**10, weight_bytes=GIB // 2), [value])
        halves.append(builder.add_tensor(name, shape=(1024, 4096), dtype="float32"))
    builder.add_task(Task(f"join{layer}", "add", flops=4 * 10**6), halves)
    value = builder.add_tensor(f"join{layer}", shape=(1024, 4096), dtype="float32")
graph = builder.finalize([value])
cluster = heteroplace.load_cluster("cpu-two-gpus")

# %%
# With less and less memory
# -------------------------
# ``max_memory`` is an option of the pass and of the commands that place (``heteroplace place``,
# ``run`` and ``compile``): ``--max-memory gpu0=10GiB``. What a GPU has no room for goes to the
# other one, then to the CPU, with the copies that this takes.


def place(limit):
    """Place with at most `limit` on each GPU; return the plan's result and its timeline."""
    tight = with_max_memory(cluster, {"gpu0": limit, "gpu1": limit})
    problem = Problem(graph, tight, estimate_costs(graph, tight))
    result = get_solver("search").solve(problem, SolveOptions(iterations=200, threads=1))
    return problem, result, simulate(graph, tight, problem.costs, result.plan)


limits = ["15.5GiB", "8.5GiB", "6.5GiB", "4.5GiB", "2.5GiB"]
points = []
for limit in limits:
    problem, result, timeline = place(limit)
    makespan_ms = timeline.makespan_ns / 1e6
    used = [bytes_ / GIB for bytes_ in timeline.peak_bytes]
    points.append((makespan_ms, result.bound_ns / 1e6, used))
    told = ", ".join(
        f"{memory.name} {gib:.1f} GiB"
        for memory, gib in zip(problem.cluster.memories, used, strict=True)
    )
    print(f"at most {limit} on each GPU: {makespan_ms:.1f} ms, {told}")

# %%
# The last one in full. *used* is what is live at once at most; weights count once in a memory.

print(headline(problem.cluster, result.plan, timeline.makespan_ns, bound_ns=result.bound_ns))
print(device_table(graph, problem.cluster, result.plan, timeline))

# %%
# The same as a picture: how much time every GiB that is missing costs.

figure, (above, below) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, layout="constrained")
above.plot(limits, [point[0] for point in points], "o-", label="simulated")
above.plot(limits, [point[1] for point in points], "v--", label="lower bound")
above.set_ylabel("time of a run, ms")
above.legend()
bottom = [0.0] * len(limits)
for memory, hatch in zip(range(len(cluster.memories)), ("", "//", "xx"), strict=True):
    heights = [point[2][memory] for point in points]
    below.bar(limits, heights, bottom=bottom, label=cluster.memories[memory].name,
              hatch=hatch, edgecolor="white")  # fmt: skip
    bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
below.set_ylabel("memory used, GiB")
below.set_xlabel("limit of each GPU")
below.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
figure.savefig("tight_memory.png", dpi=110)

# %%
# No room at all
# --------------
# Without the CPU's memory there is no plan. The error says so with the numbers, before any search.

tiny = with_max_memory(cluster, {"gpu0": "4GiB", "gpu1": "4GiB", "ram": "1GiB"})
try:
    get_solver("search").solve(
        Problem(graph, tiny, estimate_costs(graph, tiny)), SolveOptions(iterations=200, threads=1)
    )
except InfeasibleError as fault:
    print(fault)
