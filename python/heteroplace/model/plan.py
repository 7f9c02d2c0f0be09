"""A plan: the ordered program of run, copy and collective steps. It says where and in which order.

When each step starts is a `Timeline`. The schedule is the order of the program (DistIR, section 2):
each unit (core, GPU) and whatever copies contend for (`Cluster.link_resources`) serves one step at
a time, in list order; a run takes its device's units, a copy takes what every link of its route
occupies, all at once; a step starts when all that is free and its tensors are in its memory. So a
plan has exactly one timeline for given costs, found in one pass. A collective (DistIR, section 2:
an op on several devices) takes the units of all its devices and the links between them; where all
these devices have copy engines, the links only.

A plan may be for several items (model inputs) at once, as DiviML's (section II): a run of several
items is one batch, a copy of several items is one transfer of all their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """Run a task on a device."""

    task: int
    device: int
    items: tuple[int, ...] = (0,)
    """Which of the plan's items form this batch, ascending."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a tensor from one memory to another."""

    tensor: int
    src: int
    """Memory it is read from; it must be there already."""
    dst: int
    route: tuple[int, ...]
    """Ids of the links it goes over."""
    items: tuple[int, ...] = (0,)
    """For which of the plan's items, ascending."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Run a task whose op is a collective over several devices at once."""

    task: int
    devices: tuple[int, ...]
    """In rank order: that of sums and of parts."""
    items: tuple[int, ...] = (0,)
    """For which of the plan's items, ascending."""
    root: int = 0
    """Position in `devices` of the one that gives (broadcast, scatter) or gets (reduce, gather)
    it."""


Step = Run | Copy | Collective

MOVED_BY_HAND = "; moved by hand: "
"""In the origin of a plan, before the tasks that were moved after a solver had made it."""


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
    items: int = 1
    """Number of model inputs that it serves, called item 0, 1, ..."""

    def placement(self, num_tasks: int) -> tuple[int, ...]:
        """Return the device id of each task; -1 where the plan does not run it.

        If several devices share the items of a task, the last one in plan order; of a collective
        its first device.
        """
        devices = [-1] * num_tasks
        for step in self.steps:
            if not isinstance(step, Copy):
                devices[step.task] = next(iter(devices_of(step)), -1)
        return tuple(devices)

    def devices_of_tasks(self, num_tasks: int) -> tuple[tuple[int, ...], ...]:
        """Return the device ids of each task, ascending; several share its items, or it is a
        collective."""
        devices: list[set[int]] = [set() for _ in range(num_tasks)]
        for step in self.steps:
            if not isinstance(step, Copy):
                devices[step.task].update(devices_of(step))
        return tuple(tuple(sorted(found)) for found in devices)

    @property
    def moved_by_hand(self) -> str:
        """What was moved, e.g. "conv2d.3 cpu.0 -> cpu.1"; "": nothing."""
        return self.origin.partition(MOVED_BY_HAND)[2]

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The copy steps in plan order."""
        return tuple(step for step in self.steps if isinstance(step, Copy))

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collective steps in plan order."""
        return tuple(step for step in self.steps if isinstance(step, Collective))


def devices_of(step: Step) -> tuple[int, ...]:
    """Return the devices that a step is run on, in rank order; () for a copy."""
    if isinstance(step, Run):
        return (step.device,)
    return step.devices if isinstance(step, Collective) else ()
