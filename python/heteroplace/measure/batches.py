"""A network at small batch sizes -> what its tasks and its memory cost at each, and at a large one.

Celeritas ("Celeritas: Fast Optimizer for Large Dataflow Graphs", section 4.1), step 1 of its
Standard Evaluation, on one device. Unlike Celeritas, small batches are run with the memory traffic
of the large one (`transfers/traffic.py`), without which their times say little about memory-bound
kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm

from heteroplace.costs.prediction.regression import fit_batches
from heteroplace.costs.standard_evaluation import check_same_tasks, estimate_graph
from heteroplace.errors import MissingCostError
from heteroplace.lower.compile import CompiledKernels, CompiledNetwork, lower_network
from heteroplace.lower.library import compile_kernels
from heteroplace.lower.lower import lower
from heteroplace.measure.devices_under_test import device_class
from heteroplace.measure.kernels.kernel_calls import with_kernel_workspaces
from heteroplace.measure.plan_program import serial_plan, serial_program
from heteroplace.measure.rounds import ROUND_NS, Rounds, sample_until_settled
from heteroplace.measure.transfers.traffic import SPACER, spacer_kernel, with_traffic
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.targets import cluster_targets
from heteroplace.relay.tasks.network import Network, cut_network
from heteroplace.relay.tasks.rebatch import rebatch
from heteroplace.run.missing_devices import missing_devices

MAX_BYTES = 1 << 62
"""A memory in which everything fits."""

_NUM_ROUNDS = 5


@dataclass(frozen=True)
class BatchProgram:
    """A network of one batch size, compiled for one device."""

    batch: int
    graph: TaskGraph
    """With the workspaces of the compiled kernels."""
    cluster: Cluster
    device: int
    compiled: CompiledKernels
    """The spacer is among its kernels, but not in its calls."""

    @property
    def placement(self) -> list[int]:
        """The device, for every task."""
        return [self.device] * len(self.graph.tasks)

    def rounds(self, large: int | None = None) -> Rounds:
        """Return the program to run: as it is, or with the traffic of a batch of `large`.

        Traffic is for CPUs alone: what a GPU keeps in its cache from kernel to kernel matters less,
        and the ring would have to be copied there for every run.

        Raises
        ------
        InfeasibleError
            The device's memory is too small.
        """
        compiled = self.compiled
        if large is not None and self.cluster.devices[self.device].kind == "cpu":
            calls = compiled.calls
            spaced = with_traffic(calls, calls.kernels[SPACER], large / self.batch)
            compiled = replace(compiled, calls=spaced)
        program = serial_program(compiled, self.graph, self.cluster, self.placement)
        return Rounds(program, ROUND_NS)

    def peak_bytes(self) -> int:
        """Return what the program needs in the device's memory; nothing is allocated."""
        ample = replace(
            self.cluster,
            memories=tuple(replace(memory, bytes=MAX_BYTES) for memory in self.cluster.memories),
        )
        plan = serial_plan(self.graph, ample, self.placement)
        uses = lower(self.compiled.calls, self.graph, ample, plan, None).memory
        return uses[self.cluster.devices[self.device].memory].total_bytes


def compile_batch(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray],
    cluster: Cluster,
    device: int,
    batch: int,
    inputs: Collection[str] | None = None,
) -> BatchProgram:
    """Compile `mod`, whose inputs hold one item, for `batch` items on one device.

    Parameters
    ----------
    params
        Weights that are not bound yet.
    inputs
        Names of the inputs that hold items; None: all that are not in `params`.

    Raises
    ------
    UnsupportedRelayError
        The network cannot be given another batch size.
    LoweringError
        An op cannot be compiled for the device.
    MissingCostError
        The device is not in this machine, or some task may not run on it.
    """
    absent = missing_devices(cluster, [cluster.devices[device].name])
    if absent:
        raise MissingCostError(f"cannot measure batches: {absent[0]}")
    names = [parameter.name_hint for parameter in mod["main"].params]
    items = [name for name in names if name not in params] if inputs is None else inputs
    network = cut_network(rebatch(mod, batch, items), params)
    graph = network.graph
    targets, target_of_device = cluster_targets(cluster)
    position = target_of_device[device]
    target_of_task = {task.name: position for task in graph.tasks}
    calls = lower_network(network.mod, targets, target_of_task)
    calls = replace(calls, kernels={**calls.kernels, SPACER: spacer_kernel(targets[position])})
    compiled = CompiledKernels(calls, compile_kernels(list(calls.kernels.values())))
    return BatchProgram(batch, with_kernel_workspaces(graph, calls), cluster, device, compiled)


