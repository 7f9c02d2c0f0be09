"""`heteroplace.InferenceSession` beside onnxruntime's: the same program gives the same answers."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import heteroplace
from heteroplace.errors import ExecutionError
from heteroplace.machine.local import local_cluster

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.costly(1),
    pytest.mark.relay,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
K = np.array([1, 2, 3], np.int64)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two inputs and two outputs."""
    file = tmp_path_factory.mktemp("session") / "two.onnx"
    x = make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    k = make_tensor_value_info("k", TensorProto.INT64, [3])
    total = make_tensor_value_info("sum", TensorProto.FLOAT, [2, 3])
    twice = make_tensor_value_info("twice", TensorProto.INT64, [3])
    nodes = [
        make_node("Cast", ["k"], ["k32"], to=TensorProto.FLOAT),
        make_node("Add", ["x", "k32"], ["sum"]),
        make_node("Add", ["k", "k"], ["twice"]),
    ]
    graph = make_graph(nodes, "two", [x, k], [total, twice])
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8), file)
    return file


@pytest.fixture(scope="module")
def session(path: Path) -> Any:
    cluster = local_cluster(has_gpus=False)
    return heteroplace.InferenceSession(path, cluster=cluster, costs="measure", time_limit=1)


def test_a_program_for_onnxruntime_gives_the_same(path: Path, session: Any) -> None:
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for names in (None, ["twice"], ["twice", "sum"]):
        expected = theirs.run(names, {"x": X, "k": K})
        outputs = session.run(names, {"x": X, "k": K})
        assert len(outputs) == len(expected)
        for ours, other in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(ours, other)
    for method in ("get_inputs", "get_outputs"):
        ours, others = getattr(session, method)(), getattr(theirs, method)()
        described = [(arg.name, arg.shape, arg.type) for arg in ours]
        assert described == [(arg.name, arg.shape, arg.type) for arg in others]
    assert set(session.get_providers()) == set(session.solution.devices_used)


def test_a_run_in_the_background_calls_back(session: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    session.run_async(["sum"], {"x": X, "k": K}, lambda *of: answers.put(of), "tag")
    (outputs, user_data, error) = answers.get(timeout=60)
    assert (user_data, error) == ("tag", "")
    np.testing.assert_array_equal(outputs[0], X + K)


def test_a_compiled_file_and_bytes_are_models_too(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = local_cluster(has_gpus=False)
    heteroplace.compile(path, cluster, time_limit=1).export_library(tmp_path / "two.so")
    loaded = heteroplace.InferenceSession(tmp_path / "two.so", providers=["CPUExecutionProvider"])
    assert "ignores ['providers']" in caplog.text
    in_memory = heteroplace.InferenceSession(path.read_bytes(), cluster=cluster, time_limit=1)
    for each in (loaded, in_memory):
        np.testing.assert_array_equal(each.run(["sum"], {"x": X, "k": K})[0], X + K)


def test_wrong_names_and_bindings_are_refused(session: Any) -> None:
    with pytest.raises(ExecutionError, match="no output 'summ'; did you mean"):
        session.run(["summ"], {"x": X, "k": K})
    with pytest.raises(ExecutionError):
        session.run(None, {"x": X, "y": K})
    with pytest.raises(ExecutionError, match=r"run\(inputs, out="):
        session.io_binding()
    with pytest.raises(ExecutionError, match="io_binding"):
        session.run_with_iobinding(None)
