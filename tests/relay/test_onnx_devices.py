"""Devices in ONNX models: what is written is read, in the format's own words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx_models import tiny_cnn

from heteroplace.errors import FrontendError
from heteroplace.model.solution import Solution
from heteroplace.parts.onnx.prepare.onnx_devices import CONFIGURATION, annotate, read_devices
from tests.programs import files_of_at_most
from tests.unit.questions.worked import diamond_solution

# The tasks of the diamond, of which c is on gpu1, as if they were these nodes; n_y is on both.
MEMBERS = (("n_c:conv", "n_r:relu"), ("n_y:add",), ("n_flat:reshape", "n_y:matmul"), ())


@pytest.fixture
def solution() -> Solution:
    """A plan of the network of `tiny_cnn`."""
    found = diamond_solution()
    tasks = tuple(replace(t, members=m) for t, m in zip(found.graph.tasks, MEMBERS, strict=True))
    return replace(found, graph=replace(found.graph, tasks=tasks))


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def test_what_is_written_is_read_and_valid(solution: Solution, tmp_path: Path) -> None:
    source, path = saved(tiny_cnn(), tmp_path / "a.onnx"), tmp_path / "b.onnx"
    assert read_devices(source) == {}
    assert annotate(source, path, solution) == 4
    assert read_devices(path) == {"n_c": "gpu0", "n_r": "gpu0", "n_flat": "gpu1"}
    onnx.checker.check_model(str(path))
    model = onnx.load(path)
    assert model.ir_version >= 11
    assert [each.name for each in model.configuration] == [CONFIGURATION]
    told = {n.name: {p.key: p.value for p in n.metadata_props} for n in model.graph.node}
    assert told["n_y"] == {"heteroplace_device": "gpu0+gpu1", "heteroplace_task": "b,c"}
    # Again it stays as it is.
    annotate(path, tmp_path / "c.onnx", solution)
    assert (tmp_path / "c.onnx").read_bytes() == path.read_bytes()


def test_a_model_that_cannot_be_written_whole_stays_as_it_was(
    solution: Solution, tmp_path: Path
) -> None:
    path = saved(tiny_cnn(), tmp_path / "a.onnx")
    before = path.read_bytes()
    told = pytest.raises(FrontendError, match=r"a\.onnx: cannot be written: File too large")
    with files_of_at_most(4096), told:
        annotate(path, path, solution)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_network_stays_what_it_was(solution: Solution, tmp_path: Path) -> None:
    source, path = saved(tiny_cnn(), tmp_path / "a.onnx"), tmp_path / "b.onnx"
    annotate(source, path, solution)
    model, before = onnx.load(path), tiny_cnn()
    for node in model.graph.node:
        del node.metadata_props[:], node.device_configurations[:]
    assert model.graph.SerializeToString() == before.graph.SerializeToString()


def test_annotations_of_others_are_read(tmp_path: Path) -> None:
    model = tiny_cnn()
    model.configuration.add(name="one", num_devices=1, device=["gpu0"])
    model.configuration.add(name="two", num_devices=2, device=["cpu.0"])  # the second has no name
    nodes = model.graph.node
    nodes[0].device_configurations.add(configuration_id="one")
    chosen = nodes[1].device_configurations.add(configuration_id="two")
    chosen.sharding_spec.add(tensor_name="x", device=[1])
    shared = nodes[2].device_configurations.add(configuration_id="two")
    shared.sharding_spec.add(tensor_name="x", device=[0, 1])
    nodes[3].device_configurations.add(configuration_id="two")  # it does not say which
    path = saved(model, tmp_path / "a.onnx")
    assert read_devices(path) == {nodes[0].name: "gpu0", nodes[1].name: "two:1"}


@pytest.mark.parametrize(
    ("configuration", "position", "text"),
    [("lost", 0, "'lost', which the model does not list; it lists: one"),
     ("one", 3, "device 3 of configuration 'one', which has 1")],
)  # fmt: skip
def test_annotations_of_nothing_are_refused(
    tmp_path: Path, configuration: str, position: int, text: str
) -> None:
    model = tiny_cnn()
    model.configuration.add(name="one", num_devices=1)
    chosen = model.graph.node[0].device_configurations.add(configuration_id=configuration)
    chosen.sharding_spec.add(tensor_name="x", device=[position])
    with pytest.raises(FrontendError, match=text):
        read_devices(saved(model, tmp_path / "a.onnx"))


def test_weights_of_their_own_are_not_left_behind(solution: Solution, tmp_path: Path) -> None:
    source = tmp_path / "a.onnx"
    onnx.save(tiny_cnn(), source, save_as_external_data=True, size_threshold=0, location="w.bin")
    (tmp_path / "other").mkdir()
    with pytest.raises(FrontendError, match="write the annotated model into the same folder"):
        annotate(source, tmp_path / "other" / "b.onnx", solution)
    annotate(source, tmp_path / "b.onnx", solution)
    assert onnx.load(tmp_path / "b.onnx").graph.initializer[0].raw_data


def test_what_is_no_model_is_told(solution: Solution, tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match="there is no such file"):
        read_devices(tmp_path / "lost.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(FrontendError, match="is not an ONNX model"):
        read_devices(tmp_path / "text.onnx")
    source = saved(tiny_cnn(), tmp_path / "a.onnx")
    with pytest.raises(FrontendError, match="cannot be written"):
        annotate(source, tmp_path / "nowhere" / "b.onnx", solution)
