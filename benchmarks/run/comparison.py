"""Place one network in several ways, build each, and measure all of them beside the stock peers.

All are timed from arrays to arrays, by Python's clock: inputs and outputs are copied by each.
The ways share everything that does not depend on the placement: the network is optimised, compiled
and measured once, on the whole cluster; a part of the cluster gets its part of the cost table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from benchmarks.differences import largest_difference
from benchmarks.peers.stock import (
    StockExecutor,
    build_stock,
    cpu_seconds,
    in_pass_context,
)
from heteroplace import pipeline
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import local_cluster
from heteroplace.measure.cost_models import CostOptions, choose_cost_model
from heteroplace.measure.devices_under_test import DeviceClass, device_class
from heteroplace.measure.timed_runs import (
    TimedRuns,
    Timer,
    cluster_cores,
    on_cores,
    time_in_turns,
    time_runs,
)
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import with_devices
from heteroplace.parts.onnx.peer_runtimes import OnnxExecutor, RuntimeExecutor
from heteroplace.pipeline import CostedNetwork
from heteroplace.run.executor import Executor
from heteroplace.solve import SolveOptions
from heteroplace.stage_log import StageLog
from zoo.models.catalogue import Model

Say = Callable[[str], None]
"""Called with a line of text whenever something long begins."""
Key = TypeVar("Key")

CHOSEN = "chosen"
"""Name of the plan that may use every device."""
STOCK_ONE = "stock TVM, first device's cores"
STOCK_ALL = "stock TVM, all cores"
ONNXRUNTIME = "onnxruntime, one core"


@dataclass(frozen=True)
class Prepared:
    """A network that is optimised, compiled and costed for a cluster, but not placed."""

    model: Model
    costed: CostedNetwork
    compile_s: float
    """Processor seconds from Relay to a library of kernels, without the import."""

    @property
    def graph(self) -> TaskGraph:
        """The tasks."""
        return self.costed.graph


@dataclass(frozen=True)
class ComparisonOptions:
    """How much time to spend."""

    time_limit_s: float = 5.0
    """Of the solver, for each plan."""
    num_rounds: int = 21
    turn_ns: int = 40_000_000
    """See `time_in_turns`."""
    say: Say = lambda line: None


@dataclass(frozen=True)
class Comparison:
    """One network: its plans, and what was measured."""

    model: Model
    prepared: Prepared
    executables: Mapping[str, Executable]
    """By name of the plan: CHOSEN, and single devices."""
    executors: Mapping[str, Executor]
    """As `executables`."""
    timed: TimedRuns
    """Times of all plans and peers."""
    outputs: Mapping[str, list[np.ndarray]] = field(repr=False)
    """As `timed`."""
    stock_compile_s: float
    """Processor seconds of stock TVM: import and build."""

    @property
    def compile_s(self) -> float:
        """Processor seconds of our import, passes and code generation."""
        return self.model.import_s + self.prepared.compile_s

    @property
    def single_names(self) -> tuple[str, ...]:
        """Plans of a single device."""
        return tuple(name for name in self.executables if name != CHOSEN)

    def measured_single_ns(self) -> dict[str, int]:
        """Return the measured time of each plan of a single device."""
        return {name: self.timed.median_ns(name) for name in self.single_names}

    def difference(self, name: str, other: str) -> float | None:
        """Return the largest difference of two sets of outputs; None: one does not exist."""
        if name not in self.outputs or other not in self.outputs:
            return None
        return largest_difference(self.outputs[name], self.outputs[other])


def prepare_model(model: Model, cluster: Cluster, say: Say = lambda line: None) -> Prepared:
    """Optimise, compile and measure `model` on every device of a cluster of one target."""
    costs = choose_cost_model("measure", CostOptions(progress=say))
    log = StageLog(say)
    with in_pass_context():
        compiled = compile_once(model, cluster, log)
        costed = pipeline.cost(compiled, cluster, costs, log)
    return Prepared(model, costed, log.cpu_s("prepare", "compile", "kernels"))


def compile_once(model: Model, cluster: Cluster, log: StageLog | None = None) -> CompiledNetwork:
    """Cut `model` into tasks and compile all its kernels for the first device's target."""
    costs = choose_cost_model("measure", CostOptions())
    network = pipeline.prepare(model.mod, model.params, log)
    compiled = pipeline.compile(network, cluster, costs, log)
    with (log or StageLog()).stage("kernels"):
        compiled.kernels(cluster, [0] * len(compiled.graph.tasks))
    return compiled


