"""Arrays and --fix decide sizes and branches of a model when it is compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import make_model, node, run_onnxruntime, run_tvm

from heteroplace.cli.main import main
from heteroplace.cli.models.given_inputs import InputSizes, fixed_value, input_sizes
from heteroplace.cli.models.model_cache import CACHE_VARIABLE
from heteroplace.costs.store import PATH_VARIABLE
from heteroplace.errors import FrontendError, HeteroPlaceError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare.onnx_operands import inputs_fixed_in

pytestmark = pytest.mark.relay


def two_rates() -> onnx.ModelProto:
    """A model whose input `sr` decides between results of unlike shapes."""
    model = make_model(
        [
            node("Equal", "sr fast", "is_fast"),
            helper.make_node(
                "If", ["is_fast"], ["y"], name="n_y", then_branch=_branch("Neg"),
                else_branch=_branch("Flatten"),
            ),
        ],
        {"x": [1, "width", 2]},
        [],
        {"fast": np.array(16000)},
    )  # fmt: skip
    model.graph.input.append(helper.make_tensor_value_info("sr", TensorProto.INT64, []))
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    return model


def _branch(op: str) -> onnx.GraphProto:
    out = helper.make_tensor_value_info(op, TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [out])


def test_a_fixed_input_takes_its_branch_and_is_no_input_any_more() -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 2)).astype("float32")
    for rate in (16000, 8000):
        imported = from_onnx(two_rates(), input_shapes={"x": (1, 3, 2)}, input_values={"sr": rate})
        assert list(imported.inputs) == ["x"]
        (found,) = run_tvm(imported.mod, imported.params, {"x": x})
        (expected,) = run_onnxruntime(two_rates(), {"x": x, "sr": np.array(rate)})
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


def test_an_open_branch_says_how_to_fix_it() -> None:
    with pytest.raises(FrontendError, match=r"input_values=.* --fix NAME=VALUE"):
        from_onnx(two_rates(), input_shapes={"x": (1, 3, 2)})
    with pytest.raises(FrontendError, match="an array of float64, the file says int64"):
        from_onnx(two_rates(), input_shapes={"x": (1, 3, 2)}, input_values={"sr": 0.5})


def test_which_inputs_a_run_fixes(tmp_path: Path) -> None:
    onnx.save(two_rates(), tmp_path / "net.onnx")
    assert inputs_fixed_in(tmp_path / "net.onnx") == ("sr",)
    arrays = {"x": np.zeros((1, 5, 2), "float32"), "sr": np.array(8000)}
    sizes = input_sizes(tmp_path / "net.onnx", arrays, _Options())
    assert sizes == InputSizes(of_arrays={"x": (1, 5, 2)}, values={"sr": 8000})
    with pytest.raises(HeteroPlaceError, match="'sr' is fixed to 16000 by --fix"):
        input_sizes(tmp_path / "net.onnx", arrays, _Options([("sr", 16000)]))
    fixed = make_model([node("Neg", "x", "y")], {"x": [1, 5, 2]}, ["y"])
    onnx.save(fixed, tmp_path / "fixed.onnx")
    assert input_sizes(tmp_path / "fixed.onnx", {"x": arrays["x"]}, _Options()) == InputSizes()


class _Options:
    """Options of the command line."""

    def __init__(self, fix: list[tuple[str, object]] | None = None) -> None:
        self.fix, self.input, self.size = fix or [], [], []
        self.batch, self.command = None, "run"


def test_values_of_the_command_line(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2]))
    assert fixed_value("sr=16000") == ("sr", 16000)
    assert fixed_value("axes=[0,1]") == ("axes", [0, 1])
    assert fixed_value(f"a={tmp_path / 'a.npy'}") == ("a", [1, 2])


@pytest.mark.costly(6)
def test_run_fixes_what_its_arrays_fix_and_another_value_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "costs.sqlite"))
    onnx.save(two_rates(), "net.onnx")
    x = np.random.default_rng(0).standard_normal((1, 3, 2)).astype("float32")
    np.save("x.npy", x)
    build = ["--solver", "heft", "--runs", "1"]
    for rate in (16000, 8000):
        np.save("sr.npy", np.array(rate))
        command = ["run", "net.onnx", "--input", "x=x.npy", "--input", "sr=sr.npy", *build]
        assert main([*command, "-o", "y.npz"]) == 0
        (expected,) = run_onnxruntime(two_rates(), {"x": x, "sr": np.array(rate)})
        with np.load("y.npz") as found:
            (name,) = found.files
            np.testing.assert_array_equal(found[name], expected)
    shapes = ["--input", "x=1,3,2"]
    assert main(["compile", "net.onnx", "--fix", "sr=8000", *shapes, *build[:2]]) == 0
    capsys.readouterr()
    assert main(["run", "net.so", "--input", "sr=sr.npy"]) == 4
    assert "no input 'sr'" in capsys.readouterr().err
    assert main(["run", "net.so", "--fix", "sr=8000"]) == 4
    assert "--fix for compiling would change nothing" in capsys.readouterr().err
