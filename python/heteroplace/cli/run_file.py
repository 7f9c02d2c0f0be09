"""A compiled file -> outputs and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import heteroplace
from heteroplace.cli.models.model_arrays import Arrays, make_inputs
from heteroplace.cli.models.peer_comparison import Compare, PeerTime, ProgramRun
from heteroplace.errors import FrontendError, HeteroPlaceError
from heteroplace.files.manifest import Manifest, is_library
from heteroplace.files.no_file import why_no_file
from heteroplace.machine.usage import Usage
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.stage_log import StageLog

if TYPE_CHECKING:
    from heteroplace.run.executor import Executor

_MEASURE_NS = 500_000_000
_MIN_RUNS, _MAX_RUNS = 5, 1000
_TIMED_RUNS = 21


class _Program(Protocol):
    """What is asked of a loaded file."""

    def run(self, inputs: Arrays, /) -> list[Any]:
        """Run once; return the outputs."""

    def benchmark(self, num_runs: int) -> Any:
        """Run several times; return the wall time of each in ns."""

    def timeline(self, num_runs: int) -> Timeline:
        """Run several times with clocks; return the timeline of the median run."""


class _Sized:
    """A file that takes calls of any length, as its entry for calls of one length."""

    def __init__(self, executor: Executor, entry: Executor) -> None:
        self._executor, self._entry = executor, entry

    def run(self, inputs: Arrays) -> list[Any]:
        """Run once, padded; return the outputs."""
        return self._executor.run(inputs)

    def benchmark(self, num_runs: int) -> Any:
        """Run the entry several times, as padded last; return the wall time of each in ns."""
        return self._entry.benchmark(num_runs)

    def timeline(self, num_runs: int) -> Timeline:
        """Run the entry several times with clocks; return the timeline of the median run."""
        return self._entry.timeline(num_runs)


@dataclass(frozen=True)
class Ran:
    """What a compiled file gave, and how long it took."""

    solution: Solution
    outputs: Mapping[str, Any]
    """Those of bfloat16 as their bits, in `uint16`."""
    dtypes: Mapping[str, str]
    """Of the outputs, in the model."""
    times_ns: tuple[int, ...]
    """Of each run, ascending."""
    others_cores: float
    """How many cores other programs used meanwhile."""
    manifest: Manifest
    """What the file says about itself."""
    peer_times: tuple[PeerTime, ...] = ()
    """Of what it was compared with."""
    timeline: Timeline | None = None
    """Of a run with clocks; None: the steps were not timed."""
    notes: tuple[str, ...] = ()
    """Whole sentences: which entry of the file ran, where calls choose it."""


def is_compiled(path: Path) -> bool:
    """Tell a compiled file from a model.

    Raises
    ------
    FrontendError
        There is no such file.
    """
    if not path.is_file():
        raise FrontendError(f"{path}: {why_no_file(path)}; give an ONNX model or a compiled file")
    return is_library(path)


def run_file(
    path: Path,
    read_inputs: Callable[[], Arrays],
    legal: Mapping[str, tuple[float, float]],
    seed: int,
    num_runs: int | None,
    trusted_keys: Sequence[str] | None = None,
    compare: Compare | None = None,
    *,
    is_timed: bool = False,
    log: StageLog,
) -> Ran | None:
    """Load a compiled file, run it and measure it.

    Parameters
    ----------
    read_inputs
        Returns inputs by name, on the host that feeds the model alone; the others are made up by
        `seed`.
    legal
        By input the least and the largest number to make up; others: normally distributed floating
        point numbers, 0 and 1 for integers.
    num_runs
        How many runs are measured; None: half a second of them, at least five.
    trusted_keys
        As of `heteroplace.load`.
    compare
        Compares it with other programs; None: nothing is compared.
    is_timed
        Also run it with clocks on each step, where all its devices are of one host.
    log
        Notes how long it takes to load, and to run.

    Returns
    -------
    None on a rank of several hosts that does not feed the model: it has served the one that does.

    Raises
    ------
    ExecutionError
        An input is wrong, or the run failed.
    ArtifactError, MissingDeviceError
        The file cannot be loaded here.
    """
    with log.timed("load", "Load the compiled file."):
        program = heteroplace.load(path, trusted_keys=trusted_keys)
    manifest = program.manifest
    is_timed = is_timed and len(manifest.solution.cluster.hosts) == 1
    if not program.is_feeding:
        program.serve()
        return None
    try:
        with log.timed("run", "Run it, and measure runs."):
            given = read_inputs()
            if manifest.lengths is None:
                return _ran(program, manifest, given, legal, seed, num_runs, compare, is_timed)
            sized, manifest, note = _sized(program, manifest, given)
            ran = _ran(sized, manifest, given, legal, seed, num_runs, compare, is_timed)
            return replace(ran, notes=(note,))
    except HeteroPlaceError as err:
        program.fail(str(err))  # else the ranks that serve it would end well
        raise
    finally:
        program.close()


def _sized(executor: Executor, manifest: Manifest, given: Arrays) -> tuple[_Sized, Manifest, str]:
    """A file as its entry for calls as long as the given arrays; without any, as its smallest one.

    Raises
    ------
    ExecutionError
        The arrays differ in length, or are longer than the largest entry.
    """
    lengths = manifest.lengths
    assert lengths is not None
    shapes = {name: array.shape for name, array in given.items()}
    is_given = any(name in shapes for name, _ in lengths.inputs)
    length = lengths.length_of(shapes) if is_given else lengths.entries[0]
    size = lengths.entry_for(length)
    entry = executor.entries[str(size)]
    own = replace(
        next((each.manifest for each in manifest.entries if each.name == str(size)), manifest),
        lengths=lengths,
        inputs=lengths.input_ports(entry.inputs, length),
        outputs=lengths.output_ports(entry.outputs, length),
    )
    note = f"The file takes {lengths.text}; {lengths.size} {length} ran as {size}, which is timed."
    return _Sized(executor, entry), own, note


def load_run(
    path: Path, given: Arrays, legal: Mapping[str, tuple[float, float]], seed: int
) -> ProgramRun:
    """Load a compiled file to be timed with these inputs; see `run_file`."""
    program = heteroplace.load(path)
    inputs = make_inputs(program.inputs, given, legal, seed)
    return ProgramRun(program.run, inputs, program.solution)


def _ran(
    program: _Program,
    manifest: Manifest,
    given: Arrays,
    legal: Mapping[str, tuple[float, float]],
    seed: int,
    num_runs: int | None,
    compare: Compare | None,
    is_timed: bool,
) -> Ran:
    inputs = make_inputs(manifest.inputs, given, legal, seed)
    values = program.run(inputs)
    outputs = {name: value for (name, _, _), value in zip(manifest.outputs, values, strict=True)}
    warm_runs = min(num_runs or _MIN_RUNS, _MIN_RUNS)
    one_ns = max(1, min(int(ns) for ns in program.benchmark(warm_runs)))
    count = num_runs or min(max(_MEASURE_NS // one_ns, _MIN_RUNS), _MAX_RUNS)
    before = Usage.now()
    times = sorted(int(ns) for ns in program.benchmark(count))
    others_cores = Usage.now().others_since(before)
    dtypes = {name: dtype for name, _, dtype in manifest.outputs}
    peer_times = (
        () if compare is None else compare(ProgramRun(program.run, inputs, manifest.solution))
    )
    return Ran(
        manifest.solution,
        outputs,
        dtypes,
        tuple(times),
        others_cores,
        manifest,
        tuple(peer_times),
        program.timeline(min(count, _TIMED_RUNS)) if is_timed else None,
    )
