"""`dynamic`: a module is built once, long runs have fewer rounds, peers have all cores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import tvm
from tvm import relay

import heteroplace
from benchmarks.dynamic import early_exit, preload, trace_runs, traces
from benchmarks.dynamic.builds import Builds
from benchmarks.dynamic.trace_runs import TraceRuns
from heteroplace.machine.local import local_cluster


def module(width: int) -> tvm.IRModule:
    x = relay.var("x", shape=(1, width))
    return tvm.IRModule.from_expr(relay.nn.relu(x))


def test_a_module_is_built_once_whatever_the_trace_is(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tvm.IRModule] = []
    monkeypatch.setattr(heteroplace, "build", lambda mod, *_, **__: built.append(mod) or len(built))
    builds = Builds(local_cluster(has_gpus=False), {})
    found = [builds.ours(module(width), print) for width in (1, 2, 1)]
    assert found == [1, 2, 1]
    # What is made for the profile of a trace is another thing for another trace.
    assert [builds.ours(module(1), print, Path("routes.json")) for _ in range(2)] == [3, 4]


@pytest.mark.parametrize(("experiment", "only"), [(traces, "switch_layer_small/"), (preload, "")])
def test_the_traces_of_a_network_share_its_builds(
    experiment, only: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(experiment, "rows_of", lambda *given: seen.append(given) or [])
    assert list(experiment.rows(re.compile(only), print)) == []
    (builds,) = {each for given in seen for each in given if isinstance(each, Builds)}
    networks = [
        each.network if isinstance(each, TraceRuns) else each
        for each in (given[1 if experiment is traces else 0] for given in seen)
    ]
    assert len(seen) > 1 and all(network is networks[0] for network in networks)
    assert builds._params is networks[0].params


@pytest.mark.parametrize(("run_ns", "rounds"), [(1_000, 7), (10**9, 4), (4 * 10**9, 3)])
def test_long_runs_are_measured_in_fewer_rounds(
    run_ns: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    monkeypatch.setattr(trace_runs, "run_ns", lambda *given: done.append(given) or [run_ns])
    assert trace_runs.mean_run_ns({"ours": (None, [])}) == {"ours": run_ns}
    assert len(done) == rounds


class Peer:
    """onnxruntime, of which only the cores are told."""

    cores: list[list[int]]

    def __init__(self, model: object, inputs: object, cores: list[int]) -> None:
        self.cores.append(cores)

    def time_calls(self, num_runs: int) -> list[int]:
        return [1] * num_runs

    def close(self) -> None:
        pass


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Peer]]:
    Peer.cores = []
    for experiment in (traces, early_exit):
        monkeypatch.setattr(experiment, "OnnxExecutor", Peer)
    yield Peer


TWO_CORES = SimpleNamespace(
    devices=[SimpleNamespace(cores=cores) for cores in ((3,), (5,), (3, 5))]
)


def test_a_peer_of_a_trace_has_all_cores(peer: type[Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "StockExecutor", Peer)
    builds = SimpleNamespace(cluster=TWO_CORES, stock=lambda mod: None)
    form = SimpleNamespace(graph=SimpleNamespace(input=[]))
    with ExitStack() as stack:
        timers = traces._peers(stack, module(1), builds, {}, form)
    assert list(timers) == ["stock", "onnxruntime"]
    assert [list(cores) for cores in peer.cores] == [[3, 5]] * 2


def test_a_peer_with_exits_has_the_cores_of_the_variant(
    peer: type[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Builds, "ours", lambda self, mod, say: None)
    program = SimpleNamespace(solution=SimpleNamespace(cluster=TWO_CORES))
    monkeypatch.setattr(early_exit, "Executor", lambda executable: program)
    monkeypatch.setattr(early_exit, "timer_of", lambda executor, inputs: None)
    monkeypatch.setattr(early_exit, "time_in_turns", lambda timers, num_rounds: None)
    monkeypatch.setattr(early_exit, "mean_run_ns", lambda executors: {})
    assert early_exit.rows_of([], "all cores", TWO_CORES, layers=(1, 1, 1, 1)) == []
    assert [list(cores) for cores in peer.cores] == [[3, 5]]