def place_on(prepared: Prepared, names: tuple[str, ...], time_limit_s: float) -> Executable:
    """Place a prepared network on some devices and build it."""
    costed = prepared.costed.on(names)
    with in_pass_context():
        solution = pipeline.solve(costed, SolveOptions(time_limit_s=time_limit_s))
        return pipeline.build(costed.compiled, solution)


def plan_names(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Return the plans to compare: name -> devices it may use.

    Of single devices, one of each kind (target and number of cores).
    """
    plans = {CHOSEN: tuple(device.name for device in cluster.devices)}
    first_of: dict[DeviceClass, str] = {}
    for index, device in enumerate(cluster.devices):
        first_of.setdefault(device_class(cluster, index), device.name)
    return plans | {name: (name,) for name in first_of.values()}


def compare_plans(model: Model, cluster: Cluster, options: ComparisonOptions) -> Comparison:
    """Place, build and measure `model` on a cluster of CPU devices, and measure the peers."""
    say = options.say
    # Stock first: costs and the runs that are held against them should be close in time.
    say("compiling with stock TVM")
    start = cpu_seconds()
    mod, params, inputs = model.stock()
    library = build_stock(mod, params, cluster.devices[0].target)
    stock_compile_s = cpu_seconds() - start
    prepared = prepare_model(model, cluster, say)
    executables = {}
    for name, devices in plan_names(cluster).items():
        say(f"placing {len(prepared.graph.tasks)} tasks on {', '.join(devices)}")
        executables[name] = place_on(prepared, devices, options.time_limit_s)
    say("loading")
    executors = {name: Executor(executable) for name, executable in executables.items()}
    peers = _peers(model, cluster, library, inputs)
    outputs = {name: executor.run(model.inputs) for name, executor in executors.items()}
    outputs.update({name: peer.run() for name, peer in peers.items()})
    say(f"measuring {len(executors)} plans and {len(peers)} peers in {options.num_rounds} rounds")
    timed = time_in_turns(
        call_timers(executors, peers, model.inputs),
        num_rounds=options.num_rounds,
        turn_ns=options.turn_ns,
        core_to_core_ns=core_to_core_probe(executors),
    )
    for peer in peers.values():
        peer.close()
    return Comparison(model, prepared, executables, executors, timed, outputs, stock_compile_s)


def _peers(
    model: Model, cluster: Cluster, library: object, inputs: Mapping[str, np.ndarray]
) -> dict[str, StockExecutor | OnnxExecutor]:
    first = cluster.devices[0].cores
    most = max((device.cores for device in cluster.devices), key=len)
    peers: dict[str, StockExecutor | OnnxExecutor] = {
        STOCK_ONE: StockExecutor(library, inputs, first),
        STOCK_ALL: StockExecutor(library, inputs, most),
    }
    if model.onnx_model is not None:
        peers[ONNXRUNTIME] = OnnxExecutor(model.onnx_model, model.inputs, first[:1])
    return peers


def widest_cpu() -> Cluster:
    """Return this machine with one device, the CPU with most cores."""
    cluster = local_cluster(has_gpus=False)
    widest = max(range(len(cluster.devices)), key=lambda at: len(cluster.devices[at].cores))
    return with_devices(cluster, [widest])


def call_timers(
    executors: Mapping[Key, Executor],
    peers: Mapping[Key, StockExecutor | RuntimeExecutor],
    inputs: Mapping[str, np.ndarray],
) -> dict[Key, Timer]:
    """Return what times calls of ours and of the peers, all from arrays to arrays.

    Each is called by a thread on its own cores, ours on those of the devices that the plan may use.
    """
    ours = {
        key: on_cores(
            partial(time_runs, partial(executor.run, inputs)),
            cluster_cores(executor.solution.cluster),
        )
        for key, executor in executors.items()
    }
    return ours | {key: peer.time_calls for key, peer in peers.items()}


def core_to_core_probe(executors: Mapping[str, Executor]) -> Callable[[], int | None] | None:
    """Return the probe of the first plan that has two workers; None: no plan has."""
    for executor in executors.values():
        if executor.core_to_core_ns() is not None:
            return executor.core_to_core_ns
    return None
