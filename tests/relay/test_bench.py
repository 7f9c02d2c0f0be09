"""The benchmarks on a tiny network: plans, peers, command lines."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from heteroplace import HeteroPlaceError
from heteroplace.bench import compile as compile_bench
from heteroplace.bench.command import main
from heteroplace.bench.models.catalogue import Model, load_model, model_names
from heteroplace.bench.models.networks import small_cnn
from heteroplace.bench.peers.fresh_process import measure_in_fresh_process
from heteroplace.bench.peers.stock import StockExecutor, build_stock
from heteroplace.bench.prediction.command import prediction_cluster
from heteroplace.bench.run import calls as calls_bench
from heteroplace.bench.run import command as run_bench
from heteroplace.bench.run import helping as helping_bench
from heteroplace.bench.run import in_flight, tracing
from heteroplace.bench.run.comparison import (
    CORES,
    STOCK_ALL,
    STOCK_ONE,
    Comparison,
    ComparisonOptions,
    compare_plans,
    plan_names,
)
from heteroplace.errors import GraphError
from heteroplace.machine.local import local_cluster
from heteroplace.tvm_bridge import llvm_cpu_target

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


def test_plan_without_the_device_of_all_cores_uses_only_parts(tiny_comparison: Comparison) -> None:
    if CORES not in tiny_comparison.executables:
        pytest.skip("this process may run on one core only")
    cluster = tiny_comparison.executables[CORES].solution.cluster
    assert "cpu.all" not in [device.name for device in cluster.devices]


def test_rows_of_run_bench_become_a_table(tiny_comparison: Comparison) -> None:
    row = run_bench.row_of(tiny_comparison)
    assert json.loads(json.dumps(row))["name"] == "tiny"
    assert row["onnxruntime_ms"] is None
    lines = run_bench.table([row]).splitlines()
    assert len(lines) == 2 and lines[1].startswith("tiny")


def test_rows_of_calls_have_every_mode_of_every_plan() -> None:
    options = calls_bench.CallOptions(num_rounds=1, turn_ns=1_000_000, time_limit_s=0.5)
    rows = calls_bench.measure_calls(calls_bench.tiny_model(), local_cluster(), options)
    expected = [("core", 1), ("loop", 1), ("idle", 1), *(("stream", n) for n in (1, 2, 4))]
    expected.append(("callers", 8))
    plans = list(dict.fromkeys(row["plan"] for row in rows))
    assert len(plans) == min(2, len(os.sched_getaffinity(0)))
    found = [(row["plan"], row["mode"], row["in_flight"]) for row in rows]
    assert found == [(plan, *mode) for plan in plans for mode in expected]
    for row in rows:
        assert list(row)[4:] == [
            *("ours_ms", "stock_ms", "onnxruntime_ms", "ratio_to_stock", "items_per_s"),
            "ratio_to_one_caller",
        ]
        assert (row["ratio_to_one_caller"] is None) == (row["mode"] != "callers")
        assert all(float(str(value)) >= 0 for value in list(row.values())[4:] if value is not None)
    assert len(calls_bench.table(rows).splitlines()) == 1 + len(rows)


def test_rows_of_requests_in_flight_are_held_against_one_core_and_independent_programs() -> None:
    cluster = prediction_cluster(local_cluster(has_gpus=False), all_devices=False)
    rows = in_flight.measure_in_flight(
        tiny_model(), cluster, num_rounds=1, turn_ns=1_000_000, time_limit_s=0.5
    )
    counts = in_flight.IN_FLIGHT
    found = [(row["plan"], row["in_flight"]) for row in rows]
    streams = [(plan, n) for plan in ("throughput", "latency") for n in counts]
    apart = [(f"independent {who}", len(cluster.devices)) for who in ("programs", "callers")]
    assert found == [*streams, ("one core", 1), *apart]
    own = ("rate_to_one_core", "rate_to_independent", "rate_to_callers")
    assert [row[key] for row, key in zip(rows[-3:], own, strict=True)] == [1, 1, 1]
    assert all(float(str(row["items_per_s"])) > 0 for row in rows)
    assert len(in_flight.table(rows).splitlines()) == 1 + len(rows)


def test_tracing_bench_gives_the_cost_of_an_instruction() -> None:
    row = tracing.measure_tiny(num_calls=50, num_rounds=1)
    assert list(row) == ["model", "instructions", "off_ms", "on_ms", "ratio", "ns_per_instruction"]
    assert row["instructions"] == 50 and row["ratio"] > 0
    assert len(tracing.table([row]).splitlines()) == 2


def test_rows_of_helping_have_good_and_random_plans() -> None:
    cluster = prediction_cluster(local_cluster(has_gpus=False), all_devices=False)
    rows = helping_bench.measure_helping(
        tiny_model(), cluster, num_rounds=1, turn_ns=1_000_000, time_limit_s=0.5
    )
    origins = [str(row["plan"]) for row in rows]
    assert len(origins) == 5 and "heft" in origins[1]
    assert [origin.split()[0] for origin in origins[2:]] == ["uniform", "shuffled", "uniform"]
    for row in rows:
        assert row["max_abs_diff"] == 0
        assert all(float(str(row[key])) > 0 for key in ("without_ms", "with_ms", "ratio"))
    assert len(helping_bench.table(rows).splitlines()) == 1 + len(rows)


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
