"""`bench run --calls`: what a caller sees of one network: time per call and per item, by mode.

All are timed from arrays to arrays by the caller's clock, and take turns: our `run` in a loop and
from idle, `run_many` with so many requests in flight; stock TVM's graph executor (set_input, run,
get_output) and onnxruntime in a loop and from idle, all on the cores of the plan, to which a caller
of one request is bound too: he does the part of a worker, as the peers' does all. Callers beside
workers (several requests in flight, several callers) have the cores of the process: on those of
the plan each would wait for the other's slice of time. In the mode `core` no caller takes part:
`Executor.benchmark` against stock's compiled function alone. In the mode `callers` eight threads
call two executors of the same plan, on the same cores, each in a loop: by how much less they get
than the best that one caller gets is `ratio_to_one_caller`.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from heteroplace.bench.models.catalogue import Model, import_model, load_model, model_names
from heteroplace.bench.peers.runtimes import OnnxExecutor
from heteroplace.bench.peers.stock import (
    StockExecutor,
    build_stock,
    silence_tuning_hint,
    time_runs,
)
from heteroplace.bench.peers.timed_runs import (
    TimedRuns,
    Timer,
    at_once,
    cluster_cores,
    on_cores,
    time_in_turns,
)
from heteroplace.bench.row_table import row_table
from heteroplace.bench.run.comparison import CORES, place_on, plan_names, prepare_model
from heteroplace.machine.local import local_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor

TINY = "tiny"
"""A network of one small op: what is left of its time is the call."""
IN_FLIGHT = (1, 2, 4)
IDLE_S = 0.02
"""How long nobody calls before a call from idle."""
_MOST_IDLE_RUNS = 10
NUM_CALLERS = 8
_OURS, _STOCK, _ONNX = "ours", "stock", "onnxruntime"
_CORE, _LOOP, _IDLE, _STREAM, _CALLERS = "core", "loop", "idle", "stream", "callers"


@dataclass(frozen=True)
class CallOptions:
    """How much time to spend."""

    num_rounds: int = 9
    turn_ns: int = 40_000_000
    """See `time_in_turns`."""
    time_limit_s: float = 5.0
    """Of the solver, for each plan."""


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    silence_tuning_hint()
    cluster = local_cluster(has_gpus=False)
    for name in filter(re.compile(only).search, (TINY, *model_names())):
        model = tiny_model() if name == TINY else load_model(name)
        yield from measure_calls(model, cluster, CallOptions(), prefixed(say, name))


def tiny_model() -> Model:
    """Return a network of one op on sixteen numbers."""
    shape = (1, 16)
    ports = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"
    ]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], TINY, ports[:1], ports[1:])
    opset = onnx.helper.make_opsetid("", 13)
    return import_model(TINY, onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8))


def measure_calls(
    model: Model,
    cluster: Cluster,
    options: CallOptions,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, object]]:
    """Place a network on one core and, where there are more, on several; measure its calls.

    Stock TVM and onnxruntime have the cores of the plan.
    """
    say("compiling with stock TVM")
    mod, params, inputs = model.stock()
    library = build_stock(mod, params, cluster.devices[0].target)
    prepared = prepare_model(model, cluster, say)
    first = cluster.devices[0]
    names = plan_names(cluster)
    plans: dict[str, tuple[str, ...]] = {first.name: (first.name,)}
    if CORES in names:
        plans["+".join(names[CORES])] = names[CORES]
    rows = []
    for plan, devices in plans.items():
        say(f"placing on {plan}")
        executable = place_on(prepared, devices, options.time_limit_s)
        executors = [Executor(executable, max_in_flight=max(IN_FLIGHT)) for _ in range(2)]
        cores = cluster_cores(executable.solution.cluster)
        stock = StockExecutor(library, inputs, cores)
        peer = None
        if model.onnx_model is not None:
            peer = OnnxExecutor(model.onnx_model, model.inputs, cores)
        say(f"measuring calls in {options.num_rounds} rounds")
        timed = time_in_turns(
            _timers(executors, model, stock, peer, cores),
            num_rounds=options.num_rounds,
            turn_ns=options.turn_ns,
        )
        rows += rows_of(model.name, plan, timed)
        stock.close()
        if peer is not None:
            peer.close()
    return rows


def _timers(
    executors: Sequence[Executor],
    model: Model,
    stock: StockExecutor,
    peer: OnnxExecutor | None,
    cores: Sequence[int],
) -> dict[str, Timer]:
    executor = executors[0]

    def call() -> list[np.ndarray]:
        return executor.run(model.inputs)

    def rarely(time_calls: Callable[[int, float], list[int]]) -> Timer:
        return lambda num_runs: time_calls(min(num_runs, _MOST_IDLE_RUNS), IDLE_S)

    called: dict[str, Timer] = {
        _key(_OURS, _LOOP): lambda num_runs: time_runs(call, num_runs),
        _key(_OURS, _IDLE): rarely(lambda num_runs, pause_s: time_runs(call, num_runs, pause_s)),
        _key(_OURS, _STREAM, 1): stream_timer(executor, model.inputs, 1),
    }
    timers = {key: on_cores(timer, cores) for key, timer in called.items()}
    timers |= {
        _key(_OURS, _STREAM, count): stream_timer(executor, model.inputs, count)
        for count in IN_FLIGHT
        if count > 1
    }
    timers |= {
        _key(_OURS, _CALLERS, NUM_CALLERS): callers_timer(executors, model.inputs),
        _key(_OURS, _CORE): executor.benchmark,
        _key(_STOCK, _CORE): stock.benchmark,
        _key(_STOCK, _LOOP): stock.time_calls,
        _key(_STOCK, _IDLE): rarely(stock.time_calls),
    }
    if peer is not None:
        timers[_key(_ONNX, _LOOP)] = peer.time_calls
        timers[_key(_ONNX, _IDLE)] = rarely(peer.time_calls)
    call()  # `benchmark` runs on the values of the last call
    return timers


def stream_timer(executor: Executor, inputs: Mapping[str, np.ndarray], in_flight: int) -> Timer:
    """Return the timer of `run_many`: a run is an item, all take as long.

    The first `in_flight` results fill it and the last ones drain it: they are not counted.
    """

    def timer(num_runs: int) -> list[int]:
        items = itertools.repeat(inputs, num_runs + 2 * in_flight - 1)
        results = executor.run_many(items, in_flight=in_flight)
        stamps = [time.perf_counter_ns() for _ in results]
        counted_ns = stamps[in_flight - 1 + num_runs] - stamps[in_flight - 1]
        return [counted_ns // num_runs] * num_runs

    return timer


def callers_timer(executors: Sequence[Executor], inputs: Mapping[str, np.ndarray]) -> Timer:
    """Return the timer of NUM_CALLERS threads that call the executors, each in a loop: a run is a
    call of any of them, all take as long. The first call of each is not counted."""
    loops = [
        partial(time_runs, partial(executors[number % len(executors)].run, inputs))
        for number in range(NUM_CALLERS)
    ]

    def timer(num_runs: int) -> list[int]:
        times = at_once([partial(loop, num_runs + 1) for loop in loops])
        calls_per_ns = sum(num_runs / sum(each[1:]) for each in times)
        return [round(1 / calls_per_ns)] * num_runs

    return timer


def _key(who: str, mode: str, in_flight: int = 1) -> str:
    return f"{who} {mode} {in_flight}"


def rows_of(model: str, plan: str, timed: TimedRuns) -> list[dict[str, object]]:
    """Return a row for each mode, times in ms per item.

    Peers have one request in flight: a stream, and callers, are held against their loop. So is
    onnxruntime's in the mode `core`, as it has no other.
    """
    modes = [(_CORE, 1), (_LOOP, 1), (_IDLE, 1), *((_STREAM, count) for count in IN_FLIGHT)]
    one_caller = [_key(_OURS, mode, in_flight) for mode, in_flight in modes if mode != _CORE]
    best = min(one_caller, key=timed.median_ns)
    modes.append((_CALLERS, NUM_CALLERS))
    rows: list[dict[str, object]] = []
    for mode, in_flight in modes:
        ours = _key(_OURS, mode, in_flight)
        stock = _key(_STOCK, _LOOP if mode in (_STREAM, _CALLERS) else mode)
        onnx_key = _key(_ONNX, _IDLE if mode == _IDLE else _LOOP)
        ns = timed.median_ns(ours)
        rows.append(
            {
                "model": model,
                "plan": plan,
                "mode": mode,
                "in_flight": in_flight,
                "ours_ms": _ms(ns),
                "stock_ms": _ms(timed.median_ns(stock)),
                "onnxruntime_ms": _ms(timed.median_ns(onnx_key))
                if onnx_key in timed.turns
                else None,
                "ratio_to_stock": round(timed.ratio(ours, stock), 3),
                "items_per_s": round(1e9 / ns, 2),
                "ratio_to_one_caller": round(timed.ratio(best, ours), 3)
                if mode == _CALLERS
                else None,
            }
        )
    return rows


def table(rows: Iterable[dict[str, object]]) -> str:
    """Return the rows as text; times in ms."""
    return row_table(rows, num_names=3)


def _ms(ns: int) -> float:
    return round(ns / 1e6, 6)
