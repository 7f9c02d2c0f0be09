"""Guarded instructions and the routers of a program, as the executor reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.order.instructions import Instance, Instruction
from heteroplace.lower.program import (
    BranchGuard,
    CapacityCall,
    Operand,
    ProgramRouter,
    QueueInstruction,
    Waits,
    When,
    branch_call,
    branch_copy,
)
from heteroplace.lower.routed_lowering import GuardedProgram
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Guard
from heteroplace.parts.routing.lower.branches import decision_memory

Overflow = Literal["rounds", "drop", "error"]


class BranchProgram(GuardedProgram):
    """Writes the guarded instructions of one program, and notes where decisions are read.

    Parameters
    ----------
    instructions
        Of the program.
    tensor
        The program's tensor for a value in a memory.
    kernel
        The program's kernel for a symbol.
    """

    def __init__(
        self,
        calls: KernelCalls,
        cluster: Cluster,
        instructions: Sequence[Instruction],
        tensor: Callable[[int, int], int],
        kernel: Callable[[str], int],
    ) -> None:
        self._calls = calls
        self._cluster = cluster
        self._tensor = tensor
        self._kernel = kernel
        decided = {
            value
            for router in calls.routers
            for value in (router.loads, router.offsets, router.seats)
        }
        self._home: dict[int, int] = {}
        """Memory in which each value of a decision is made."""
        instances: dict[Instance, None] = {}
        for each in instructions:
            for value, memory in (*each.reads, *each.writes):
                if value in decided:
                    instances[value, memory] = None
                    if each.call is not None and (value, memory) in each.writes:
                        self._home[value] = memory
        self.read_late = tuple(instances)
        """What is read or recorded until the end of a request."""
        self._lines: dict[tuple[int, int], int] = {}
        """By router and memory."""

    def call(self, instruction: Instruction, memory: int, num_threads: int) -> QueueInstruction:
        """Return a guarded kernel call."""
        assert instruction.call is not None and instruction.guard is not None
        calls = [
            CapacityCall(
                variant.capacity,
                self._kernel(variant.kernel),
                tuple(self._operand(value, memory) for value in (*variant.reads, *variant.writes)),
            )
            for variant in self._calls.calls[instruction.call].variants
        ]
        guard = self._guard(instruction.guard, memory)
        return branch_call(instruction.step, guard, num_threads, calls)

    def copy(
        self, instruction: Instruction, source: Instance, target: Instance
    ) -> QueueInstruction:
        """Return a guarded copy."""
        assert instruction.guard is not None
        guard = self._guard(instruction.guard, source[1])
        ends = self._operand(*source), self._operand(*target)
        return branch_copy(instruction.step, guard, *ends)

    def routers(self, finished: Callable[[Instance], Waits]) -> tuple[ProgramRouter, ...]:
        """Return the lines of all routers.

        Parameters
        ----------
        finished
            After which a value is in a memory.
        """
        for number, router_values in enumerate(self._calls.routers):
            self._line(number, decision_memory(self._cluster, self._home[router_values.loads]))
        program_routers = []
        for number, memory in self._lines:
            router_values = self._calls.routers[number]
            router = router_values.router
            values = [
                router_values.loads,
                *(() if router_values.offsets is None else (router_values.offsets,)),
            ]
            there = {wait for value in values for wait in finished((value, memory))}
            seats = router_values.seats if self._home[router_values.loads] == memory else None
            program_routers.append(
                ProgramRouter(
                    router.name,
                    self._tensor(router_values.loads, memory),
                    None
                    if router_values.offsets is None
                    else self._tensor(router_values.offsets, memory),
                    None if seats is None else self._tensor(seats, memory),
                    cast(Overflow, router.overflow),
                    router.num_cells,
                    router_values.num_rows,
                    router.quantum,
                    router.capacities,
                    tuple(sorted(there)),
                )
            )
        return tuple(program_routers)

    def _guard(self, guard: Guard, memory: int) -> BranchGuard:
        line = self._line(guard.router, decision_memory(self._cluster, memory))
        return BranchGuard(line, guard.branch, cast(When, guard.when))

    def _line(self, router: int, memory: int) -> int:
        return self._lines.setdefault((router, memory), len(self._lines))

    def _operand(self, value: int, memory: int) -> Operand:
        owner = value
        while (alias_of := self._calls.values[owner].alias_of) is not None:
            owner = alias_of
        is_rows = self._calls.values[owner].rows is not None
        return Operand(self._tensor(value, memory), is_rows)
