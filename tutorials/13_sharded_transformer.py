"""
A transformer over several devices
==================================

A chain of layers gains nothing from a second device unless its batch (D), its weights (T) or its
layers (P) are cut. Here a small vision transformer is cut in three ways for two devices, which are
simulated and compared with the network that is not cut, and one is compiled and run. It takes a
minute and needs no GPU.
"""

# %%
# The network and the devices
# ---------------------------
# An imported model with one row of the batch. Each device with a memory is a rank; both are cores
# of this machine here, with speeds that are assumed, so all times below are simulated.

import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnx
import tvm

import heteroplace
from heteroplace import Cluster, Device, Link, Memory
from heteroplace.relay.annotate.sharded_attribute import read_sharded
from heteroplace.report.tables import format_table
from heteroplace.simulate.simulator import simulate
from heteroplace.tvm_bridge import llvm_cpu_target
from zoo.models.attention import vit

cores = sorted(os.sched_getaffinity(0))
devices = tuple(
    Device(f"rank{rank}", "cpu", llvm_cpu_target(), 0, rank, (cores[rank % len(cores)],),
           flops_per_second=5 * 10**10, memory_bytes_per_second=10**10, copy_engines=0)
    for rank in range(2)
)  # fmt: skip
links = (Link("up", 0, 1, 8 * 10**9, 1000, "up"), Link("down", 1, 0, 8 * 10**9, 1000, "down"))
cluster = Cluster("two", (Memory("ram0", 2**33), Memory("ram1", 2**33)), devices, links, 0)

file = Path(tempfile.mkdtemp()) / "vit.onnx"
onnx.save(vit(), file)
mod, params = heteroplace.frontend.from_onnx(file)
(image,) = [value for value in mod["main"].params if value.name_hint not in params]
shape = [int(size) for size in image.checked_type.shape]
weight_bytes = sum(weight.numpy().nbytes for weight in params.values())
print(f"input {image.name_hint} {shape}, {weight_bytes / 2**10:.0f} KiB of weights")

# %%
# One device, and three ways of two
# ---------------------------------
# ``heteroplace shard`` prints the whole table of a file; in Python one way is asked for at a time.
# Weights are cut by columns, then by rows, attention by heads, as Megatron-LM cuts them, but by
# following the axes of the network rather than by names of layers.

BATCH = 16
ways = {"not cut": {"data": 1}, "data": {"data": 2}, "tensor": {"tensor": 2},
        "pipeline of 4 microbatches": {"pipeline": 2, "micro_batches": 4}}  # fmt: skip
found, rows, timelines = {}, [], {}
for name, degrees in ways.items():
    with tvm.transform.PassContext(opt_level=3):
        found[name] = heteroplace.shard(
            mod, cluster, batch=BATCH, params=params, costs="estimate", **degrees
        )
    solution = read_sharded(found[name])[0].solution
    timeline = simulate(solution.graph, solution.cluster, solution.costs, solution.plan)
    timelines[name] = timeline
    peaks = " ".join(f"{peak / 2**20:.1f}" for peak in timeline.peak_bytes)
    rows.append((name, f"{timeline.makespan_ns / 1e6:.2f} ms", f"{peaks} MiB"))
print(format_table(("way", "simulated", "peak of each memory"), rows))

# %%
# Their timelines
# ---------------
# Without cuts one device has all of the work. Replicas do not meet until the end. Lanes of a
# tensor-parallel network add up what they have, again and again. Stages of a pipeline wait for the
# first microbatch, and at the end for the last.

figure, panels = plt.subplots(len(timelines), 1, figsize=(8, 5), sharex=True, layout="constrained")
names = [device.name for device in devices]
for panel, (name, timeline) in zip(panels, timelines.items(), strict=True):
    resources = [*names, *sorted({span.resource for span in timeline.spans} - set(names))]
    for span in timeline.spans:
        panel.barh(resources.index(span.resource), (span.finish_ns - span.start_ns) / 1e6,
                   left=span.start_ns / 1e6,
                   color="tab:blue" if span.resource in names else "tab:orange")  # fmt: skip
    panel.set_yticks(range(len(resources)), resources)
    panel.invert_yaxis()
    panel.set_title(name, fontsize=10, loc="left")
panels[-1].set_xlabel("simulated time, ms")
figure.savefig("sharded_transformer.png", dpi=110)

# %%
# Run one
# -------
# The plan is compiled and run like any other. What is built takes the whole batch; the numbers are
# those of the network that is not cut, up to the order of sums.

with tvm.transform.PassContext(opt_level=3):
    executor = heteroplace.Executor(heteroplace.build(found["tensor"]))
    whole = heteroplace.Executor(heteroplace.build(mod, cluster, params=params, costs="estimate"))
batch = np.random.default_rng(0).standard_normal((BATCH, *shape[1:])).astype("float32")
(cut,) = executor.run(**{image.name_hint: batch})
alone = np.concatenate([whole.run(**{image.name_hint: row[None]})[0] for row in batch])
np.testing.assert_allclose(cut, alone, rtol=1e-3, atol=1e-4)
print("largest difference", np.abs(cut - alone).max(), "of values up to", np.abs(alone).max())
