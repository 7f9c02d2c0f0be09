"""Calls + plan -> when each call and copy is made, and what a routed buffer consists of.

Without routers every call is made in every run. The part `routing` extends `Guards` for calls in
branches (`parts/routing/lower/branches.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.lower.kernels import KernelCall, KernelCalls
from heteroplace.lower.order.instructions import Instance, root
from heteroplace.model.plan import Guard, Plan, guard_of


class Guards:
    """Guards of the calls and copies of one program; of a network without routers, none."""

    def __init__(self, calls: KernelCalls, plan: Plan) -> None:
        self._calls = calls
        self._plan = plan

    def spread(self, value: int) -> tuple[int, ...]:
        """Return the parts of a routed buffer; of any other value itself."""
        return (value,)

    def written(self, call: KernelCall) -> tuple[int, ...]:
        """Return what a call makes; of a routed buffer its parts."""
        return tuple(
            part for value in call.writes for part in self.spread(root(self._calls, value))
        )

    def places(self, memory_of: Mapping[int, int]) -> dict[Instance, tuple[Instance, int]]:
        """Return for values without bytes of their own where they are, as `Ordered.stored`.

        Parameters
        ----------
        memory_of
            For each value the memory in which it is made.
        """
        inside: dict[Instance, tuple[Instance, int]] = {}
        for value, memory in memory_of.items():
            before = self._calls.values[value].in_place_of
            if before is not None:
                inside[value, memory] = (root(self._calls, before), memory), 0
        return inside

    def of_call(self, call: KernelCall, step: int) -> Guard | None:
        """Return when a call is made that carries out a step of the plan; None: in every run."""
        return None

    def of_copy(self, value: int, step: int | None) -> Guard | None:
        """Return when a value is copied to another memory; None: in every run.

        Parameters
        ----------
        step
            The plan's, if it has one.
        """
        return None if step is None else guard_of(self._plan.steps[step])

    def decision(self, guard: Guard | None, memory: int) -> tuple[Instance, ...]:
        """Return what says whether a guard of what is done at a memory holds."""
        assert guard is None, "a guard without a router"
        return ()
