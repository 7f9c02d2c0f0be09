"""Schedules of one kernel -> how long each takes alone, in turns with ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heteroplace.errors import ExecutionError, LoweringError
from heteroplace.lower.compile import CompiledKernels, CompiledNetwork
from heteroplace.lower.kernels import Kernel, KernelCall
from heteroplace.lower.library import KernelLibrary, compile_kernels
from heteroplace.lower.lower_kernel import finished
from heteroplace.lower.workspace import kernel_workspace
from heteroplace.measure.kernels.kernel_calls import only_calls
from heteroplace.measure.plan_program import PlanProgram, serial_program
from heteroplace.model.cluster import Cluster
from heteroplace.parts.kernels.tuned.tuned_kernels import lowered_schedule, tuned_functions
from heteroplace.parts.kernels.tuned.tuned_schedules import trace_text

_ROUNDS = 5
_SAMPLE_NS = 2_000_000
"""About how long each kernel runs in a round."""
_MAX_CALLS = 100
_HOPELESS = 2.0
"""What takes as many times as long as the quickest at its first calls, runs no more."""


@dataclass(frozen=True)
class Trial:
    """A schedule that may be measured."""

    trace: str
    kernel: Kernel


@dataclass(frozen=True)
class TrialBench:
    """A network on one device, whose kernels are replaced one by one."""

    compiled: CompiledNetwork
    cluster: Cluster
    placement: tuple[int, ...]

    def trial(self, own: Kernel, schedule: object, symbol: str) -> Trial | None:
        """Return a schedule as a kernel in the place of ours; None: it cannot be lowered."""
        assert own.function is not None
        try:
            functions = lowered_schedule(schedule, symbol)
        except (RuntimeError, ValueError, TypeError):
            return None  # steps may fit, and what they make still be no program
        return Trial(trace_text(schedule), _in_place_of(own, functions, symbol))

    def trial_of(self, own: Kernel, trace: str, symbol: str) -> Trial | None:
        """Return a trace that was kept as a kernel; None: it does not fit any more."""
        assert own.function is not None
        try:
            functions = tuned_functions(own.function, own.target, trace, symbol)
        except LoweringError:
            return None
        return Trial(trace, _in_place_of(own, functions, symbol))

    def times(self, call: KernelCall, kernels: Sequence[Kernel]) -> list[int | None]:
        """Return the least ns of a call with each of the kernels; None: it does not compile.

        Raises
        ------
        ExecutionError
            The first one, ours, failed.
        """
        programs = self._programs(call, kernels)
        first = [_first_ns(program) for program in programs]
        quickest = min(ns for ns in first if ns is not None)
        least = list(first)
        for _ in range(_ROUNDS):
            for index, (program, ns) in enumerate(zip(programs, first, strict=True)):
                if program is None or ns is None or ns > _HOPELESS * quickest:
                    continue
                walls, _ = program.executor.sample(_num_calls(ns), 1, False)
                least[index] = min(least[index] or ns, int(walls.min()))
        return least

    def _programs(self, call: KernelCall, kernels: Sequence[Kernel]) -> list[PlanProgram | None]:
        calls = self.compiled.calls(self.cluster, self.placement)
        try:
            libraries: list[KernelLibrary | None] = [compile_kernels(kernels)] * len(kernels)
        except LoweringError:  # of some of them, but not of ours
            libraries = [compile_kernels(kernels[:1]), *map(_library_of, kernels[1:])]
        programs: list[PlanProgram | None] = []
        for kernel, library in zip(kernels, libraries, strict=True):
            if library is None:
                programs.append(None)
                continue
            own = replace(calls, kernels={kernel.symbol: kernel})
            one = replace(call, kernel=kernel.symbol, workspace=kernel.workspace)
            alone = CompiledKernels(only_calls(own, [one]), library)
            programs.append(
                serial_program(alone, self.compiled.graph, self.cluster, self.placement)
            )
        return programs


def _library_of(kernel: Kernel) -> KernelLibrary | None:
    """A kernel compiled alone; None: it cannot be."""
    try:
        return compile_kernels([kernel])
    except LoweringError:
        return None


def _in_place_of(own: Kernel, functions: object, symbol: str) -> Kernel:
    kernel = finished(functions, own.function, own.target)
    workspace = kernel_workspace(kernel, is_cpu=True)
    return replace(own, symbol=symbol, functions=kernel, workspace=workspace, code=None)


def _first_ns(program: PlanProgram | None) -> int | None:
    if program is None:
        return None
    try:
        walls, _ = program.executor.sample(2, 1, False)
    except ExecutionError:
        return None
    return max(1, int(walls.min()))


def _num_calls(call_ns: int) -> int:
    return max(1, min(_MAX_CALLS, _SAMPLE_NS // call_ns))
