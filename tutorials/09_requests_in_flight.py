"""
Throughput and requests in flight
=================================

One call after the other leaves devices idle that the next call could use. Here a network of two
halves is placed for little time from item to item, and called with one, two and three requests at
work at a time. It takes half a minute and needs no GPU.
"""

# %%
# The network
# -----------
# A chain: no two of its tasks can run at the same time, so that a single call gains nothing from a
# second device. A stream of calls does.

import matplotlib.pyplot as plt
import numpy as np
import tvm
from tvm import relay

import heteroplace

random = np.random.default_rng(0)
value = image = relay.var("image", shape=(1, 32, 28, 28))
for _layer in range(8):
    kernel = (random.standard_normal((32, 32, 3, 3)) / 17).astype("float32")
    sizes = {"channels": 32, "kernel_size": (3, 3), "padding": (1, 1)}
    value = relay.nn.relu(relay.nn.conv2d(value, relay.const(kernel), **sizes))
mod = tvm.IRModule.from_expr(relay.Function([image], value))
cluster = heteroplace.local_cluster(has_gpus=False)

# %%
# Two objectives
# --------------
# ``objective="latency"`` asks for a short run, ``"throughput"`` for little time per item in a
# steady state; its bound is one on the time per item.

executables = {}
for objective in ("latency", "throughput"):
    with tvm.transform.PassContext(opt_level=3):
        executables[objective] = heteroplace.build(
            mod, cluster, objective=objective, costs="isolated", exclude=["cpu.all"], verify="off"
        )
    solution = executables[objective].solution
    text = f"a run of {solution.predicted_ns / 1e3:.0f} us on {'+'.join(solution.devices_used)}"
    if solution.item_ns is not None:
        text += f", an item every {solution.item_ns / 1e3:.0f} us"
    print(f"{objective}: {text}")

# %%
# Requests in flight
# ------------------
# ``max_in_flight`` is how many calls an executor works on at a time. ``run_many`` gives outputs in
# the order of the inputs and asks for no more than are in flight; ``run_async`` returns a future.

data = [random.standard_normal((1, 32, 28, 28)).astype("float32") for _ in range(60)]
traces = {}
for in_flight in (1, 2, 3):
    executor = heteroplace.Executor(executables["throughput"], max_in_flight=in_flight)
    expected = [executor.run(image=one)[0] for one in data[:3]]
    with executor.trace() as trace:
        outputs = list(executor.run_many({"image": one} for one in data))
    executor.close()
    for (output,), one in zip(outputs, expected, strict=False):
        np.testing.assert_array_equal(output, one)
    begin_ns, end_ns = trace.requests[0].start_ns, max(one.finish_ns for one in trace.requests)
    rate = len(data) * 1e9 / (end_ns - begin_ns)
    busy = ", ".join(f"{use.queue} {use.busy_share:.0%}" for use in trace.busy)
    print(f"{in_flight} in flight: {rate:,.0f} images/s; busy: {busy}")
    traces[in_flight] = trace

# %%
# What the cores did
# ------------------
# Twelve requests in the middle of each recording: a row for each queue, a colour for each request.
# With one in flight a core waits for the other; with two or more each has a request of its own.
# ``trace.save("t.json")`` writes the same for https://ui.perfetto.dev.

figure, panels = plt.subplots(len(traces), 1, figsize=(8, 4.5), sharex=True, layout="constrained")
colours = plt.get_cmap("tab10").colors
for panel, (in_flight, trace) in zip(panels, traces.items(), strict=True):
    first = trace.requests[len(data) // 2].number
    of_first = trace.events["request"] - first
    events = trace.events[(of_first >= 0) & (of_first < 12)]
    first_ns = events["start_ns"].min()
    queues = [use.queue for use in trace.busy]
    for event in events:
        panel.barh(int(event["queue"]), (event["finish_ns"] - event["start_ns"]) / 1e6,
                   left=(event["start_ns"] - first_ns) / 1e6,
                   color=colours[int(event["request"]) % 10])  # fmt: skip
    panel.set_yticks(range(len(queues)), queues)
    panel.set_title(f"{in_flight} in flight", fontsize=10, loc="left")
panels[-1].set_xlabel("measured time, ms")
figure.savefig("requests_in_flight.png", dpi=110)
