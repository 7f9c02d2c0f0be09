"""A plan: the ordered program of run, copy, collective and load steps: where, and in which order.

When each step starts is a `Timeline`. The schedule is the order of the program (DistIR, section 2):
each unit (core, GPU) and whatever copies contend for (`Cluster.link_resources`) serves one step at
a time, in list order; a run takes its device's units, a copy takes what every link of its route
occupies, all at once; a step starts when all that is free and its tensors are in its memory. So a
plan has exactly one timeline for given costs, found in one pass. A collective (DistIR, section 2:
an op on several devices) takes the units of all its devices and the links between them; where all
these devices have copy engines, the links only.

Of a routed network (`model.routers`) steps may be guarded: they are made only in runs whose router
says so. The order holds for every run; a skipped step takes no time.

A plan may be for several items (model inputs) at once, as DiviML's (section II): a run of several
items is one batch, a copy of several items is one transfer of all their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from heteroplace.model.answers import answerer

WHEN = ("active", "predicted", "missed")
"""When a guarded step is made: the branch has a load; a prediction said, before the router did,
that it will have one; it has one, and the prediction did not say so."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Makes a step depend on what a router decides, or is predicted to decide, in the run.

    What "predicted" makes and nothing then needs is never read; "predicted" and "missed" together
    are "active". A step that is skipped takes no time, and counts as done at once.
    """

    router: int
    """Id of the router."""
    branch: int
    when: str = "active"
    """One of WHEN."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run a task on a device."""

    task: int
    device: int
    items: tuple[int, ...] = (0,)
    """Which of the plan's items form this batch, ascending."""
    guard: Guard | None = None
    """When it is run; None: in every run."""


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
    guard: Guard | None = None
    """When it is made; None: in every run. Of a tensor in a routed buffer it is only the rows that
    the branch has then."""


@dataclass(frozen=True, slots=True)
class Load:
    """Bring the own weights of tasks (`Task.weight_bytes`) from where they are kept to where the
    tasks run; they are given up there after the last of these runs in plan order.

    Tasks that are never loaded have their weights where they run from the start. Weights that tasks
    share stay there too.
    """

    tasks: tuple[int, ...]
    """Ascending; they are one transfer."""
    src: int
    """Memory where the weights are kept from run to run."""
    dst: int
    """Memory of the devices that run the tasks."""
    route: tuple[int, ...]
    """Ids of the links it goes over."""
    guard: Guard | None = None
    """When it is made; None: in every run."""
    place: tuple[int, int] | None = None
    """Where in the room for weights of `dst` they lie: (first byte, bytes). Others may lie there
    before and after them (`model.weight_room`). None: in bytes of their own."""
    items: ClassVar[tuple[int, ...]] = (0,)
    """A plan that loads weights is of one item."""


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


Step = Run | Copy | Collective | Load

MOVED_BY_HAND = "; moved by hand: "
"""In the origin of a plan, before the tasks that were moved after a solver had made it."""
PLACED_AGAIN = "; placed again: "
"""In the origin of a plan, before the reason why it replaced the plan that a module carried."""


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
    weights_budget: int | None = None
    """Most bytes that the weights of branches take at any time in each memory where branches run;
    None: as many as there are."""

    def __repr__(self) -> str:
        return str(answerer("plan_repr")(self))

    def _repr_html_(self) -> str:
        """Return how much each device does, as a table for a notebook."""
        return str(answerer("plan_html")(self))

    def placement(self, num_tasks: int) -> tuple[int, ...]:
        """Return the device id of each task; -1 where the plan does not run it.

        If several devices share the items of a task, the last one in plan order; of a collective
        its first device.
        """
        devices = [-1] * num_tasks
        for step in self.steps:
            if isinstance(step, (Run, Collective)):
                devices[step.task] = next(iter(devices_of(step)), -1)
        return tuple(devices)

    def devices_of_tasks(self, num_tasks: int) -> tuple[tuple[int, ...], ...]:
        """Return the device ids of each task, ascending; several share its items, or it is a
        collective."""
        devices: list[set[int]] = [set() for _ in range(num_tasks)]
        for step in self.steps:
            if isinstance(step, (Run, Collective)):
                devices[step.task].update(devices_of(step))
        return tuple(tuple(sorted(ids)) for ids in devices)

    @property
    def moved_by_hand(self) -> str:
        """What was moved, e.g. "conv2d.3 cpu.0 -> cpu.1"; "": nothing."""
        return self.origin.partition(MOVED_BY_HAND)[2]

    @property
    def placed_again(self) -> str:
        """Why the plan replaced the one that a module carried; "": it did not."""
        return self.origin.partition(PLACED_AGAIN)[2]

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The copy steps in plan order."""
        return tuple(step for step in self.steps if isinstance(step, Copy))

    @property
    def loads(self) -> tuple[Load, ...]:
        """The load steps in plan order."""
        return tuple(step for step in self.steps if isinstance(step, Load))

    @property
    def is_guarded(self) -> bool:
        """Whether some step is not made in every run."""
        return any(guard_of(step) is not None for step in self.steps)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collective steps in plan order."""
        return tuple(step for step in self.steps if isinstance(step, Collective))


def devices_of(step: Step) -> tuple[int, ...]:
    """Return the devices that a step is run on, in rank order; () for a copy or a load."""
    if isinstance(step, Run):
        return (step.device,)
    return step.devices if isinstance(step, Collective) else ()


def guard_of(step: Step) -> Guard | None:
    """Return when a step is made; None: in every run."""
    return None if isinstance(step, Collective) else step.guard
