"""
A strategy of your own
======================

One network, two devices, and the question which mix of data (D), tensor (T) and pipeline (P)
parallelism with K microbatches runs it best. The grid has an answer; then a strategy that the grid
does not have is written, simulated, checked and run. It takes half a minute and needs no GPU.
"""

# %%
# Two devices that are ranks: a core and a memory each, and links between the memories. Both are
# this machine; a cluster file, or ``heteroplace.load_cluster``, describes any other.

import os

import numpy as np
import tvm
from tvm import relay

import heteroplace
from heteroplace import Cluster, Device, Link, Memory
from heteroplace.model.check import check_plan
from heteroplace.parts.parallel.transforms.schedules import Work, register_schedule
from heteroplace.relay.annotate.sharded_attribute import read_sharded
from heteroplace.simulate.simulator import simulate
from heteroplace.tvm_bridge import llvm_cpu_target

cores = sorted(os.sched_getaffinity(0))
devices = tuple(
    Device(f"cpu.{rank}", "cpu", llvm_cpu_target(), 0, rank, (cores[rank % len(cores)],),
           flops_per_second=5 * 10**10, memory_bytes_per_second=10**10, copy_engines=0)
    for rank in range(2)
)  # fmt: skip
links = (Link("up", 0, 1, 8 * 10**9, 1000, "up"), Link("down", 1, 0, 8 * 10**9, 1000, "down"))
cluster = Cluster("two", (Memory("ram0", 2**33), Memory("ram1", 2**33)), devices, links, 0)

# %%
# The network
# -----------
# Any Relay module whose inputs hold one row of the batch will do, such as ``frontend.from_onnx``
# imports. Weights are given apart, since they are to be trained.

random = np.random.default_rng(0)
width, x = 128, relay.var("x", shape=(1, 128))
params, value, weights = {}, x, []
for layer in range(6):
    weights.append(relay.var(f"w{layer}", shape=(width, width)))
    params[f"w{layer}"] = (random.standard_normal((width, width)) / 12).astype("float32")
    value = relay.nn.dense(relay.nn.relu(value) if layer else value, weights[-1])
mod = tvm.IRModule.from_expr(relay.Function([x, *weights], value))

# %%
# What the grid says
# ------------------
# ``degrees="auto"`` simulates all of D/T/P/K for these devices. Here costs are estimated from peak
# speeds; left out, kernels are measured. ``heteroplace shard`` prints the whole table.


def shared(**options):
    """Share the network; say what it takes, and what the fuller memory holds at most."""
    with tvm.transform.PassContext(opt_level=3):
        found = heteroplace.shard(
            mod, cluster, batch=512, params=params, costs="estimate", **options
        )
    record, _ = read_sharded(found)
    solution = record.solution
    check_plan(solution.graph, solution.cluster, solution.costs, solution.plan)
    timeline = simulate(solution.graph, solution.cluster, solution.costs, solution.plan)
    degrees = "/".join(map(str, record.told.degrees))
    print(f"D/T/P/K {degrees} {record.told.schedule}: {solution.predicted_ns / 1e3:.0f} us, "
          f"peak {max(timeline.peak_bytes) / 1024:.0f} KiB")  # fmt: skip
    return found


shared()
training = {"optimizer": "sgd:0.1", "pipeline": 2, "micro_batches": 8}
for schedule in ("gpipe", "1f1b"):
    shared(**training, schedule=schedule)

# %%
# A strategy of your own
# ----------------------
# A schedule says in which order a stage works on its microbatches. This one goes forward through
# two of them, then back through both, and so on: never are more than two in flight.


def in_pairs(stage, num_stages, micro_batches):
    """Yield the work of a stage: each pair of microbatches forward, then backward."""
    for first in range(0, micro_batches, 2):
        pair = range(first, min(first + 2, micro_batches))
        for backward in (False, True):
            yield from (Work(stage, micro_batch, backward) for micro_batch in pair)


register_schedule("in-pairs", in_pairs)
shared(**training, schedule="in-pairs")

# %%
# Stages need not be equal either: ``cuts`` names the first layer of each but the first one. The
# last stage also computes the loss; whether it is better off with a layer less, a line tells.

step = shared(**training, schedule="in-pairs", cuts=(4,))

# %%
# The plan has been checked like any other; it is compiled and run like any other. A step of
# training takes the whole batch and gives its loss, and weights are replaced in place.

with tvm.transform.PassContext(opt_level=3):
    executor = heteroplace.Executor(heteroplace.build(step))
inputs = random.standard_normal((512, width)).astype("float32")
labels = random.standard_normal((512, width)).astype("float32")
losses = [float(executor.run(x=inputs, labels=labels)[0]) for _ in range(5)]
print("loss:", ", ".join(f"{loss:.2f}" for loss in losses))
print("w0 has moved by", np.abs(executor.state("w0") - params["w0"]).max())
assert losses == sorted(losses, reverse=True)
