"""Clusters, tiny networks, random placements and references for the tests of the Relay layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_models as om
import tvm
from tvm import relay
from tvm.contrib import graph_executor

from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.machine.local import local_cluster
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.relay.annotate.writer import annotate
from heteroplace.relay.expressions import post_order
from heteroplace.relay.targets import with_stock_kernels
from heteroplace.relay.tasks.extract import Extraction, extract
from heteroplace.relay.tasks.network import network_of
from heteroplace.relay.tasks.prepare import prepare
from heteroplace.simulate.simulator import simulate
from heteroplace.tvm_bridge import llvm_cpu_target
from tests.placed_steps import placed_steps

TARGET = llvm_cpu_target()
CUDA = "cuda -arch=sm_80"
SHAPE = (1, 4, 8, 8)


def cores() -> tuple[int, ...]:
    """The cores of this machine that tests use: two, or the only one."""
    return tuple(sorted({core for device in local_cluster().devices for core in device.cores}))[:2]


def cpu_cluster(memory_bytes: int = 2**33) -> Cluster:
    """One device for each of two cores, and one of both."""
    ids = cores()
    devices = [Device(f"cpu.{n}", "cpu", TARGET, 0, 0, (core,)) for n, core in enumerate(ids)]
    devices.append(Device("cpu.all", "cpu", TARGET, 0, 0, ids))
    return Cluster("cpu", (Memory("ram", memory_bytes),), tuple(devices), (), 0)


def stock_cluster() -> Cluster:
    """The same, with TVM's own kernels, whose outputs have the bits of stock TVM."""
    return with_stock_kernels(cpu_cluster())


STOCK_TARGET = stock_cluster().devices[0].target


def two_cores() -> Cluster:
    """A device for each of two cores."""
    cluster = stock_cluster()
    return Cluster("cores", cluster.memories, cluster.devices[:2], (), 0)


def mixed_cluster() -> Cluster:
    """A core and a GPU, which tests only compile for."""
    return Cluster(
        "mixed",
        (Memory("ram", 2**33), Memory("gpu-memory", 2**33)),
        (Device("cpu.0", "cpu", TARGET, 0, 0, cores()[:1]), Device("gpu0", "cuda", CUDA, 0, 1)),
        (Link("up", 0, 1, 10**10, 1000, "up"), Link("down", 1, 0, 10**10, 1000, "down")),
        0,
    )


def var(name: str, shape: Sequence[int] = SHAPE, dtype: str = "float32") -> relay.Var:
    """An input."""
    return relay.var(name, shape=tuple(shape), dtype=dtype)


def module(inputs: Sequence[relay.Var], body: relay.Expr) -> tvm.IRModule:
    """A typed module of one function."""
    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(list(inputs), body)))


