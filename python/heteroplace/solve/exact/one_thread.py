"""CP-SAT on one thread, as one of several solves that run at once and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from ortools.sat.python import cp_model

from heteroplace.solve.deadline import Deadline

T = TypeVar("T")
_AGAIN_S = 0.1


def run_until_interrupt(solve: Callable[[], T], stop: Callable[[], object]) -> tuple[T, bool]:
    """Return the result of a solve, and whether Ctrl-C ended it early by `stop`.

    It runs on a thread, since Python sees Ctrl-C only between steps of the main one. OR-Tools' own
    handler would tell nobody, and leave the system's default behind.
    """
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(solve)
        try:
            return running.result(), False
        except KeyboardInterrupt:
            stop_until_done(stop, [running])
            return running.result(), True


def stop_until_done(stop: Callable[[], object], solves: Sequence[Future[Any]]) -> None:
    """End solves and wait for them. OR-Tools forgets a stop that comes while a solve begins, so
    they are told again."""
    stop()
    while wait(solves, timeout=_AGAIN_S).not_done:
        stop()


@dataclass(frozen=True)
class Effort:
    """How long one solve may take."""

    deadline: Deadline
    deterministic_s: float | None
    """CP-SAT's deterministic seconds; None: only the wall time counts."""
    seed: int = 0


class Stopper:
    """Ends all solves that run, and those to come. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False  # guarded by _lock, as is _running
        self._running: list[cp_model.CpSolver] = []

    @property
    def is_set(self) -> bool:
        """Whether all was ended."""
        with self._lock:
            return self._is_set

    def stop(self) -> None:
        """End all solves."""
        with self._lock:
            self._is_set = True
            for solver in self._running:
                solver.stop_search()

    def solve(
        self, model: cp_model.CpModel, effort: Effort, *, has_relaxation: bool = True
    ) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus] | None:
        """Solve and return the solver with its status; None: all was ended before.

        Parameters
        ----------
        has_relaxation
            Use linear relaxations. They say little of a schedule and take most of the time.
        """
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = effort.seed
        solver.parameters.max_time_in_seconds = max(0.01, effort.deadline.left_s())
        # Signals belong to the caller's thread.
        solver.parameters.catch_sigint_signal = False
        if effort.deterministic_s is not None:
            solver.parameters.max_deterministic_time = effort.deterministic_s
        if not has_relaxation:
            solver.parameters.linearization_level = 0
        with self._lock:
            if self._is_set:
                return None
            self._running.append(solver)
        try:
            return solver, solver.solve(model)
        finally:
            with self._lock:
                self._running.remove(solver)
