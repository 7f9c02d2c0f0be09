"""`benchmarks run --peers` on tiny networks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import make_model, node
from relay_models import cpu_cluster

from benchmarks.command import USAGE, main
from benchmarks.differences import largest_difference, relative_difference
from benchmarks.implementations import OWN, TVM, task_providers
from benchmarks.peers.stock import in_pass_context
from benchmarks.run import against_peers
from benchmarks.run.against_peers import PeerOptions, measure_peers, missing_runtime
from benchmarks.run.comparison import compile_once
from heteroplace.errors import FrontendError
from heteroplace.machine.local import local_cluster
from heteroplace.measure.machine_peaks import measure_peaks
from heteroplace.measure.peak_speeds import measure_speeds
from heteroplace.parts.onnx.peer_runtimes import MnnExecutor, OnnxExecutor, OpenVinoExecutor
from heteroplace.tvm_bridge import llvm_cpu_target
from zoo.models.catalogue import Model, import_model, peer_network_names
from zoo.models.onnx_graph import FLOAT, OnnxGraph

pytestmark = pytest.mark.costly

KEYS = {
    *("model", "threads", "ours_ms", "stock_ms", "onnxruntime_ms", "openvino_ms"),
    *("ratio_best_peer", "ratio_stock", "providers", "max_rel_diff"),
}


def one_op_model() -> Model:
    """Return a network of one op on sixteen numbers."""
    shape = (1, 16)
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "xy")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "one_op", [x], [y])
    opset = onnx.helper.make_opsetid("", 13)
    return import_model(
        "one_op", onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    )


@pytest.fixture(scope="module")
def small_model() -> Model:
    graph = OnnxGraph(seed=0)
    value = graph.op("Sigmoid", graph.input("image", FLOAT, 1, 8, 16, 16))
    value = graph.op("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    return import_model("small", graph.model("small", (value, (1, 8, 8, 8))))


def assert_rows(model: Model, options: PeerOptions, has_stock: bool) -> None:
    cluster = local_cluster(has_gpus=False)
    rows = measure_peers(model, cluster, options)
    numbers = sorted({1, max(len(device.cores) for device in cluster.devices)})
    assert [(row["model"], row["threads"]) for row in rows] == [(model.name, n) for n in numbers]
    for row in json.loads(json.dumps(rows)):
        assert set(row) == KEYS
        assert (row["stock_ms"] is not None) == (row["ratio_stock"] is not None) == has_stock
        assert row["ours_ms"] > 0 and row["onnxruntime_ms"] > 0 and row["ratio_best_peer"] > 0
        assert (row["openvino_ms"] is None) == (missing_runtime("openvino") is not None)
        assert row["max_rel_diff"] < 1e-5
        assert sum(row["providers"].values()) > 0
    lines = against_peers.table(rows).splitlines()
    assert len(lines) == 1 + len(rows) * (3 if has_stock else 2)
    assert f"({model.name})" in lines[-1]


def test_rows_of_peers_have_what_is_asked(small_model: Model) -> None:
    assert_rows(small_model, PeerOptions(is_quick=True, num_rounds=1, turn_ns=1), has_stock=False)


def test_rows_of_peers_have_stock_tvm_too() -> None:
    options = PeerOptions(num_rounds=1, turn_ns=1, time_limit_s=0.5)
    assert_rows(one_op_model(), options, has_stock=True)


@pytest.mark.parametrize(
    ("runtime", "package"),
    [(OnnxExecutor, "onnxruntime"), (OpenVinoExecutor, "openvino"), (MnnExecutor, "MNN")],
)
def test_a_runtime_takes_inputs_in_turns(
    runtime, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    given = [{"x": np.full((1, 16), value, np.float32)} for value in (1.0, -1.0)]
    model = one_op_model().onnx_model
    assert model is not None
    peer = runtime(model, given, local_cluster(has_gpus=False).devices[0].cores)
    try:
        assert [float(peer.run()[0].max()) for _ in range(3)] == [1.0, 0.0, 1.0]
        assert len(peer.time_calls(4)) == 4
    finally:
        peer.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("operator", "match"),
    [
        (node("NoSuchOp", "x", "y", domain="no.such.domain"), "MNN cannot convert the model"),
        (node("LpPool", "x", "y", kernel_shape=[2, 2]), "MNN cannot run the model"),
    ],
)
def test_a_model_that_mnn_cannot_take_is_an_error(operator: onnx.NodeProto, match: str) -> None:
    pytest.importorskip("MNN")
    model = make_model([operator], {"x": [1, 1, 4, 4]}, ["y"], domains=["no.such.domain"])
    given = {"x": np.ones((1, 1, 4, 4), np.float32)}
    with pytest.raises(FrontendError, match=match):
        MnnExecutor(model, given, local_cluster(has_gpus=False).devices[0].cores)


def test_a_runtime_that_is_not_installed_is_named() -> None:
    reason = missing_runtime("no_such_runtime")
    assert reason is not None and "no_such_runtime is not installed" in reason


def test_difference_is_over_the_largest_value() -> None:
    assert (
        relative_difference([np.array([2.0]), np.zeros(2)], [np.array([4.0]), np.zeros(2)]) == 0.5
    )


def test_a_value_that_is_no_number_is_infinitely_far() -> None:
    right, wrong = np.array([1.0]), np.array([np.nan])
    for difference in (largest_difference, relative_difference):
        assert difference([right, wrong], [right, right]) == np.inf
        assert difference([right, right], [right, wrong]) == np.inf


def test_networks_that_are_held_against_peers_are_enough() -> None:
    assert len(peer_network_names()) >= 14


def test_own_kernels_are_told_from_those_of_tvm(small_model: Model) -> None:
    cluster = local_cluster(has_gpus=False)
    with in_pass_context():
        compiled = compile_once(small_model, cluster)
    providers = task_providers(compiled, cluster)
    assert providers == [OWN, TVM]  # the sigmoid is vector code


def test_peaks_are_measured() -> None:
    found = measure_peaks(llvm_cpu_target(), local_cluster(has_gpus=False).devices[0].cores)
    assert found.flops_per_second > 1e8 and found.bytes_per_second > 1e7


def test_speeds_are_measured_of_cores_that_are_here_and_say_none() -> None:
    cluster = cpu_cluster()
    known = replace(cluster.devices[0], flops_per_second=1, memory_bytes_per_second=1)
    absent = replace(cluster.devices[1], cores=(4095,))
    cluster = replace(cluster, devices=(known, absent, cluster.devices[2]))
    found = measure_speeds(cluster, [device.name for device in cluster.devices])
    assert list(found) == [cluster.devices[2].name]
    assert found[cluster.devices[2].name].flops_per_second > 1e8
    assert not measure_speeds(cluster, [known.name])


def test_quick_is_for_peers_alone(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--quick"])
    assert stopped.value.code == USAGE
    assert "--quick is for `run --peers`" in capsys.readouterr().err
