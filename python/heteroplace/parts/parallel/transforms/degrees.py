"""Numbers of devices -> how many of them go to data, tensor and pipeline parallelism.

Enumeration: DistIR (arXiv 2111.05426), section 5 (grid search); numbering of ranks: the same,
section 4.1, without the host, which is no rank here. Unlike DistIR, which knows powers of two only,
degrees are divisors of the number of devices: for 2, 4, 8, ... devices these are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from heteroplace.errors import ShardingError
from heteroplace.model.cluster import Cluster

MAX_MICRO_BATCHES = 128
"""Most microbatches of a replica that `enumerate_degrees` offers."""


@dataclass(frozen=True, slots=True, order=True)
class Degrees:
    """How one training step or inference of a batch is cut: D, T, P and K of DistIR.

    Each is a whole number of at least 1, checked on construction.
    """

    data: int = 1
    """D: replicas of the network, each with its own part of the batch."""
    tensor: int = 1
    """T: lanes of a replica, each with its own shards of the weights."""
    pipeline: int = 1
    """P: stages, each with its own layers."""
    micro_batches: int = 1
    """K: parts of a replica's part of the batch, which go through the stages one after another."""

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {getattr(self, name)!r}"
            for name in ("data", "tensor", "pipeline", "micro_batches")
            if not _is_count(getattr(self, name))
        ]
        if faults:
            raise ShardingError(
                f"degrees: {'; '.join(faults)}; each must be a whole number, at least 1"
            )

    def __str__(self) -> str:
        """D/T/P/K, as the tables of DistIR have it."""
        return f"{self.data}/{self.tensor}/{self.pipeline}/{self.micro_batches}"

    @property
    def num_devices(self) -> int:
        """Devices that it takes: D * T * P."""
        return self.data * self.tensor * self.pipeline

    @property
    def num_items(self) -> int:
        """Items of the plan: D * K. Replica d has the items d * K to d * K + K - 1."""
        return self.data * self.micro_batches

    def rank(self, replica: int, lane: int, stage: int) -> int:
        """Return the rank of a stage of a lane of a replica; stages are numbered innermost.

        >>> Degrees(2, 2, 2, 1).rank(1, 0, 1)
        5
        """
        return (replica * self.tensor + lane) * self.pipeline + stage

    def item(self, replica: int, micro_batch: int) -> int:
        """Return the plan's item that is a microbatch of a replica."""
        return replica * self.micro_batches + micro_batch

    def rows(self, batch: int) -> int:
        """Return the rows of one microbatch of a batch of so many rows.

        Raises
        ------
        ShardingError
            They do not divide.
        """
        rows, rest = divmod(batch, self.num_items)
        if rest or rows < 1:
            raise ShardingError(
                f"degrees {self}: a batch of {batch} rows cannot be cut into {self.data} replicas "
                f"times {self.micro_batches} microbatches of equal size; make the batch a multiple "
                f"of {self.num_items}, or take other degrees"
            )
        return rows


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def parse_degrees(text: str) -> Degrees:
    """Return the degrees of "D,T,P", "D,T,P,K" or the same with slashes; K is 1 if left out.

    >>> parse_degrees("2,2,1")
    Degrees(data=2, tensor=2, pipeline=1, micro_batches=1)

    Raises
    ------
    ShardingError
        It is no such text.
    """
    parts = text.replace("/", ",").split(",")
    if len(parts) not in (3, 4) or not all(part.strip().isdecimal() for part in parts):
        raise ShardingError(
            f"degrees {text!r}: expected D,T,P or D,T,P,K, as in '2,2,1' or '1,2,2,4': replicas, "
            f"lanes, stages, microbatches"
        )
    return Degrees(*map(int, parts))


def enumerate_degrees(
    num_devices: int,
    batch: int,
    max_micro_batches: int = MAX_MICRO_BATCHES,
    allow_fewer: bool = False,
) -> tuple[Degrees, ...]:
    """Return all degrees for exactly `num_devices` devices, ascending by (D, T, P, K).

    One microbatch if there is one stage, else 2, 4, 8, ...; each has at least one row, and all have
    as many. The rule is the same for training and for inference.

    >>> len(enumerate_degrees(16, batch=2048)), len(enumerate_degrees(16, batch=128))
    (75, 65)

    Parameters
    ----------
    batch
        Rows of the whole batch.
    allow_fewer
        Also take those for numbers of devices that divide `num_devices`.
    """
    numbers = _divisors(num_devices) if allow_fewer else [num_devices]
    degrees = []
    for number in numbers:
        for data in _divisors(number):
            for tensor in _divisors(number // data):
                pipeline = number // data // tensor
                for micro_batches in _micro_batches(pipeline, max_micro_batches):
                    if batch >= 1 and batch % (data * micro_batches) == 0:
                        degrees.append(Degrees(data, tensor, pipeline, micro_batches))
    return tuple(sorted(degrees))


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _micro_batches(pipeline: int, most: int) -> list[int]:
    if pipeline == 1:
        return [1]
    return [2**power for power in range(1, most.bit_length()) if 2**power <= most]


def rank_devices(
    cluster: Cluster, degrees: Degrees, devices: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the device of each rank: of `devices`, or of the cluster's, as many as are needed.

    Of the cluster's devices the first ones of different memories are taken first, since a rank has
    a memory of its own; devices that share a unit with one that was taken are left out.

    Raises
    ------
    ShardingError
        There are too few.
    """
    chosen = list(devices) if devices is not None else devices_at_once(cluster)
    needed = degrees.num_devices
    if len(chosen) < needed:
        names = ", ".join(cluster.devices[device].name for device in chosen) or "none"
        raise ShardingError(
            f"degrees {degrees} need {needed} devices; cluster {cluster.name!r} has {len(chosen)} "
            f"that can run at once: {names}; take smaller degrees"
        )
    return tuple(chosen[:needed])


def num_ranks(cluster: Cluster) -> int:
    """Return how many devices of a cluster can be ranks at once."""
    return len(devices_at_once(cluster))


def devices_at_once(cluster: Cluster) -> list[int]:
    """Return the ids of devices that can run at once: one of each memory first, then the others."""
    taken: set[str] = set()
    memories: set[int] = set()
    first: list[int] = []
    others: list[int] = []
    for is_first, devices in ((True, first), (False, others)):
        for index, device in enumerate(cluster.devices):
            if taken.intersection(device.units) or (is_first and device.memory in memories):
                continue
            taken.update(device.units)
            memories.add(device.memory)
            devices.append(index)
    return sorted(first) + sorted(others)
