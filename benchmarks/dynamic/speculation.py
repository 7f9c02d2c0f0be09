"""Speculation: a network of one router and its branches beside the formula; DynamicRouting.

`speculation/ROUTER:BRANCH/pSHARE`: a router of so many parts of time in front of branches of so
many, on two one-core queues that do not help each other, over a trace in which branch 0, which is
predicted, is taken in just that share of the runs. Variants: branches of several kernels on either
core; branches of one kernel, which cannot be stopped, both beside the second core's memory. Figures
beside those of every row:

- `ours_ms`, `default_ms`: the mean of the trace with and without predictions; `speed_up` of it;
- `router_ms`: r, as a network of its own; `branch_ms`: b, what the same trace takes without
  predictions beyond r: how warm the weights of a branch are hangs on which one was taken before;
- `miss_ms`: d, the time of runs that are all predicted wrongly less theirs without a prediction;
- `formula_ms`: p max(r, b) + (1 - p) (r + b + d), or r + b where it is not predicted;
- `told_miss_ms`, `least_share`: d by the build, and what share must be right by it;
- `hit_rate`: counted by the executor; `is_predicted`: whether it is, by the build and, in the end,
  by the executor.

`speculation/MODEL/habits`: a network with many routers, on all cores as any is run, with all those
predicted whose most frequent set is more than half of the trace ("asked"), and with those that a
build makes, which may be none ("predicted"); `default_ms` is without any. `hit_rate` is what the
executor has counted when the trace was replayed once, `trace_rate` what the trace says, for the
`num_predicted` routers that are predicted; of each of them hits and calls must be the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.dynamic.builds import SOLVER_S, Builds
from benchmarks.dynamic.row import new_row
from benchmarks.dynamic.trace_runs import (
    Inputs,
    TraceRuns,
    passes,
    time_trace,
    timer_of,
)
from benchmarks.peers.stock import in_pass_context
from heteroplace.errors import HeteroPlaceError
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import local_cluster
from heteroplace.measure.cost_models import CostOptions, choose_cost_model
from heteroplace.measure.timed_runs import TimedRuns, Timer, time_in_turns
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.model.cost import batches_of
from heteroplace.model.routed.route_profile import RouteRecord
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.dynamic.speculated_routes import SpeculationTimes
from heteroplace.parts.routing.dynamic.traces import TraceOptions
from heteroplace.parts.routing.relay.passes import SpeculateRoutes
from heteroplace.parts.routing.relay.rewrite import update_routers
from heteroplace.parts.routing.solve.routed_network import solve_routed
from heteroplace.parts.routing.tasks.branch_options import predictions_of
from heteroplace.pipeline import build, cost, place, prepare
from heteroplace.pipeline import compile as compile_network
from heteroplace.place_options import PlaceOptions
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from heteroplace.simulate.decisions import decisions_of_records, expected_ns
from heteroplace.solve.problem import SolveOptions
from heteroplace.terminal import listed
from zoo.models.routed_catalogue import ROUTED
from zoo.models.routed_steps import (
    ROUTER,
    guesses,
    guessing,
    habitual,
    router_alone,
)

LAYERS: Mapping[str, tuple[int, int]] = {"1:2": (6, 12), "2:1": (12, 6)}
"""Of the router and of a branch, by the ratio of their times."""
SHARES = (0.5, 0.6, 0.9, 0.95)
NUM_RUNS = 20
"""In a trace; every share is a whole number of them."""
MANY = ("dynamic_routing", "dynamic_routing_small")
"""Networks with many routers."""
HABITS = TraceOptions(num_runs=64)
"""Of the trace of these: how many runs, and the seed."""
NUM_ROUNDS = 7
_Say = Callable[[str], None]


def rows(only: re.Pattern[str], say: _Say) -> Iterator[dict[str, object]]:
    """Measure what matches; yield its rows."""
    cluster = local_cluster(has_gpus=False)
    for ratio, layers in LAYERS.items():
        shares = [share for share in SHARES if only.search(f"speculation/{ratio}/p{share:g}")]
        for is_apart in (False, True) if shares and len(cluster.devices) > 1 else ():
            with in_pass_context():
                guess = Guess(ratio, layers, is_apart, two_cores(cluster, is_apart=is_apart))
                yield from guess.rows(shares, prefixed(say, f"speculation/{ratio}/{guess.variant}"))
    for name in MANY:
        label = f"speculation/{name}/habits"
        if only.search(label):
            with in_pass_context():
                made = many_rows(HabitRuns(ROUTED[name](), HABITS), cluster, prefixed(say, label))
            yield from [{**row, "model": name, "trace": "habits"} for row in made]


class HabitRuns(TraceRuns):
    """Runs in which each router has a favourite set of branches, as in DynamicRouting."""

    def decided(self) -> Iterator[RouteRecord]:
        """Yield what each router decides."""
        return habitual(self.network.routers, self.options.num_runs, self.options.seed)


def two_cores(cluster: Cluster, *, is_apart: bool) -> Cluster:
    """Return two of its one-core devices; the second one in a memory of its own, if so."""
    one_core = [device for device in cluster.devices if len(device.cores) == 1][:2]
    two = replace(cluster, devices=tuple(one_core))
    if not is_apart:
        return two
    far = Memory("far", cluster.memories[0].bytes)
    links = (Link("to", 0, 1, 10**10, 1000, "to"), Link("back", 1, 0, 10**10, 1000, "back"))
    # No core is to spare for copies, as in a machine that is probed.
    devices = (replace(each, memory=at, copy_engines=0) for at, each in enumerate(one_core))
    return replace(two, memories=(cluster.memories[0], far), devices=tuple(devices), links=links)


@dataclass(frozen=True)
class Guess:
    """One network of a router and its branches, on two cores."""

    ratio: str
    layers: tuple[int, int]
    """Of the router and of a branch."""
    is_apart: bool
    """Whether branches are one kernel each, both beside the second memory."""
    cluster: Cluster

    @property
    def variant(self) -> str:
        """Its name."""
        return "one kernel, one core" if self.is_apart else "kernels, either core"

    def rows(
        self, shares: Sequence[float], say: _Say, num_rounds: int = NUM_ROUNDS
    ) -> list[dict[str, object]]:
        """Return a row for each share."""
        network = guessing(*self.layers, is_one_kernel=self.is_apart)
        far = {"memories": "far,far"} if self.is_apart else {}
        say("building")
        builds = Builds(self.cluster, network.params)
        default = builds.ours(update_routers(network.mod, {ROUTER: far}), say)
        asked = update_routers(network.mod, {ROUTER: {**far, "predict": "0"}})
        options = PlaceOptions(params=network.params)
        compiled, solution = place(
            asked, self.cluster, options, SolveOptions(time_limit_s=SOLVER_S)
        )
        built = {share: build(compiled, _with_share(solution, share)) for share in shares}
        always = build(compiled, solution)
        taken = [network.steered(guesses(1, share)) for share in (1.0, 0.0)]
        plain = Executor(default, helping=False)
        timers = {
            "router": self._router(say),
            "miss": _timer(Executor(always, helping=False), taken[1:]),
            "default of misses": _timer(plain, taken[1:]),
        }
        executors = {share: Executor(built[share], helping=False) for share in shares}
        for share, executor in executors.items():
            turns = [taken[record.active[0]] for record in guesses(NUM_RUNS, share)]
            timers[f"p{share:g}"] = _timer(executor, turns)
            timers[f"default p{share:g}"] = _timer(plain, turns)
        say("measuring")
        timed = time_in_turns(timers, num_rounds=num_rounds)
        return [
            self._row(share, built[share], executor, timed) for share, executor in executors.items()
        ]

    def _router(self, say: _Say) -> Timer:
        """The router alone, on one core."""
        say("building router")
        part = router_alone(self.layers[0])
        cluster = local_cluster(self.cluster.devices[0].cores, has_gpus=False)
        built = Builds(cluster, part.params).ours(part.mod, say)
        return _timer(Executor(built, helping=False), [part.inputs()])

    def _row(
        self, share: float, built: Executable, executor: Executor, timed: TimedRuns
    ) -> dict[str, object]:
        ms = {name: timed.median_ns(name) / NUM_RUNS / 1e6 for name in timed.turns}
        name = f"p{share:g}"
        default_ms, branch_ms = ms[f"default {name}"], ms[f"default {name}"] - ms["router"]
        miss_ms = ms["miss"] - ms["default of misses"]
        (planned,) = built.solution.predictions
        counts = executor.prediction_counts()[ROUTER]
        formula = SpeculationTimes(ms["router"], branch_ms, miss_ms)
        told = formula.expected_ns(share) if counts.is_predicted else formula.default_ns
        return new_row(
            f"router and branches {self.ratio}",
            name,
            self.variant,
            "+".join(built.solution.devices_used),
            ours_ms=ms[name],
            hit_rate=counts.hit_rate,
            predicted_ms=_mean_ns(built.solution, guesses(NUM_RUNS, share), executor) / 1e6,
            default_ms=default_ms,
            speed_up=1 / timed.ratio(name, f"default {name}"),
            router_ms=ms["router"],
            branch_ms=branch_ms,
            miss_ms=miss_ms,
            formula_ms=told,
            told_miss_ms=planned.gain.miss_ns / 1e6,
            least_share=planned.gain.least_share,
            is_predicted=f"{planned.is_on}, {counts.is_predicted}",
        )


def many_rows(
    runs: TraceRuns,
    cluster: Cluster,
    say: _Say = lambda line: None,
    num_rounds: int = NUM_ROUNDS,
) -> list[dict[str, object]]:
    """Return the rows of a network with many routers, compiled and costed once."""
    inputs = runs.inputs()
    say("building")
    mod = SpeculateRoutes(runs.profile)(runs.network.bound)
    model = choose_cost_model("measure", CostOptions(PlaceOptions.store, None, "refuse"))
    network = prepare(mod, runs.network.params, cluster=cluster)
    compiled = compile_network(network, cluster, model)
    batches = batches_of(cluster, 1, compiled.graph)
    costed = cost(compiled, cluster, model, batches=batches, profile=runs.profile)
    told = predictions_of(network)
    asked = {
        "default": (),
        "asked": [replace(each, probability=None) for each in told],
        "predicted": told,
    }
    built = {}
    for name, predictions in asked.items():
        say(f"placing {name}")
        solution = solve_routed(
            *(costed.graph, cluster, costed.costs, SolveOptions(time_limit_s=SOLVER_S)),
            profile=runs.profile,
            predictions=predictions,
            interference=costed.interference_known,
        )
        built[name] = build(compiled, solution)
    executors = {name: Executor(each) for name, each in built.items()}
    say("replaying the trace")
    hits = {
        name: replayed_hits(executor, built[name].solution, runs)
        for name, executor in executors.items()
    }
    timers = {name: timer_of(executor, inputs) for name, executor in executors.items()}
    say("measuring")
    timed = time_trace(timers, len(inputs), num_rounds=num_rounds)
    return [
        _many_row(name, built[name].solution, executor, (runs, hits[name]), timed)
        for name, executor in executors.items()
        if name != "default"
    ]


def _many_row(
    name: str,
    solution: Solution,
    executor: Executor,
    replayed: tuple[TraceRuns, Mapping[str, int]],
    timed: TimedRuns,
) -> dict[str, object]:
    runs, hits = replayed
    num_runs = len(runs.inputs())
    return new_row(
        *("", "", name, "+".join(solution.devices_used)),
        ours_ms=timed.median_ns(name) / 1e6,
        hit_rate=_rate(hits, num_runs),
        predicted_ms=_mean_ns(solution, runs.records, executor) / 1e6,
        default_ms=timed.median_ns("default") / 1e6,
        speed_up=1 / timed.ratio(name, "default"),
        trace_rate=_rate(trace_hits(solution, runs.records), num_runs),
        num_predicted=len(hits),
    )


def replayed_hits(executor: Executor, solution: Solution, runs: TraceRuns) -> dict[str, int]:
    """Replay a trace once by an executor that has run nothing; return for each router that is
    predicted in how many runs nothing was missing from that, as it has counted.

    Raises
    ------
    HeteroPlaceError
        It has counted something else than the trace says, of some router.
    """
    inputs = runs.inputs()
    for given in inputs:
        executor.run(given)
    counts = executor.prediction_counts()
    expected = trace_hits(solution, runs.records)
    found = {name: counts[name].num_exact + counts[name].num_wider for name in expected}
    wrong = [
        f"{name}: {found[name]} of {counts[name].num_calls}, expected {hits} of {len(inputs)}"
        for name, hits in expected.items()
        if (found[name], counts[name].num_calls) != (hits, len(inputs))
    ]
    if wrong:
        raise HeteroPlaceError(f"hits are not those of the trace: {listed(wrong, '; ')}")
    return found


def trace_hits(solution: Solution, records: Sequence[RouteRecord]) -> dict[str, int]:
    """Return for each router that is predicted in how many of a trace's decisions nothing was
    missing from that."""
    predicted = {
        each.prediction.router: set(each.prediction.branches)
        for each in solution.predictions
        if each.is_on
    }
    found = dict.fromkeys(predicted, 0)
    for record in records:
        if record.router in predicted:
            found[record.router] += set(record.active) <= predicted[record.router]
    return found


def _rate(hits: Mapping[str, int], num_runs: int) -> float | None:
    return sum(hits.values()) / (num_runs * len(hits)) if hits else None


def _with_share(solution: Solution, share: float) -> Solution:
    """The same plan, of which it is known how often its prediction is right."""
    (planned,) = solution.predictions
    prediction = replace(planned.prediction, probability=share)
    return replace(solution, predictions=(replace(planned, prediction=prediction),))


def _mean_ns(solution: Solution, records: Sequence[RouteRecord], executor: Executor) -> float:
    """The simulated mean of a trace, predicted as the executor does in the end."""
    counts = executor.prediction_counts()
    predicted = {
        each.prediction.router: each.prediction.branches
        for each in solution.predictions
        if counts[each.prediction.router].is_predicted
    }
    decisions = decisions_of_records(solution.graph, records, predicted)
    return expected_ns(solution.graph, solution.cluster, solution.costs, solution.plan, decisions)


def _timer(executor: Executor, inputs: Sequence[Inputs]) -> Timer:
    return passes(timer_of(executor, inputs), NUM_RUNS)
