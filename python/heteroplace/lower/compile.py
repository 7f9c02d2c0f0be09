"""Network + where each task's target is -> kernel calls and one compiled library.

`CompiledNetwork` is the value that goes from measuring to building: what was lowered or compiled to
measure a network is not made again to build it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm

from heteroplace.entries import load_entry
from heteroplace.lower.kernel_provider import Tunings
from heteroplace.lower.kernels import Kernel, KernelCalls
from heteroplace.lower.library import KernelCompiler, KernelLibrary, compile_kernels
from heteroplace.lower.routed_lowering import routed_lowering
from heteroplace.lower.segment_calls import lower_segments
from heteroplace.lower.segments import cut_segments
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.step_values import versioned_tensors
from heteroplace.relay.ranges.bounds import interval_of
from heteroplace.relay.ranges.legal import legal_inputs
from heteroplace.relay.targets import placed_targets, sharing_layouts
from heteroplace.relay.tasks.network import Network
from heteroplace.relay.types_once import types_once
from heteroplace.stage_log import Count
from heteroplace.tvm_bridge import register_cuda_compiler

_LOWER_ITEMS = "heteroplace.lower.items.items:lower_items"
"""Loaded for a plan of several items."""

TaskTargets = tuple[str, ...]
"""For each task the text of the target that it is compiled for."""


@dataclass(frozen=True)
class CompiledKernels:
    """Kernel calls of a network, each task for one target, and the library of the kernels."""

    calls: KernelCalls
    library: KernelLibrary


@dataclass(frozen=True)
class CompiledNetwork:
    """A network with the kernels that were made of it so far.

    Kernels are lowered, and compiled, when they are first asked for, once for each assignment of
    targets to tasks. Not thread-safe, but for `kernels` beside a measurement in another thread.
    """

    network: Network
    _calls: dict[TaskTargets, KernelCalls]
    _kernels: dict[TaskTargets, CompiledKernels]
    _parts: dict[Hashable, Any] = field(default_factory=dict)
    """As `lower_items` takes and fills it."""
    _libraries: dict[tuple[Kernel, ...], KernelLibrary] = field(default_factory=dict)
    """Of the kernels of plans with collectives and shared tensors."""
    _routed: CompiledNetwork | None = None
    """The network as it is; None: that is this one."""
    _capacity: int = 0
    """At which all branches are, if it is not."""

    @classmethod
    def of(cls, network: Network) -> CompiledNetwork:
        """Begin with nothing compiled."""
        return cls(network, {}, {})

    @property
    def graph(self) -> TaskGraph:
        """The task graph."""
        return self.network.graph

    def with_graph(self, graph: TaskGraph) -> CompiledNetwork:
        """Return the same with more known of its tasks; see `Network.with_graph`."""
        return replace(self, network=self.network.with_graph(graph))

    def at_capacity(self, capacity: int) -> CompiledNetwork:
        """Return the network with all branches at a capacity, to be measured; its kernels are
        those of this one."""
        return CompiledNetwork(self.network, {}, {}, _routed=self, _capacity=capacity)

    def calls(
        self,
        cluster: Cluster,
        placement: Sequence[int],
        on_kernel: Count | None = None,
        *,
        compiles: bool = False,
    ) -> KernelCalls:
        """Return the kernel calls.

        Parameters
        ----------
        cluster
            Its devices say the targets.
        placement
            Device id of each task, [num_tasks].
        on_kernel
            Counts the kernels.
        compiles
            Kernels of CPUs are compiled too, on all cores, because `kernels` will be asked for.

        Raises
        ------
        LoweringError
            An op cannot be compiled for its target.
        """
        targets, target_of_task = placed_targets(self.graph, cluster, placement)
        key = task_targets(self.graph, cluster, placement)
        if key not in self._calls and self._routed is not None:
            whole = self._routed.calls(cluster, placement)
            self._calls[key] = routed_lowering().at_capacity(whole, self._capacity)
        elif key not in self._calls:
            compiler = KernelCompiler() if compiles else None
            calls = self._lowered(targets, target_of_task, on_kernel, compiler)
            self._calls[key] = _with_inputs(calls, self.network)
        return self._calls[key]

    @types_once()
    def _lowered(
        self,
        targets: tuple[tvm.target.Target, ...],
        target_of_task: dict[str, int],
        on_kernel: Count | None,
        compiler: KernelCompiler | None,
    ) -> KernelCalls:
        mod, tunings = self.network.mod, self.network.tunings
        if self.graph.routers:
            return routed_lowering().lower_network(mod, self.graph, targets, target_of_task)
        return lower_network(mod, targets, target_of_task, tunings, on_kernel, compiler)

    def kernels(
        self, cluster: Cluster, placement: Sequence[int], on_kernel: Count | None = None
    ) -> CompiledKernels:
        """Return the kernel calls with their library; parameters and errors as of `calls`."""
        key = task_targets(self.graph, cluster, placement)
        if key not in self._kernels:
            calls = self.calls(cluster, placement, compiles=True)
            if self._routed is None:
                library = compile_kernels(calls.kernels.values(), on_kernel)
            else:
                library = self._routed.kernels(cluster, placement, on_kernel).library
            self._kernels[key] = CompiledKernels(calls, library)
        return self._kernels[key]

    def kernels_of(
        self, cluster: Cluster, plan: Plan, on_kernel: Count | None = None
    ) -> CompiledKernels:
        """Return the kernels that a plan runs: for several items, those of all its batch sizes;
        for collectives and shared tensors, those of each member and each memory.

        Raises
        ------
        UnsupportedRelayError
            The plan is for several items, and the network cannot serve them together.
        LoweringError
            As `calls`.
        """
        is_versioned = bool(versioned_tensors(self.graph))
        if plan.items == 1 and not is_versioned:
            return self.kernels(cluster, plan.placement(len(self.graph.tasks)), on_kernel)
        calls: KernelCalls = load_entry(_LOWER_ITEMS)(
            self.network.mod, self.graph, cluster, plan, self._parts
        )
        # Examples are of one item.
        calls = _with_inputs(calls, replace(self.network, examples={}))
        kernels = tuple(calls.kernels.values())
        if not is_versioned:
            return CompiledKernels(calls, compile_kernels(kernels, on_kernel))
        if kernels not in self._libraries:  # plans of equal parts have the same kernels
            self._libraries[kernels] = compile_kernels(kernels, on_kernel)
        return CompiledKernels(calls, self._libraries[kernels])

    def known_kernels(self, cluster: Cluster, placement: Sequence[int]) -> CompiledKernels | None:
        """Return the kernels if they are lowered already; what is not compiled is compiled then,
        as lowering again takes longer."""
        is_known = task_targets(self.graph, cluster, placement) in self._calls
        return self.kernels(cluster, placement) if is_known else None

    def add(self, targets: TaskTargets, kernels: CompiledKernels) -> None:
        """Take kernels that were compiled elsewhere."""
        self._calls[targets], self._kernels[targets] = kernels.calls, kernels


def task_targets(graph: TaskGraph, cluster: Cluster, placement: Sequence[int]) -> TaskTargets:
    """Return the text of each task's target."""
    targets, target_of_task = placed_targets(graph, cluster, placement)
    texts = [f"{target} host {target.host}" for target in targets]
    return tuple(texts[target_of_task[task.name]] for task in graph.tasks)


