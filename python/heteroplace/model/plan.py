"""A plan: the ordered program of run and copy steps. It says where and in which order.

When each step starts is a `Timeline`. The schedule is the order of the program (DistIR, section 2):
each unit (core, GPU) and each channel serves one step at a time, in list order; a run takes its
device's units, a copy takes every channel of its route at once; a step starts when all its
resources are free and its tensors are in its memory. So a plan has exactly one timeline for given
costs, found in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """Run a task on a device."""

    task: int
    device: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a tensor from one memory to another."""

    tensor: int
    src: int
    """Memory it is read from; it must be there already."""
    dst: int
    route: tuple[int, ...]
    """Ids of the links it goes over."""


Step = Run | Copy


@dataclass(frozen=True)
class Plan:
    """Where every task runs, in which order, and which copies that needs."""

    graph_digest: str
    cluster_digest: str
    steps: tuple[Step, ...]
    """In an order that respects dependencies; per resource it is the order of service."""
    origin: str
    """Solver, options and seed that made it."""
    reasons: tuple[str, ...] = ()
    """For each task why it is where it is; empty: not explained yet."""

    def placement(self, num_tasks: int) -> tuple[int, ...]:
        """Return the device id of each task; -1 where the plan does not run it."""
        devices = [-1] * num_tasks
        for step in self.steps:
            if isinstance(step, Run):
                devices[step.task] = step.device
        return tuple(devices)

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The copy steps in plan order."""
        return tuple(step for step in self.steps if isinstance(step, Copy))
