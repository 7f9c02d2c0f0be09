"""The solution of a compiled file, which is read when it is first asked for.

Running a file takes only its ports and devices. A solution has a graph, costs and reasons, and the
modules that read it take longer to load than a small file does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from heteroplace.entries import load_entry
from heteroplace.errors import ArtifactError

if TYPE_CHECKING:
    from heteroplace.model.memory_use.memory import MemoryUse
    from heteroplace.model.solution import Solution

_READ = "heteroplace.files.solution_file:solution_from_json"
_WRITE = "heteroplace.files.solution_file:solution_to_json"
_MEMORY_USE = "heteroplace.model.memory_use.memory:MemoryUse"
"""Loaded when a solution is read or written."""


class UsedDevice(Struct, frozen=True, array_like=True):
    """A device that a plan uses: as much of `Device` as says whether a machine has it."""

    name: str
    kind: str
    index: int
    host: str
    cores: tuple[int, ...]


class Placement:
    """A solution, and what its program is predicted to hold in each memory.

    Parameters
    ----------
    read
        Returns both; called once, when one of them is asked for.
    devices, num_steps
        Of the plan; None: they are taken from the solution.
    """

    def __init__(
        self,
        read: Callable[[], tuple[Solution, tuple[MemoryUse, ...]]],
        devices: tuple[UsedDevice, ...] | None = None,
        num_steps: int | None = None,
    ) -> None:
        self._read = read
        self._devices = devices
        self._num_steps = num_steps

    @classmethod
    def of(cls, solution: Solution, memory: tuple[MemoryUse, ...]) -> Placement:
        """Return that of a program which was built here."""
        return cls(lambda: (solution, memory))

    @classmethod
    def of_file(
        cls,
        text: str,
        memory: Sequence[tuple[int, int, int]],
        source: str,
        devices: tuple[UsedDevice, ...] | None,
        num_steps: int | None,
    ) -> Placement:
        """Return what a file has: the text of a solution, and bytes of each memory.

        The first look at it raises ArtifactError where the text is damaged, or where the bytes are
        not those of each memory of the cluster.
        """

        def read() -> tuple[Solution, tuple[MemoryUse, ...]]:
            solution: Solution = load_entry(_READ)(text, source)
            if len(memory) != len(solution.cluster.memories):
                raise ArtifactError(
                    f"{source}: the manifest is damaged (it has the use of {len(memory)} memories, "
                    f"and the cluster has {len(solution.cluster.memories)})"
                )
            make: type[MemoryUse] = load_entry(_MEMORY_USE)
            return solution, tuple(make(*parts) for parts in memory)

        return cls(read, devices, num_steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self._values == other._values

    @property
    def solution(self) -> Solution:
        """The plan and all it refers to."""
        return self._values[0]

    @property
    def memory(self) -> tuple[MemoryUse, ...]:
        """For each memory of the cluster."""
        return self._values[1]

    @property
    def text(self) -> str:
        """The solution as a file has it."""
        text: str = load_entry(_WRITE)(self.solution)
        return text

    @property
    def devices(self) -> tuple[UsedDevice, ...]:
        """Those that the plan uses, in cluster order."""
        if self._devices is None:
            used = set(self.solution.devices_used)
            self._devices = tuple(
                UsedDevice(each.name, each.kind, each.index, each.host, each.cores)
                for each in self.solution.cluster.devices
                if each.name in used
            )
        return self._devices

    @property
    def num_steps(self) -> int:
        """Of the plan."""
        if self._num_steps is None:
            self._num_steps = len(self.solution.plan.steps)
        return self._num_steps

    @cached_property
    def _values(self) -> tuple[Solution, tuple[MemoryUse, ...]]:
        return self._read()
