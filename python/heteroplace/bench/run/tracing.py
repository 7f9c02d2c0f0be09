"""`bench run --tracing`: what it costs to record when every instruction ran.

One executor for both, with the recording on and off in turns, by `Executor.benchmark`: of networks
on one core, and of 2,000 kernels of one number each on one core, where the clock is
the most of all.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm import te

from heteroplace.bench.models.catalogue import Model, load_model, model_names
from heteroplace.bench.peers.timed_runs import TimedRuns, Timer, time_in_turns
from heteroplace.bench.row_table import row_table
from heteroplace.bench.run.comparison import place_on, prepare_model
from heteroplace.machine.local import local_cluster
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from heteroplace.tvm_bridge import library_path

DEFAULT_MODELS = "^(resnet50|randomly_wired|tiny)$"
TINY = "tiny"
NUM_TINY = 2000
_TIME_LIMIT_S = 5.0
_ON, _OFF = "on", "off"


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    cluster = local_cluster(has_gpus=False)
    for name in filter(re.compile(only or DEFAULT_MODELS).search, (TINY, *model_names())):
        tell = prefixed(say, name)
        if name == TINY:
            yield measure_tiny(tell)
            continue
        model = load_model(name)
        prepared = prepare_model(model, cluster, tell)
        executor = Executor(place_on(prepared, (cluster.devices[0].name,), _TIME_LIMIT_S))
        yield measure_network(model, executor, tell)


def measure_network(
    model: Model, executor: Executor, say: Callable[[str], None] = lambda line: None
) -> dict[str, object]:
    """Measure a network that is loaded."""

    def recorded(num_runs: int) -> Sequence[int]:
        with executor.trace():
            return executor.benchmark(num_runs)

    with executor.trace() as trace:
        executor.run(model.inputs)
    return measure_tracing(model.name, len(trace.events), (recorded, executor.benchmark), say)


def measure_tiny(
    say: Callable[[str], None] = lambda line: None,
    *,
    num_calls: int = NUM_TINY,
    num_rounds: int = 15,
) -> dict[str, object]:
    """Measure a chain of kernels that add one to a number, on the first core."""
    number = te.placeholder((1,), name="number")
    result = te.compute((1,), lambda i: number[i] + 1.0)
    kernel = tvm.build(te.create_schedule(result.op), [number, result], "llvm", name="add_one")
    core = local_cluster(has_gpus=False).devices[0].cores[0]
    lines = [
        "heteroplace-program 1",
        "space 0 ram 1 0 128",
        f"queue 0 cpu.0 cpu 1 0 0 {core}",
        *(f"tensor {place} 0 arena {64 * place} 2 32 1" for place in range(2)),
        "tensor 2 0 external - 2 32 1",
        "input x 2",
        f"output y {num_calls % 2}",
        "kernel 0 add_one",
        "call 0 0 0 1 2,0 -",
        *(f"call 0 {i} 0 1 {(i + 1) % 2},{i % 2} -" for i in range(1, num_calls)),
        "end",
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        kernel.export_library(str(path))
        executor = NativeExecutor(str(library_path()), str(path), "\n".join(lines) + "\n")
    executor.set_input("x", np.zeros(1, "float32"))

    def plain(num_runs: int) -> Sequence[int]:
        return [int(ns) for ns in executor.benchmark(num_runs)]

    def recorded(num_runs: int) -> Sequence[int]:
        executor.start_trace()
        times = plain(num_runs)
        executor.stop_trace()
        return times

    return measure_tracing(TINY, num_calls, (recorded, plain), say, num_rounds=num_rounds)


def measure_tracing(
    name: str,
    num_instructions: int,
    timers: tuple[Timer, Timer],
    say: Callable[[str], None] = lambda line: None,
    *,
    num_rounds: int = 15,
    turn_ns: int = 40_000_000,
) -> dict[str, object]:
    """Time the runs of a program with a recording and without one; return the row.

    Parameters
    ----------
    timers
        With a recording, and without.
    """
    say(f"measuring {num_instructions} instructions in {num_rounds} rounds")
    named = dict(zip((_ON, _OFF), timers, strict=True))
    timed = time_in_turns(named, num_rounds=num_rounds, turn_ns=turn_ns)
    return row_of(name, num_instructions, timed)


def row_of(name: str, num_instructions: int, timed: TimedRuns) -> dict[str, object]:
    """Return the figures of one program."""
    on_ns, off_ns = timed.median_ns(_ON), timed.median_ns(_OFF)
    ratio = timed.ratio(_ON, _OFF)
    return {
        "model": name,
        "instructions": num_instructions,
        "off_ms": round(off_ns / 1e6, 4),
        "on_ms": round(on_ns / 1e6, 4),
        "ratio": round(ratio, 4),
        "ns_per_instruction": round((ratio - 1) * off_ns / num_instructions, 1),
    }


def table(rows: Iterable[dict[str, object]]) -> str:
    """Return the rows as text."""
    return row_table(rows)
