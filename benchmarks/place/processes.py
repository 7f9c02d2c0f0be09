"""One graph of `place`: its solvers, each in a process of its own, one or several at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from heteroplace.errors import HeteroPlaceError

Row = dict[str, object]
Say = Callable[[str], None]

_GRACE_S = 300.0
"""What a process may take beyond ten times its budget: building, checking, a solver that ignores
the budget. Then it is ended."""
_NOTE_CHARACTERS = 300


@dataclass(frozen=True)
class Processes:
    """Runs `worker.py`."""

    graph: str
    arguments: tuple[str, ...]
    """Of each process, behind graph and solver."""
    budget_s: float

    def reference(self) -> Row:
        """Return the figures of the graph without a solver.

        Raises
        ------
        HeteroPlaceError
            It cannot be built.
        """
        done = run_worker([self.graph, *self.arguments], None)
        if done.returncode != 0:
            reason = _last_words(done.stderr)
            raise HeteroPlaceError(f"instance {self.graph} cannot be built: {reason}")
        return _answer(done)

    def answers(self, solvers: Sequence[str], jobs: int, say: Say) -> list[Row]:
        """Return what solvers answer, in their order; `jobs` of them run at once."""

        def answer(solver: str) -> Row:
            found = self.solve(solver)
            say(f"{self.graph}: {solver}: {_summary(found)}")
            return found

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(answer, solvers))

    def solve(self, solver: str) -> Row:
        """Run one solver; whatever happens to it becomes a note."""
        failed: Row = dict.fromkeys(
            (
                *("seconds", "cpu_seconds", "best_seconds", "build_seconds", "peak_mb"),
                *("memory_ok", "makespan", "bound", "item_ns", "item_bound", "incumbents"),
            )
        )
        limit = 10 * self.budget_s + _GRACE_S
        try:
            done = run_worker([self.graph, solver, *self.arguments], limit)
        except subprocess.TimeoutExpired:
            note = f"ended after {limit:.0f} s; the budget was {self.budget_s} s"
            return failed | {"note": note}
        if done.returncode != 0:
            note = f"its process ended with {done.returncode}: {_last_words(done.stderr)}"
            return failed | {"note": note}
        return _answer(done)


def run_worker(arguments: Sequence[str], limit_s: float | None) -> subprocess.CompletedProcess[str]:
    """Run `worker.py` in a process of its own, which is ended after `limit_s` seconds."""
    command = [sys.executable, "-m", "benchmarks.place.worker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)


def _answer(done: subprocess.CompletedProcess[str]) -> Row:
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def _last_words(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:])[-_NOTE_CHARACTERS:] or "no message"


def _summary(answer: Row) -> str:
    if answer["makespan"] is None:
        return str(answer["note"]).partition("\n")[0][:_NOTE_CHARACTERS]
    text = _milliseconds(answer["makespan"])
    if answer["item_ns"] is not None:
        text = f"{_milliseconds(answer['item_ns'])} per item, {text} for one"
    fits = "" if answer["memory_ok"] else ", does not fit in memory"
    return f"{text}, in {answer['seconds']} s{fits}"


def _milliseconds(time_ns: object) -> str:
    return f"{int(str(time_ns)) / 1e6:.3f} ms"
