"""The lowering of routed networks, as the core calls it: a plugin of the seam `routers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tvm

from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.order.guards import Guards
from heteroplace.lower.order.instructions import Instance, Instruction
from heteroplace.lower.program import ProgramRouter, QueueInstruction, Waits
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.routed.speculation import PlannedPrediction
from heteroplace.registry import load_plugin


class GuardedProgram:
    """The guarded instructions and the routers of one program; without routers, none."""

    read_late: tuple[Instance, ...] = ()
    """Values that are read until the end of a request."""

    def call(self, instruction: Instruction, memory: int, num_threads: int) -> QueueInstruction:
        """Return a guarded kernel call."""
        raise AssertionError("a guard without a router")

    def copy(
        self, instruction: Instruction, source: Instance, target: Instance
    ) -> QueueInstruction:
        """Return a guarded copy."""
        raise AssertionError("a guard without a router")

    def routers(self, finished: Callable[[Instance], Waits]) -> tuple[ProgramRouter, ...]:
        """Return the routers; `finished` says after which instructions a value is in a memory."""
        return ()


class RoutedLowering(Protocol):
    """From a network with routers to its program."""

    def lower_network(
        self,
        mod: tvm.IRModule,
        graph: TaskGraph,
        targets: tuple[tvm.target.Target, ...],
        target_of_task: Mapping[str, int],
    ) -> KernelCalls:
        """Return the kernel calls, those in branches with a variant for each capacity."""

    def at_capacity(self, calls: KernelCalls, capacity: int) -> KernelCalls:
        """Return the calls of all branches at one capacity, to be measured."""

    def without_row_copies(
        self, calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan
    ) -> KernelCalls:
        """Return the calls with less data to move."""

    def with_planned_steps(self, calls: KernelCalls, graph: TaskGraph, plan: Plan) -> KernelCalls:
        """Return the calls with the predicted runs and the loads of weights that a plan has."""

    def guards(self, calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan) -> Guards:
        """Return when calls and copies are made."""

    def load_copies(
        self, calls: KernelCalls, plan: Plan, spans: Mapping[int, tuple[int, int]]
    ) -> list[Instruction]:
        """Return the copies of weights that a plan loads; `spans`: start and finish of steps."""

    def guarded_program(
        self,
        calls: KernelCalls,
        cluster: Cluster,
        instructions: Sequence[Instruction],
        tensor: Callable[[int, int], int],
        kernel: Callable[[str], int],
    ) -> GuardedProgram:
        """Return what writes guarded instructions, given the program's tensors and kernels."""

    def with_predictions(
        self, lowered: Lowered, predictions: Sequence[PlannedPrediction]
    ) -> Lowered:
        """Return the program with what is predicted from the first run on, and until when."""


def routed_lowering() -> RoutedLowering:
    """Return the lowering that is installed; only networks with routers need it.

    Raises
    ------
    PluginError
        There is none.
    """
    lowering: RoutedLowering = load_plugin("routers", "lowering")
    return lowering


def guards_of(calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan) -> Guards:
    """Return when the calls and copies of a plan are made."""
    if calls.routers:
        return routed_lowering().guards(calls, graph, cluster, plan)
    return Guards(calls, plan)


def guarded_program(
    calls: KernelCalls,
    cluster: Cluster,
    instructions: Sequence[Instruction],
    tensor: Callable[[int, int], int],
    kernel: Callable[[str], int],
) -> GuardedProgram:
    """Return the guarded instructions of a program; parameters as of `RoutedLowering`."""
    if calls.routers:
        return routed_lowering().guarded_program(calls, cluster, instructions, tensor, kernel)
    return GuardedProgram()
