"""A compiled model and other programs of the same network -> their times, measured in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from heteroplace.cli.shared import plural
from heteroplace.measure.timed_runs import (
    Timer,
    cluster_cores,
    on_cores,
    time_in_turns,
    time_runs,
)
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_ns
from heteroplace.peers import Peer
from heteroplace.registry import load_plugin, plugins

SINGLE = "single"
"""The best single device, by a plan of ours."""
_NUM_ROUNDS = 15
_OURS = "heteroplace"


@dataclass(frozen=True)
class ProgramRun:
    """A loaded file and the inputs of its runs."""

    run: Callable[[Mapping[str, Any]], Sequence[Any]]
    """Takes the inputs and returns the outputs."""
    inputs: Mapping[str, Any]
    solution: Solution

    @property
    def timer(self) -> Timer:
        """Times calls from arrays to arrays, by a thread on the cores of the plan's devices."""
        cores = cluster_cores(self.solution.cluster)
        return on_cores(partial(time_runs, partial(self.run, self.inputs)), cores)


@dataclass(frozen=True)
class PeerTime:
    """The time of another program that runs the same network, and ours."""

    name: str
    version: str
    precision: str
    """What it computes in, where that is not the model's own type; "": in that."""
    ours_ns: int
    peer_ns: int
    """Medians of calls from arrays to arrays."""
    speedup: float
    """How often as fast we are: the median over the rounds."""
    max_difference: float | None
    """How far our outputs are from its own, at most, over the largest value of each output; None:
    the program is ours too."""
    num_threads: int
    ours_rounds_ns: tuple[int, int]
    peer_rounds_ns: tuple[int, int]
    """The shortest and the longest round of each."""

    def text(self) -> str:
        """Return the line about it."""
        name = f"{self.name} {self.version}".rstrip()
        precision = f", which computes in {self.precision} by default" if self.precision else ""
        precision += ", as we do with --precision bf16" if self.precision == "bf16" else ""
        details = f"{plural(self.num_threads, 'thread')} each"
        if self.max_difference is not None:
            details += f"; outputs differ by at most {self.max_difference:.1e} of the largest value"
        return (
            f"{self.speedup:.2f}x as fast as {name}{precision} (median of {_NUM_ROUNDS} turns; "
            f"{format_ns(self.ours_ns)} against {format_ns(self.peer_ns)}; {details})"
        )


Compare: TypeAlias = Callable[[ProgramRun], Sequence[PeerTime]]


def peer_names() -> tuple[str, ...]:
    """Return what can be compared with."""
    return (SINGLE, *plugins("peers"))


def check_peers(names: Sequence[str]) -> None:
    """Raise MissingPackageError, before any work, if a runtime is not installed."""
    for name in names:
        if name != SINGLE:
            load_plugin("peers", name).check_installed()


def compare_with_peers(
    names: Sequence[str],
    model: Path,
    ours: ProgramRun,
    single: ProgramRun | None,
    fixed: Mapping[str, Any],
    on_round: Callable[[int, int], None],
) -> list[PeerTime]:
    """Time ours and other programs in turns, on the same cores with the same inputs.

    Parameters
    ----------
    names
        Of `peer_names`.
    model
        The ONNX file, which other runtimes load.
    single
        The plan for the best single device; None: it is not compared.
    fixed
        Inputs of the model that became constants when it was compiled, as numbers or lists.
    on_round
        Called with the number of rounds done, and of all.

    Raises
    ------
    MissingPackageError
        A runtime is not installed.
    """
    cores = cluster_cores(ours.solution.cluster)
    timers = {_OURS: ours.timer}
    labels: dict[str, tuple[str, str, str]] = {}
    differences: dict[str, float] = {}
    with ExitStack() as loaded:
        if single is not None:
            timers[SINGLE] = single.timer
            labels[SINGLE] = (f"the best single device, {single.solution.devices_used[0]}", "", "")
        for name in names:
            if name == SINGLE:
                continue
            peer: Peer = load_plugin("peers", name)
            program = peer.load(model, {**fixed, **ours.inputs}, cores)
            loaded.callback(program.close)
            timers[name] = program.time_calls
            labels[name] = (program.name, program.version, program.precision)
            differences[name] = program.difference(ours.run(ours.inputs))
        timed = time_in_turns(
            timers, num_rounds=_NUM_ROUNDS, on_round=lambda done: on_round(done, _NUM_ROUNDS)
        )
    return [
        PeerTime(
            *labels[name],
            timed.median_ns(_OURS),
            timed.median_ns(name),
            1 / timed.ratio(_OURS, name),
            differences.get(name),
            len(cores),
            _extremes(timed.rounds_ns(_OURS)),
            _extremes(timed.rounds_ns(name)),
        )
        for name in labels
    ]


def _extremes(times_ns: Sequence[int]) -> tuple[int, int]:
    return min(times_ns), max(times_ns)