def of_batch(single: CompiledNetwork, batch: int) -> CompiledNetwork:
    """Return the network for several items at once; its tasks keep their names.

    Of a network with routers: with its branches at that capacity.
    """
    if single.graph.routers:
        return single.at_capacity(batch)
    mod = rebatch(single.network.mod, batch)
    network = Network(single.graph, mod)
    examples = {}
    for parameter in mod["main"].params:
        example = single.network.examples.get(parameter.name_hint)
        if example is not None:
            sizes = zip(static_shape(parameter.checked_type), example.shape, strict=True)
            examples[parameter.name_hint] = np.tile(example, [new // old for new, old in sizes])
    return CompiledNetwork.of(network.with_examples(examples))


@dataclass(frozen=True)
class BatchMeasurement:
    """What was measured at several batch sizes, and what follows for a large one."""

    large: int
    """The batch that was predicted."""
    graphs: Mapping[int, TaskGraph]
    """By measured batch size."""
    tables: Mapping[int, CostTable]
    """By measured batch size: times with the traffic of the large batch."""
    peak_bytes: Mapping[int, int]
    """By measured batch size: weights, values and scratch memory of the compiled program."""

    @property
    def large_graph(self) -> TaskGraph:
        """The graph at the large batch; raises as `estimate_graph`."""
        return estimate_graph(self.graphs, self.large)

    @property
    def large_peak_bytes(self) -> int:
        """The program's memory at the large batch, by a line in the batch."""
        sizes = sorted(self.peak_bytes)
        values = [self.peak_bytes[size] for size in sizes]
        return round(fit_batches(sizes, values, "memory").predict(self.large))


def measure_batches(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray],
    cluster: Cluster,
    device: int,
    small: Sequence[int],
    large: int,
    inputs: Collection[str] | None = None,
) -> BatchMeasurement:
    """Measure a network at small batch sizes, in interleaved rounds; see `compile_batch`.

    Times of devices that cannot be told apart from `device` (same target, same number of cores)
    are given to them all; other devices are unknown in the tables.

    Raises
    ------
    As `compile_batch`; CostMismatchError if the batch sizes have different tasks; InfeasibleError
    if a batch does not fit: measure at smaller ones.
    """
    programs = {
        batch: compile_batch(mod, params, cluster, device, batch, inputs) for batch in small
    }
    graphs = {batch: program.graph for batch, program in programs.items()}
    check_same_tasks(graphs)
    rounds = {batch: program.rounds(large) for batch, program in programs.items()}
    sample_until_settled(rounds.values(), _NUM_ROUNDS)
    tables = {
        batch: device_table(graphs[batch], cluster, device, of_batch.task_times())
        for batch, of_batch in rounds.items()
    }
    peaks = {batch: program.peak_bytes() for batch, program in programs.items()}
    return BatchMeasurement(large, graphs, tables, peaks)


def device_table(
    graph: TaskGraph, cluster: Cluster, device: int, times: Sequence[int]
) -> CostTable:
    """Return the table that knows the times of one device and of those like it, and no others."""

    def cost(task: int, index: int) -> Cost:
        same = device_class(cluster, index) == device_class(cluster, device)
        return Cost.measured(times[task]) if same else Cost.unknown()

    return build_table(graph, cluster, cost)
