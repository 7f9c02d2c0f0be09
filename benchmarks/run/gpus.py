"""`benchmarks run --gpu`: plans over a GPU, its parts, and a GPU and a core, against stock TVM.

Per network, in turns: everything on one GPU, with and without CUDA graphs and products by cuBLASLt
(where the library is found), against stock's graph executor on it; the network in two halves, on a
core and a GPU and on two parts of one GPU, with waits by words and by events. `first_to_tenth` is
the time of the first run after load over that of the tenth: a kernel that is loaded late shows
there. `chain` is a network of small ops: what is left of its time is launches.

A peer that does not compile within its limit is left out, with a line that says so; outputs are
then compared with our own on the core.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx
import tvm
from tvm.contrib import graph_executor

from benchmarks.differences import largest_difference
from benchmarks.peers import stock_process
from benchmarks.peers.stock import (
    in_pass_context,
    silence_tuning_hint,
)
from benchmarks.row_table import row_table
from heteroplace import build, pipeline
from heteroplace.errors import ExecutionError
from heteroplace.lower.executable import Executable
from heteroplace.machine.gpu_parts import split_gpus
from heteroplace.machine.local import local_cluster
from heteroplace.measure.timed_runs import TimedRuns, Timer, time_in_turns, time_runs
from heteroplace.model.cluster import Cluster
from heteroplace.model.kernel_rules import why_barred
from heteroplace.parts.kernels.native.core_libraries import library_version
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from heteroplace.tvm_bridge import library_path, register_cuda_compiler
from zoo.models.catalogue import Model, import_model, load_model, model_names

CHAIN = "chain"
"""A network of small ops, each of which needs the one before."""
CHAIN_OPS = 2000
GPU, GRAPHS, STOCK = "gpu", "gpu, graphs", "stock TVM on the GPU"
PRODUCTS = "gpu, cuBLASLt"
CORE_AND_GPU, PARTS = "core + gpu", "two parts of a gpu"
EVENTS = ", events"


@dataclass(frozen=True)
class GpuOptions:
    """How much time to spend, and on what."""

    num_rounds: int = 9
    turn_ns: int = 40_000_000
    """See `time_in_turns`."""
    chain_ops: int = CHAIN_OPS
    stock_limit_s: float = 30.0
    """For stock TVM's compiler."""


