"""What a cost depends on: of the task and of the device, and nothing else of graph and cluster.

Costs are looked up by these, so that a table holds as long as they do: whatever pins, links,
limits and other devices there are.
"""

from __future__ import annotations

from typing import NamedTuple


class TaskIdentity(NamedTuple):
    """What the cost of a task depends on; tasks that agree in it take equally long anywhere.

    Where a task may run, what shares its device and what its kernels need of scratch memory are no
    part of it.
    """

    name: str
    op: str
    flops: int
    weight_bytes: int
    reads: tuple[str, ...]
    """Types of what it reads, sorted, e.g. "float32[1,64]", or a size where there is no type."""
    writes: tuple[str, ...]
    """Types of what it makes."""

    @property
    def work(self) -> tuple[object, ...]:
        """All but the name: equal for tasks that compute the same."""
        return self[1:]

    def __str__(self) -> str:
        types = f"{' '.join(self.reads)} -> {' '.join(self.writes)}"
        return f"{self.op}: {types}, {self.flops} flops, {self.weight_bytes} B of weights"


class DeviceIdentity(NamedTuple):
    """What the cost of a task on a device depends on.

    Memory limits, links, what else there is, and which cores of a kind these are, are no part of
    it. Its name is: planning devices may have nothing else to be told by.
    """

    name: str
    kind: str
    target: str
    num_cores: int
    """0 but for CPU devices."""
    model: str
    host: str
    """"" where the model is known: devices of one model are alike in all hosts."""
    flops_per_second: int | None
    memory_bytes_per_second: int | None
    launch_ns: int

    @property
    def measures_alike(self) -> tuple[object, ...]:
        """Equal for devices on which measured times are the same.

        Those that say neither a target nor a model are like no other.
        """
        return self[1:6] if self.target or self.model else self[:6]

    @property
    def predicts_alike(self) -> tuple[object, ...]:
        """Equal for devices for which predicted times are the same: also in their figures."""
        return self.measures_alike + self[6:]

    def __str__(self) -> str:
        cores = f", {self.num_cores} cores" if self.num_cores else ""
        model = f", {self.model}" if self.model else ""
        host = f", on {self.host}" if self.host else ""
        return f"{self.kind}, {self.target or 'no target'}{cores}{model}{host}"
