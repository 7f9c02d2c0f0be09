"""The benchmarks on a tiny network: plans, peers, command lines."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from benchmarks import compile as compile_bench
from benchmarks.command import main
from benchmarks.peers.fresh_process import measure_in_fresh_process
from benchmarks.peers.stock import StockExecutor, build_stock
from benchmarks.run import command as run_bench
from benchmarks.run.comparison import (
    STOCK_ALL,
    STOCK_ONE,
    Comparison,
    ComparisonOptions,
    compare_plans,
    plan_names,
)
from heteroplace import HeteroPlaceError
from heteroplace.demo.networks import small_cnn
from heteroplace.errors import GraphError
from heteroplace.machine.local import local_cluster
from heteroplace.tvm_bridge import llvm_cpu_target
from zoo.models.catalogue import Model, load_model, model_names

pytestmark = pytest.mark.costly


def tiny_model() -> Model:
    network = small_cnn()
    image = np.random.default_rng(0).standard_normal(network.input_shapes["image"])
    return Model("tiny", network.mod, network.params, {"image": image.astype(np.float32)})


@pytest.fixture(scope="module")
def tiny_comparison() -> Comparison:
    options = ComparisonOptions(time_limit_s=1.0, num_rounds=2, turn_ns=1_000_000)
    return compare_plans(tiny_model(), local_cluster(), options)


def test_every_plan_and_peer_gives_the_same_numbers(tiny_comparison: Comparison) -> None:
    assert set(tiny_comparison.outputs) == {*tiny_comparison.executables, STOCK_ONE, STOCK_ALL}
    for name in tiny_comparison.outputs:
        difference = tiny_comparison.difference(name, STOCK_ONE)
        assert difference is not None and difference < 1e-5, name


def test_comparison_has_a_plan_for_every_kind_of_device(tiny_comparison: Comparison) -> None:
    cluster = local_cluster()
    expected = set(plan_names(cluster))
    assert set(tiny_comparison.executables) == expected
    for name in tiny_comparison.single_names:
        assert tiny_comparison.executables[name].solution.devices_used == (name,)
    assert set(tiny_comparison.measured_single_ns()) == set(tiny_comparison.single_names)


def test_plans_share_one_cost_table(tiny_comparison: Comparison) -> None:
    costed = tiny_comparison.prepared.costed
    for executable in tiny_comparison.executables.values():
        solution = executable.solution
        for column, device in enumerate(solution.cluster.devices):
            whole = costed.cluster.device_id(device.name)
            assert [row[column] for row in solution.costs.rows] == [
                row[whole] for row in costed.costs.rows
            ]


def test_rows_of_run_bench_become_a_table(tiny_comparison: Comparison) -> None:
    row = run_bench.row_of(tiny_comparison)
    assert json.loads(json.dumps(row))["name"] == "tiny"
    assert row["onnxruntime_ms"] is None
    lines = run_bench.table([row]).splitlines()
    assert len(lines) == 2 and lines[1].startswith("tiny")


def test_peer_runs_on_its_cores_and_leaves_the_caller_alone() -> None:
    model = tiny_model()
    mod, params, inputs = model.stock()
    library = build_stock(mod, params, llvm_cpu_target())
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    peer = StockExecutor(library, inputs, [core])
    try:
        assert peer._thread.call(os.sched_getaffinity, 0) == {core}
        assert len(peer.benchmark(5)) == 5
    finally:
        peer.close()
    assert os.sched_getaffinity(0) == allowed


def test_unknown_network_is_refused_by_name() -> None:
    with pytest.raises(GraphError, match="no network 'lenet': expected one of bvlc_alexnet"):
        load_model("lenet")
    assert {"resnet50", "randomly_wired"} <= set(model_names())


def test_stock_import_gets_the_inputs_under_its_own_names() -> None:
    # Its input is called "gpu_0/data_0", which TVM's importer changes.
    model = load_model("squeezenet")
    mod, params, inputs = model.stock()
    unbound = [p.name_hint for p in mod["main"].params if p.name_hint not in params]
    assert list(inputs) == unbound


def test_bench_alone_lists_its_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capsys.readouterr().err
    assert "compile" in text and "run" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--only", "("], "is not a regular expression"),
        (["compile", "--only", "no such network"], "matches no network"),
        (["sleep"], "invalid choice"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_compile_bench_names_what_failed() -> None:
    with pytest.raises(HeteroPlaceError, match=r"measuring ours on lenet failed: .*no network"):
        measure_in_fresh_process(compile_bench.__name__, "ours", "lenet")