class StockGpu:
    """A library of `relay.build` for a GPU in TVM's graph executor. Not thread-safe."""

    def __init__(self, library: tvm.runtime.Module, inputs: Mapping[str, np.ndarray]) -> None:
        self._device = tvm.cuda(0)
        self._module = graph_executor.GraphModule(library["default"](self._device))
        for name, array in inputs.items():
            self._module.set_input(name, tvm.nd.array(array))

    def run(self) -> list[np.ndarray]:
        """Run once and return the outputs."""
        self._once()
        count = self._module.get_num_outputs()
        return [self._module.get_output(index).numpy() for index in range(count)]

    def benchmark(self, num_runs: int) -> list[int]:
        """Run `num_runs` times, each to its end; return the wall time of each in ns."""
        return time_runs(self._once, num_runs)

    def _once(self) -> None:
        self._module.module["run"]()
        self._device.sync()


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows.

    Raises
    ------
    ExecutionError
        There is no GPU.
    """
    silence_tuning_hint()
    cluster = core_and_gpu(local_cluster())
    for name in filter(re.compile(only).search, (CHAIN, *model_names())):
        model = chain_model(CHAIN_OPS) if name == CHAIN else load_model(name)
        yield from measure_gpu(model, cluster, GpuOptions(), prefixed(say, name))


def core_and_gpu(cluster: Cluster) -> Cluster:
    """Return the first core and the first GPU of a machine, with the links between them.

    Raises
    ------
    ExecutionError
        It has no GPU.
    """
    gpu = next((device for device in cluster.devices if device.kind == "cuda"), None)
    if gpu is None:
        raise ExecutionError("this benchmark needs an NVIDIA GPU, and this machine has none")
    core = cluster.devices[0]
    places = {core.memory: 0, gpu.memory: 1}
    links = tuple(
        replace(link, src=places[link.src], dst=places[link.dst])
        for link in cluster.links
        if link.src in places and link.dst in places
    )
    memories = tuple(cluster.memories[memory] for memory in places)
    # Where each task runs is pinned: any speed does.
    devices = tuple(
        replace(
            device,
            memory=places[device.memory],
            flops_per_second=10**12,
            memory_bytes_per_second=10**11,
        )
        for device in (core, gpu)
    )
    return Cluster("core-and-gpu", memories, devices, links, 0)


def chain_model(num_ops: int) -> Model:
    """Return a network of so many small ops in a row, which no compiler fuses into one."""
    shape = (8, 64)
    ports = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"
    ]
    names = ["x", *(f"t{op}" for op in range(1, num_ops)), "y"]
    # Each normalises what the one before has made: a kernel of its own.
    nodes = [
        onnx.helper.make_node("Softmax", [before], [after], axis=-1)
        for before, after in itertools.pairwise(names)
    ]
    graph = onnx.helper.make_graph(nodes, CHAIN, ports[:1], ports[1:])
    opset = onnx.helper.make_opsetid("", 13)
    return import_model(CHAIN, onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8))


def measure_gpu(
    model: Model,
    cluster: Cluster,
    options: GpuOptions,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, object]]:
    """Build one network in all ways for a core and a GPU, and measure them in turns."""
    core, gpu = cluster.devices
    register_cuda_compiler()
    stock = build_peer(model, gpu.target, options.stock_limit_s, say)
    parts = split_gpus(cluster, 2)
    executables = {}
    for mode, where, devices in (
        (GPU, cluster, (gpu.name,)),
        (CORE_AND_GPU, cluster, (core.name, gpu.name)),
        (PARTS, parts, (f"{gpu.name}.0", f"{gpu.name}.1")),
    ):
        say(f"compiling for {mode}")
        executables[mode] = build_halves(model, where, devices)
    products = build_products(model, cluster, gpu.name, say)
    load = {
        GPU: partial(Executor, executables[GPU]),
        GRAPHS: partial(Executor, executables[GPU], cuda_graphs=True),
        CORE_AND_GPU: partial(Executor, executables[CORE_AND_GPU]),
        CORE_AND_GPU + EVENTS: partial(Executor, executables[CORE_AND_GPU], cuda_words=False),
        PARTS: partial(Executor, executables[PARTS]),
    }
    if products is not None:
        load[PRODUCTS] = partial(Executor, products, cuda_graphs=True)
    if stock is None:
        expected = Executor(build_halves(model, cluster, (core.name,))).run(model.inputs)
    else:
        expected = stock.run()
    timers: dict[str, Timer] = {} if stock is None else {STOCK: stock.benchmark}
    figures: dict[str, dict[str, object]] = {}
    for mode, make in load.items():
        say(f"loading: {mode}")
        executor = make()
        ten_ns = [_call_ns(executor, model) for _ in range(10)]
        found = executor.run(model.inputs)
        figures[mode] = {
            "max_abs_diff": largest_difference(found, expected),
            "first_to_tenth": round(ten_ns[0] / ten_ns[-1], 2),
        }
        timers[mode] = executor.benchmark
    say(f"measuring {len(timers)} ways in {options.num_rounds} rounds")
    timed = time_in_turns(timers, num_rounds=options.num_rounds, turn_ns=options.turn_ns)
    return [row_of(model.name, mode, timed, figures[mode]) for mode in load]


def build_peer(
    model: Model, target: str, limit_s: float, say: Callable[[str], None]
) -> StockGpu | None:
    """Build a network with stock TVM; None: it fails or takes longer, which is said."""
    say("compiling with stock TVM")
    mod, params, inputs = model.stock()
    try:
        return StockGpu(stock_process.build_within(mod, params, target, limit_s), inputs)
    except ExecutionError as err:
        say(f"left out: {STOCK}: {err}")
        return None


def build_halves(model: Model, cluster: Cluster, devices: tuple[str, ...]) -> Executable:
    """Build a network whose tasks are on the devices in turns: equal runs of the order of tasks.

    Tasks that must not run on a GPU are on the cluster's first device.
    """
    with in_pass_context():  # the tasks depend on its opt level
        tasks = pipeline.prepare(model.mod, model.params, cluster=cluster).graph.tasks
        pin = {
            task.name: devices[place * len(devices) // len(tasks)]
            for place, task in enumerate(tasks)
        }
        first = cluster.devices[0].name
        pin |= {task.name: first for task in tasks if why_barred(task.op, "cuda")}
        executable: Executable = build(
            model.mod, cluster, model.params, pin=pin, costs="estimate", solver="heft"
        )
    return executable


def build_products(
    model: Model, cluster: Cluster, gpu: str, say: Callable[[str], None]
) -> Executable | None:
    """Build a network for one GPU with products by cuBLASLt where they are quicker; None: there is
    no such library, which is said."""
    try:
        library_version(str(library_path()), "cublaslt")
    except ExecutionError as err:
        say(f"left out: {PRODUCTS}: {err}")
        return None
    say(f"measuring and compiling for {PRODUCTS}")
    with in_pass_context():
        return build(
            *(model.mod, cluster, model.params),
            pin={"*": gpu},
            cublas="float32",
            store="off",
            solver="heft",
        )


def row_of(
    model: str, mode: str, timed: TimedRuns, figures: Mapping[str, object]
) -> dict[str, object]:
    """Return the figures of one way to run a network; times in ms, None without stock TVM."""
    has_stock = STOCK in timed.turns
    return {
        "model": model,
        "mode": mode,
        "ours_ms": round(timed.median_ns(mode) / 1e6, 4),
        "stock_ms": round(timed.median_ns(STOCK) / 1e6, 4) if has_stock else None,
        "ratio_to_stock": round(timed.ratio(mode, STOCK), 3) if has_stock else None,
        **figures,
    }


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text; times in ms."""
    columns = {
        "model": "network",
        "mode": "way",
        "ours_ms": "ours",
        "stock_ms": "stock",
        "ratio_to_stock": "ratio",
        "first_to_tenth": "first to tenth",
        "max_abs_diff": "difference",
    }
    return row_table(rows, columns, num_names=2)


def _call_ns(executor: Executor, model: Model) -> int:
    start = time.perf_counter_ns()
    executor.run(model.inputs)
    return time.perf_counter_ns() - start