def lower_network(
    mod: tvm.IRModule,
    targets: tuple[tvm.target.Target, ...],
    target_of_task: dict[str, int],
    tunings: Tunings | None = None,
    on_kernel: Count | None = None,
    compiler: KernelCompiler | None = None,
) -> KernelCalls:
    """Optimise each target's part of a neutral module and lower it.

    Targets that differ only in who made the kernels have one part, with the layouts of the one
    without another maker's key.

    Parameters
    ----------
    mod
        Neutral module whose spans name the tasks.
    targets
        The distinct targets.
    target_of_task
        For each task the position of its target.
    tunings, on_kernel, compiler
        As of `lower_segments`.

    Raises
    ------
    LoweringError
        An op cannot be compiled for its target, or belongs to no task.
    """
    if any(target.kind.name == "cuda" for target in targets):
        register_cuda_compiler()
    shared = sharing_layouts(targets)
    segment_of_task = {task: shared[target] for task, target in target_of_task.items()}
    others = {
        task: targets[target]
        for task, target in target_of_task.items()
        if target != segment_of_task[task]
    }
    segments, outputs = cut_segments(mod, targets, segment_of_task, own_targets=others)
    return lower_segments(
        segments, mod["main"].params, outputs, others, tunings, on_kernel, compiler
    )


def _with_inputs(calls: KernelCalls, network: Network) -> KernelCalls:
    """Note what the inputs may be when kernels are measured."""
    main = network.mod["main"]
    legal = legal_inputs(main)
    for parameter in main.params:
        example = network.examples.get(parameter.name_hint)
        if example is not None:
            legal[parameter] = interval_of(example)
    by_name = {parameter.name_hint: interval for parameter, interval in legal.items()}
    values = [
        value
        if value.input_name is None
        else replace(
            value,
            range=by_name.get(value.input_name),
            example=network.examples.get(value.input_name),
            initial=None if value.memory is None else network.state.get(value.input_name),
        )
        for value in calls.values
    ]
    return replace(calls, values=tuple(values))
