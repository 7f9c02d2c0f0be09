"""A placed network as a program that is run again and again, with a clock around every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from heteroplace.codegen.artifact import weights_blob
from heteroplace.codegen.kernels import Rows
from heteroplace.codegen.library import KernelLibrary
from heteroplace.codegen.lower import lower
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Run
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.plan_program import fill_inputs, serial_plan
from heteroplace.tvm_bridge import library_path

MIN_RUNS = 5
MAX_RUNS = 100
ROUND_NS = 200_000_000
"""A round takes about this long, within the limits above."""


@dataclass
class ClockedProgram:
    """One task after the other on the devices of a placement, in place. Not thread-safe.

    Raises
    ------
    InfeasibleError
        On construction: a memory is too small for the compiled program.
    """

    rows: Rows
    library: KernelLibrary
    graph: TaskGraph
    cluster: Cluster
    placement: Sequence[int]
    """Device id of each task."""
    ignored_kernel: str | None = None
    """Symbol of a kernel that is run but not counted."""
    memory_bytes: tuple[int, ...] = field(init=False)
    """For each memory of the cluster: weights, values and scratch memory of the program."""
    _samples: list[list[int]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._plan, order = serial_plan(self.graph, self.cluster, self.placement)
        lowered = lower(self.rows, self.graph, self.cluster, self._plan, order)
        self.memory_bytes = lowered.memory_bytes
        self._executor = NativeExecutor(
            str(library_path()),
            str(self.library.path),
            lowered.program.to_text(),
            blob=weights_blob(lowered),
        )
        fill_inputs(self._executor)
        warm_ns = max(1, int(min(self._executor.benchmark(2))))
        self._num_runs = min(MAX_RUNS, max(MIN_RUNS, ROUND_NS // warm_ns))

    def sample(self) -> None:
        """Note the median time of each task over one round of runs."""
        times = [0] * len(self.graph.tasks)
        medians = self._executor.profile(self._num_runs)
        for instruction, median_ns in zip(self._executor.instructions, medians, strict=True):
            step = self._plan.steps[instruction.step]
            is_counted = instruction.kernel not in (None, self.ignored_kernel)
            if is_counted and isinstance(step, Run):
                times[step.task] += int(median_ns)
        self._samples.append(times)

    def times(self) -> list[int]:
        """Return the times of the second shortest round, one for each task, in ns.

        Other programs only ever lengthen a run, so long rounds say more about them than about the
        device; one round is kept whole, as times of different rounds do not add up.
        """
        if not self._samples:
            self.sample()
        return sorted(self._samples, key=sum)[min(1, len(self._samples) - 1)]
