"""Kernel calls, copies and messages of a program before it has queues: what they touch, and where
that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heteroplace.lower.kernels import KernelCalls, Value
from heteroplace.model.plan import Guard

Instance = tuple[int, int]
"""A value in a memory: (value, memory). Aliases count as the value whose bytes they share."""


@dataclass(frozen=True)
class Instruction:
    """One kernel call, one copy within a host, or one side of a message between two hosts."""

    call: int | None
    """Position of the kernel call in the calls; None: a copy or a message."""
    device: int | None
    """Device that runs the kernel, or copies within its memory; None: a copy over links."""
    route: tuple[int, ...]
    """Links that the copy takes; empty for what a device does."""
    step: int
    """Position of the plan's step that it carries out."""
    start_ns: int
    """Predicted start; 0 if nothing is predicted."""
    finish_ns: int
    """Predicted finish; 0 if nothing is predicted."""
    reads: tuple[Instance, ...]
    """Weights are not among them."""
    writes: tuple[Instance, ...]
    source: Instance | None = None
    """Of a copy of a part of what it reads, that part, as a value; of weights, these; None: all of
    what it reads."""
    message: int | None = None
    """Tag of the message, which its two sides share. What sends it writes nothing; what receives
    it reads nothing, and comes next in the order."""
    replaces: tuple[Instance, ...] = ()
    """Whose bytes it takes over: all others who read them come before, and are waited for."""
    is_in_place: bool = False
    """Whether it is by the call's `kernel_in_place`."""
    linger_ns: int = 0
    """How much later than predicted it may end, while others are in time: others' updates read a
    gradient beside it, and none of them waits for another. What it reads is kept so much longer."""
    guard: Guard | None = None
    """When it is done; None: in every run. What decides that is among what it reads."""
    members: tuple[Instruction, ...] = ()
    """Calls of branches that are done side by side, those of each branch next to each other; empty:
    it is no group. It reads what they read and none of them makes."""

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices that do it, ascending."""
        ids = {each.device for each in (self, *self.members) if each.device is not None}
        return tuple(sorted(ids))

    @property
    def origin(self) -> Instance:
        """Of a copy, what is copied."""
        return self.source or self.reads[0]

    @property
    def is_send(self) -> bool:
        """Whether it is the side that sends."""
        return self.message is not None and not self.writes

    @property
    def is_receive(self) -> bool:
        """Whether it is the side that receives."""
        return self.message is not None and not self.reads


@dataclass(frozen=True)
class Ordered:
    """Instructions in one global order, each after all that it depends on."""

    instructions: tuple[Instruction, ...]
    values: tuple[Value, ...]
    """Those of the calls, then parts that copies name."""
    stored: Mapping[Instance, tuple[Instance, int]]
    """Instances that have no bytes of their own: whose bytes, and the offset in them."""

    def place(self, instance: Instance) -> tuple[Instance, int]:
        """Return the instance whose bytes another one is in, and the offset."""
        return resolve(self.stored, instance)


def resolve(
    stored: Mapping[Instance, tuple[Instance, int]], instance: Instance
) -> tuple[Instance, int]:
    """Return the instance with bytes of its own that another one lies in, and the offset."""
    offset = 0
    while instance in stored:
        instance, more = stored[instance]
        offset += more
    return instance, offset


def root(calls: KernelCalls, value: int) -> int:
    """Return the value that owns the bytes of `value`."""
    while (alias_of := calls.values[value].alias_of) is not None:
        value = alias_of
    return value


def output_places(calls: KernelCalls, host: int) -> list[tuple[int, int]]:
    """Return (value, memory) of each output: that of the host, but for state, which stays in the
    memory where it lies."""
    state_of = {output: state for state, output in calls.kept_states}
    places = []
    for position, output in enumerate(calls.outputs):
        value = root(calls, output)
        state = calls.values[value].in_place_of
        state = state_of.get(position) if state is None else state
        memory = None if state is None else calls.values[state].memory
        places.append((value, host if memory is None else memory))
    return places
