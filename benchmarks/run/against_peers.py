"""`run --peers`: our plans against stock TVM, onnxruntime and OpenVINO, on one core and all.

All of a network runs in turns in one process, each call from arrays to arrays, by Python's clock:
what the caller takes is in the times of all. Ours on one core is the plan of the
first device alone; on all cores it is the plan that may use every device. A network that is written
in Relay has stock TVM alone as its peer.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import geometric_mean

import numpy as np

from benchmarks.differences import relative_difference
from benchmarks.implementations import task_providers
from benchmarks.peers.stock import (
    StockExecutor,
    build_stock,
    in_pass_context,
    silence_tuning_hint,
)
from benchmarks.row_table import row_table
from benchmarks.run.comparison import (
    Prepared,
    call_timers,
    compile_once,
    place_on,
    prepare_model,
)
from heteroplace import pipeline
from heteroplace.machine.local import local_cluster
from heteroplace.measure.cost_models import CostOptions, choose_cost_model
from heteroplace.measure.timed_runs import TimedRuns, Timer, time_in_turns
from heteroplace.model.cluster import Cluster
from heteroplace.parts.onnx.peer_runtimes import (
    OnnxExecutor,
    OpenVinoExecutor,
    RuntimeExecutor,
)
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from heteroplace.stage_log import StageLog
from zoo.models.catalogue import Model, load_model, matching_names, peer_network_names

OURS, STOCK, ONNXRUNTIME, OPENVINO = "ours", "stock", "onnxruntime", "openvino"
_RUNTIMES: Mapping[str, Callable[..., OnnxExecutor | OpenVinoExecutor]] = {
    ONNXRUNTIME: OnnxExecutor,
    OPENVINO: OpenVinoExecutor,
}
_GUESSED_PER_SECOND = 10**10


def missing_runtime(package: str) -> str | None:
    """Return why a runtime cannot be compared with; None: it can."""
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed (pip install 'heteroplace[bench]'): left out"
    return None


@dataclass(frozen=True)
class PeerOptions:
    """How much time to spend."""

    is_quick: bool = False
    """Leave out stock TVM and all measuring, which take longest: our plan for all cores is then
    that of the one device of all cores."""
    num_rounds: int = 9
    turn_ns: int = 40_000_000
    """See `time_in_turns`."""
    time_limit_s: float = 5.0
    """Of the solver, for each plan."""


def run(
    only: str, say: Callable[[str], None], options: PeerOptions = PeerOptions()
) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    silence_tuning_hint()
    cluster = local_cluster(has_gpus=False)
    for runtime in _RUNTIMES:
        reason = missing_runtime(runtime)
        if reason is not None:
            say(reason)
    for name in matching_names(only, peer_network_names()):
        yield from measure_peers(load_model(name), cluster, options, prefixed(say, name))


def run_quickly(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """As `run`, with kernels alone to compare; see `PeerOptions.is_quick`."""
    return run(only, say, PeerOptions(is_quick=True))


@dataclass(frozen=True)
class PeerPrograms:
    """One network, ready to run in every way that is compared: by (who, threads)."""

    executors: Mapping[tuple[str, int], Executor]
    """Ours."""
    peers: Mapping[tuple[str, int], StockExecutor | RuntimeExecutor]
    outputs: Mapping[tuple[str, int], list[np.ndarray]]
    """Of all of them, on the same inputs."""
    providers: Mapping[str, int]
    """Number of our tasks by who made their kernels."""
    inputs: Mapping[str, np.ndarray]
    """Of every call."""

    def timers(self) -> dict[str, Timer]:
        """Return what is timed, by name."""
        timers = call_timers(self.executors, self.peers, self.inputs)
        return {_name(*key): timer for key, timer in timers.items()}

    def close(self) -> None:
        """End the threads of the peers."""
        for peer in self.peers.values():
            peer.close()


def make_programs(
    model: Model,
    cluster: Cluster,
    options: PeerOptions,
    say: Callable[[str], None] = lambda line: None,
) -> PeerPrograms:
    """Place and build a network for one core and for all; load it into the peers, run each once."""
    library = None
    if not options.is_quick:
        say("compiling with stock TVM")
        mod, params, stock_inputs = model.stock()
        library = build_stock(mod, params, cluster.devices[0].target)
        del mod, params
    prepared = (
        _estimated(model, cluster) if options.is_quick else prepare_model(model, cluster, say)
    )
    most = max((device.cores for device in cluster.devices), key=len)
    usable = [each.name for each in cluster.devices if each.cores == most or not options.is_quick]
    plans = {len(most): (tuple(usable), most)}
    plans |= {1: ((cluster.devices[0].name,), cluster.devices[0].cores[:1])}
    executors: dict[tuple[str, int], Executor] = {}
    peers: dict[tuple[str, int], StockExecutor | RuntimeExecutor] = {}
    for threads, (names, cores) in plans.items():
        say(f"placing on {', '.join(names)}")
        executors[OURS, threads] = Executor(place_on(prepared, names, options.time_limit_s))
        if library is not None:
            peers[STOCK, threads] = StockExecutor(library, stock_inputs, cores)
        if model.onnx_model is not None:
            for runtime, make in _RUNTIMES.items():
                if missing_runtime(runtime) is None:
                    peers[runtime, threads] = make(model.onnx_model, model.inputs, cores)
    outputs = {key: executor.run(model.inputs) for key, executor in executors.items()}
    outputs |= {key: peer.run() for key, peer in peers.items()}
    providers = Counter(task_providers(prepared.costed.compiled, cluster))
    return PeerPrograms(executors, peers, outputs, providers, model.inputs)


def measure_peers(
    model: Model,
    cluster: Cluster,
    options: PeerOptions,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, object]]:
    """Measure our plans for one core and for all beside the peers; return a row for each."""
    programs = make_programs(model, cluster, options, say)
    timers = programs.timers()
    say(f"measuring {len(timers)} programs in {options.num_rounds} rounds")
    timed = time_in_turns(timers, num_rounds=options.num_rounds, turn_ns=options.turn_ns)
    programs.close()
    numbers = sorted(threads for _, threads in programs.executors)
    return [row_of(model.name, threads, timed, programs) for threads in numbers]


def _estimated(model: Model, cluster: Cluster) -> Prepared:
    """The network with costs that are good enough to place it on a single device: guesses."""
    log = StageLog()
    devices = tuple(
        replace(
            device,
            flops_per_second=_GUESSED_PER_SECOND,
            memory_bytes_per_second=_GUESSED_PER_SECOND,
        )
        for device in cluster.devices
    )
    cluster = replace(cluster, devices=devices)
    costs = choose_cost_model("estimate", CostOptions())
    with in_pass_context():
        compiled = compile_once(model, cluster, log)
        costed = pipeline.cost(compiled, cluster, costs, log)
    return Prepared(model, costed, log.cpu_s("prepare", "compile", "kernels"))


def row_of(
    model: str,
    threads: int,
    timed: TimedRuns,
    programs: PeerPrograms,
) -> dict[str, object]:
    """Return the figures of one network on so many threads; times in ms.

    `ratio_best_peer` is our time to that of the quicker runtime, `ratio_stock` to stock TVM's;
    `max_rel_diff` is the largest difference from onnxruntime's outputs (without it: stock TVM's),
    over the largest of the output.
    """
    names = {who: _name(who, threads) for who in (OURS, STOCK, ONNXRUNTIME, OPENVINO)}
    there = {who: name for who, name in names.items() if name in timed.turns}
    row: dict[str, object] = {"model": model, "threads": threads}
    for who, name in names.items():
        row[f"{who}_ms"] = round(timed.median_ns(name) / 1e6, 4) if who in there else None
    best = min(
        (name for who, name in there.items() if who in _RUNTIMES),
        key=timed.median_ns,
        default=None,
    )
    row["ratio_best_peer"] = None if best is None else round(timed.ratio(names[OURS], best), 3)
    row["ratio_stock"] = (
        round(timed.ratio(names[OURS], names[STOCK]), 3) if STOCK in there else None
    )
    row["providers"] = dict(sorted(programs.providers.items()))
    reference = next((who for who in (ONNXRUNTIME, STOCK) if who in there), None)
    row["max_rel_diff"] = (
        None
        if reference is None
        else relative_difference(
            programs.outputs[OURS, threads], programs.outputs[reference, threads]
        )
    )
    return row


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, times in ms, and what they come to."""
    columns = {
        "model": "network",
        "threads": "threads",
        "ours_ms": "ours",
        "stock_ms": "stock",
        "onnxruntime_ms": "onnxruntime",
        "openvino_ms": "OpenVINO",
        "ratio_best_peer": "/ best peer",
        "ratio_stock": "/ stock",
        "max_rel_diff": "rel. diff.",
    }
    lines = [row_table(rows, columns)]
    for key, peer in (("ratio_best_peer", "the best runtime"), ("ratio_stock", "stock TVM")):
        lines += [
            line
            for threads in sorted({int(str(row["threads"])) for row in rows})
            if (line := _summary(rows, threads, key, peer)) is not None
        ]
    return "\n".join(lines)


def _summary(rows: list[dict[str, object]], threads: int, key: str, peer: str) -> str | None:
    """The geometric mean of a ratio and the worst; None: no row has it."""
    ratios = {
        str(row["model"]): float(str(row[key]))
        for row in rows
        if row["threads"] == threads and row[key] is not None
    }
    if not ratios:
        return None
    worst = max(ratios, key=lambda name: ratios[name])
    return (
        f"{threads} thread{'s' if threads > 1 else ''}: ours / {peer} is "
        f"{geometric_mean(ratios.values()):.3f} (geometric mean of {len(ratios)}), at worst "
        f"{ratios[worst]:.3f} ({worst})"
    )


def _name(who: str, threads: int) -> str:
    return f"{who}, {threads} threads"
