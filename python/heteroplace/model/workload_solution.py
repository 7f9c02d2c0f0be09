"""Entries of one model that are placed together: a solution for each, and what they take in sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heteroplace.model.answers import MoreMemory, answerer
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_bytes, format_ns


@dataclass(frozen=True)
class WorkloadSolution:
    """Solutions of all entries of a workload."""

    solutions: Mapping[str, Solution]
    """By the names of the entries. Each one's own bound is that of the entry alone."""
    calls: Mapping[str, int]
    """How often the workload calls each entry."""
    bound_ns: int
    """No placement of all entries takes less: a proven lower bound under the same costs."""
    weight_bytes: Mapping[str, int]
    """What weights and state take, by memory. A weight that several entries read is there once."""
    value_bytes: Mapping[str, int]
    """What tensors and workspaces of all entries take, by memory."""
    solved: object = field(default=None, repr=False, compare=False)
    """What it was solved from, for `more_memory`."""

    @property
    def objective_ns(self) -> int:
        """The time of all calls, one after the other: the sum of calls times simulated makespan."""
        return sum(self.calls[name] * each.predicted_ns for name, each in self.solutions.items())

    @property
    def gap_ratio(self) -> float:
        """(objective - bound) / objective; 0 is a proof that no placement is better."""
        return (self.objective_ns - self.bound_ns) / max(1, self.objective_ns)

    @property
    def singles(self) -> Mapping[str, int]:
        """The time of all calls on each device that can run all entries alone, in ns."""
        times = [dict(each.singles) for each in self.solutions.values()]
        names = [name for name in times[0] if all(name in each for each in times)]
        calls = [self.calls[name] for name in self.solutions]
        return {
            name: sum(n * each[name] for n, each in zip(calls, times, strict=True))
            for name in names
        }

    def more_memory(
        self, memory: str, more: str | int, *, time_limit: float | None = None
    ) -> MoreMemory:
        """Say what the workload would take if a memory had so much more, or less.

        All entries are placed again, by the same costs.

        Parameters
        ----------
        memory
            Name of a memory, or of a device for its own.
        more
            What it has in addition: "1 GiB", or bytes; "-512 MiB" is less.
        time_limit
            Seconds; None: as the workload was placed.

        Raises
        ------
        ClusterError
            There is no such memory, or it would have no room at all.
        InfeasibleError, SolverLimitError
            No placement fits the smaller memory, or none was reached.

        Examples
        --------
        >>> print(workload.more_memory("gpu0", "1 GiB"))  # doctest: +SKIP
        """
        answer: MoreMemory = answerer("more_memory")(self, memory, more, time_limit=time_limit)
        return answer

    def __str__(self) -> str:
        """Return a line for the workload, one for each entry, and one for each memory."""
        lines = [
            f"predicted {format_ns(self.objective_ns)} for the workload, at most "
            f"{self.gap_ratio:.1%} above the best"
        ]
        for name, single_ns in self.singles.items():
            lines.append(f"{name} alone: {format_ns(single_ns)}")
        for name, each in self.solutions.items():
            used = ", ".join(each.devices_used)
            count = self.calls[name]
            lines.append(
                f"entry {name}: {count} {'call' if count == 1 else 'calls'}, "
                f"{format_ns(each.predicted_ns)} each, on {used}"
            )
        for name, num_bytes in self.weight_bytes.items():
            lines.append(
                f"memory {name}: {format_bytes(num_bytes)} of weights and state, "
                f"{format_bytes(self.value_bytes[name])} of tensors"
            )
        return "\n".join(lines)