def weights(*shape: int, seed: int = 0) -> relay.Constant:
    """Random weights."""
    return relay.const(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def conv(data: relay.Expr, channels: int, in_channels: int, kernel: int = 3) -> relay.Expr:
    """A convolution that keeps the size of the map; its weights are those of no other layer."""
    return relay.nn.conv2d(
        data,
        weights(channels, in_channels, kernel, kernel, seed=len(list(post_order(data)))),
        padding=(kernel // 2, kernel // 2),
        channels=channels,
        kernel_size=(kernel, kernel),
    )


def two_branches() -> tvm.IRModule:
    """Two convolutions of one input, added up: four tasks at most."""
    x = var("x", (1, 8, 8, 8))
    left = relay.nn.relu(conv(x, 8, 8))
    right = relay.nn.max_pool2d(conv(x, 8, 8, 1), (3, 3), padding=(1, 1))
    return module([x], relay.nn.softmax(relay.add(left, right)))


def fire_modules() -> tvm.IRModule:
    """Two fire modules in the manner of SqueezeNet, then pooling and a classifier."""
    x = var("x", (1, 8, 16, 16))
    value = x
    for _ in range(2):
        squeezed = relay.nn.relu(conv(value, 8, 8, 1))
        wide = [relay.nn.relu(conv(squeezed, 4, 8, kernel)) for kernel in (1, 3)]
        value = relay.concatenate(wide, axis=1)
    pooled = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(value))
    return module([x], relay.nn.softmax(relay.nn.dense(pooled, weights(10, 8))))


_extractions: dict[str, Extraction] = {}
_networks: dict[str, CompiledNetwork] = {}
_executors: dict[str, Callable[[dict[str, np.ndarray]], list[np.ndarray]]] = {}
"""By all that a module holds, written out: equal modules are worked on once."""


def extraction_of(mod: tvm.IRModule) -> Extraction:
    """Prepared and cut into tasks at the highest opt level; once for equal modules."""
    key = tvm.ir.save_json(mod)
    if key not in _extractions:
        _extractions[key] = extracted_anew(mod)
    return _extractions[key]


def extracted_anew(mod: tvm.IRModule) -> Extraction:
    """The same, whatever was extracted before."""
    with tvm.transform.PassContext(opt_level=3):
        return extract(prepare(mod))


def compiled_of(extraction: Extraction, graph: TaskGraph | None = None) -> CompiledNetwork:
    """The network of an extraction, nothing of it compiled yet."""
    return CompiledNetwork.of(network_of(replace(extraction, graph=graph or extraction.graph)))


def shared_network(mod: tvm.IRModule) -> CompiledNetwork:
    """The network of a module; what one test lowers or compiles of it, no other one does again."""
    key = tvm.ir.save_json(mod)
    if key not in _networks:
        _networks[key] = compiled_of(extraction_of(mod))
    return _networks[key]


def written(mod: tvm.IRModule, solution: Solution) -> Executable:
    """What `build` makes of a module placed so, over the kernels of the shared network."""
    with tvm.transform.PassContext(opt_level=3):
        kernels = shared_network(mod).kernels_of(solution.cluster, solution.plan)
    (executable,) = write_programs(kernels, [solution])
    return executable


def random_costs(graph: TaskGraph, cluster: Cluster, seed: int = 0) -> CostTable:
    """Any times."""
    random = np.random.default_rng(seed)
    return build_table(
        graph, cluster, lambda task, device: Cost.given(int(random.integers(1, 999)))
    )


def solution_of(extraction: Extraction, cluster: Cluster, devices: Sequence[int]) -> Solution:
    """The plan that runs task i on devices[i], in topological order."""
    graph = extraction.graph
    steps = placed_steps(graph, cluster, enumerate(devices))
    costs = random_costs(graph, cluster)
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand")
    check_plan(graph, cluster, costs, plan)
    makespan = simulate(graph, cluster, costs, plan).makespan_ns
    return Solution(graph, cluster, costs, plan, makespan, 0)


def random_devices(extraction: Extraction, cluster: Cluster, seed: int) -> list[int]:
    """A device for each task."""
    random = np.random.default_rng(seed)
    return [int(random.integers(len(cluster.devices))) for _ in extraction.graph.tasks]


def placed_randomly(mod: tvm.IRModule, cluster: Cluster, seed: int) -> tvm.IRModule:
    """The annotated module of a random placement."""
    extraction = extraction_of(mod)
    devices = random_devices(extraction, cluster, seed)
    return annotate(extraction, solution_of(extraction, cluster, devices))


def written_randomly(mod: tvm.IRModule, cluster: Cluster, seed: int) -> Executable:
    """What `build` makes of it, over the kernels of the shared network."""
    extraction = extraction_of(mod)
    devices = random_devices(extraction, cluster, seed)
    return written(mod, solution_of(extraction, cluster, devices))


def random_inputs(mod: tvm.IRModule, seed: int = 0) -> dict[str, np.ndarray]:
    """An array for each parameter of main, unlike the weights of the same seed."""
    random = np.random.default_rng([1, seed])
    found = {}
    for parameter in mod["main"].params:
        type_ = parameter.type_annotation
        shape = tuple(int(extent) for extent in type_.shape)
        found[parameter.name_hint] = random.standard_normal(shape).astype(type_.dtype)
    return found


def stock_outputs(
    mod: tvm.IRModule, inputs: dict[str, np.ndarray], target: str = TARGET, **context: Any
) -> list[np.ndarray]:
    """What TVM's own build and graph executor make of it."""
    return stock_executor(mod, target, **context)(inputs)


def stock_executor(
    mod: tvm.IRModule, target: str = TARGET, **context: Any
) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    """The same, compiled, for any inputs."""
    key = f"{target} {context} {tvm.ir.save_json(mod)}"
    if key not in _executors:
        _executors[key] = _built_by_stock(mod, target, context)
    return _executors[key]


def _built_by_stock(
    mod: tvm.IRModule, target: str, context: dict[str, Any]
) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    with tvm.transform.PassContext(opt_level=3, **context):
        library = relay.build(mod, target=target)
    executor = graph_executor.GraphModule(library["default"](tvm.cpu(0)))

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        for name, array in inputs.items():
            executor.set_input(name, array)
        executor.run()
        return [executor.get_output(index).numpy() for index in range(executor.get_num_outputs())]

    return run


def run_by_tvm(body: relay.Expr, target: tvm.target.Target, **inputs: np.ndarray) -> np.ndarray:
    """Compile an expression by TVM alone, and run it."""
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=target)
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.run(**inputs)
    return module.get_output(0).numpy()


def check_same_bits(mod: tvm.IRModule, changed: tvm.transform.Pass) -> None:
    """A pass changes no bit of what a module computes."""
    mod = relay.transform.InferType()(mod)
    inputs = random_inputs(mod)
    before, after = (om.run_tvm(each, {}, inputs) for each in (mod, changed(mod)))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
