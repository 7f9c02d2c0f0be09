"""The option `verify_inputs`: outputs are compared on the user's own inputs, too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx_models import make_model, node, random_inputs, tiny_cnn
from relay_models import cpu_cluster, module, random_costs, var, weights
from test_bfloat16 import low_tasks, on_bfloat16, quick_in_bfloat16
from test_ir_truth import CPU1, Mover, moved
from tvm import relay

import heteroplace as hp
from heteroplace.bfloat16_bits import rounded_to_bfloat16
from heteroplace.cli.main import main
from heteroplace.cli.models.onnx_model import solution_json
from heteroplace.errors import ExecutionError, SolverError, VerificationError
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.model.verification import NOT_FASTER, TOO_FAR_OFF
from heteroplace.solve.solve_report import report_content

pytestmark = pytest.mark.relay

ROWS, DEPTH, COLUMNS = 16, 64, 48


def cancelling() -> onnx.ModelProto:
    """Two products of one input: one in which large numbers cancel each other, and a plain one."""
    rng = np.random.default_rng(0)
    half = rounded_to_bfloat16(rng.standard_normal((DEPTH // 2, COLUMNS)).astype(np.float32))
    plain = rng.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    nodes = [node("MatMul", "x w", "y"), node("MatMul", "x p", "q"), node("Relu", "q", "z")]
    both = {"w": np.concatenate([half, -half]), "p": plain}
    return make_model(nodes, {"x": [ROWS, DEPTH]}, ["y", "z"], both)


def large_numbers(seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs whose halves differ by little, so that most of the first product cancels."""
    rng = np.random.default_rng(seed)
    half = 100 + 10 * rng.random((ROWS, DEPTH // 2))
    moved = half + 0.1 * rng.standard_normal(half.shape)
    return {"x": np.concatenate([moved, half], axis=1).astype(np.float32)}


def small_numbers() -> dict[str, np.ndarray]:
    """Inputs like those that are made up."""
    rng = np.random.default_rng(9)
    return {"x": rng.standard_normal((ROWS, DEPTH)).astype(np.float32)}


def compiled(model: onnx.ModelProto, costs: object = random_costs, **options: Any) -> hp.Executable:
    return hp.compile(model, cpu_cluster(), costs=costs, solver="heft", **options)


@on_bfloat16
@pytest.mark.costly
def test_bf16_is_refused_by_the_inputs_on_which_it_is_far_off(tmp_path: Path) -> None:
    verification = compiled(cancelling(), precision="bf16").verification
    assert verification is not None and verification.given_inputs == ()
    file = tmp_path / "large.npz"
    np.savez(file, **large_numbers())
    with pytest.raises(
        VerificationError, match=rf"on {file}: .*bfloat16.* differs .* by \d"
    ) as err:
        compiled(cancelling(), precision="bf16", verify_inputs=[small_numbers(), file])
    assert "max_error=0.01" in str(err.value)
    loose = compiled(
        cancelling(), precision="bf16", max_error=100.0, verify_inputs=[small_numbers(), file]
    ).verification
    assert loose is not None
    first, second = loose.given_inputs
    assert (first.name, second.name) == ("verify_inputs[0]", str(file))
    assert first.max_relative_difference < 0.01 < second.max_relative_difference
    assert loose.max_relative_difference == second.max_relative_difference
    assert f"2 of verify_inputs, of which {file} is furthest off" in loose.text


@on_bfloat16
@pytest.mark.costly
def test_auto_keeps_in_float32_what_the_inputs_need_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"precision": "auto", "max_error": 0.05}
    seeded = compiled(cancelling(), quick_in_bfloat16, **options)
    assert len(low_tasks(seeded)) == 2
    auto = compiled(cancelling(), quick_in_bfloat16, verify_inputs=large_numbers(), **options)
    choice = auto.solution.precision_choice
    assert choice is not None
    assert [layer.reason for layer in choice.layers] == [TOO_FAR_OFF, ""]
    assert [layer.precision for layer in choice.layers] == ["float32", "bf16"]
    refused, low = choice.layers
    assert refused.together == 1 and refused.error is not None and refused.error > 0.05
    assert low.together == 1 and low.error is not None and low.error < 0.05
    assert choice.error is not None and 0 < choice.error < 0.05
    verification = auto.verification
    assert verification is not None and len(verification.given_inputs) == 1
    assert verification.max_relative_difference < 0.05
    _check_is_said(auto, tmp_path, capsys)


def _check_is_said(auto: hp.Executable, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The choice is in the summary, the files, the texts, the report and the JSON."""
    line = "1 of 2 tasks that may be in bfloat16 are"
    assert f"precision: {line}" in auto.summary()
    assert "in float32: 1 too far off (n_y " in auto.summary()
    auto.export_library(folder / "auto.so")
    with hp.load(folder / "auto.so") as executor:
        assert executor.solution.precision_choice == auto.solution.precision_choice
    auto.solution.save(folder / "auto.json")
    for file in ("auto.so", "auto.json"):
        main(["show", str(folder / file)])
    shown = capsys.readouterr().out
    assert shown.count(f"precision: {line}") == 2
    assert len(re.findall("^dense.* float32 +too far off .* alone ", shown, re.MULTILINE)) == 2
    pages = dict(report_content(auto.solution, None, (), (), {}, "").texts)
    assert f"precision: {line}" in pages["Layers in bfloat16"]
    value = solution_json(auto.solution)
    layer, _ = value["precision_choice"]["layers"]
    assert (layer["layers"], layer["reason"]) == (["n_y"], TOO_FAR_OFF)
    assert list(value["kernel_gains"].values()) == [{"tasks": 1, "gain_ns": 9_000}]


@on_bfloat16
@pytest.mark.costly
def test_all_inputs_of_the_caller_judge_the_plan() -> None:
    # More than those by which each choice is judged.
    many = [*[small_numbers()] * 6, large_numbers()]
    options: dict[str, Any] = {"precision": "auto", "max_error": 0.05}
    auto = compiled(cancelling(), quick_in_bfloat16, verify_inputs=many, **options)
    verification = auto.verification
    assert verification is not None and len(verification.given_inputs) == 7
    assert verification.max_relative_difference < 0.05


@on_bfloat16
@pytest.mark.costly
def test_a_relay_module_has_inputs_for_auto_alone() -> None:
    given = {"x": np.ones((16, 64), np.float32)}
    x = var("x", (16, 64))
    mod = module([x], relay.nn.dense(x, weights(48, 64)))
    hp.build(mod, cpu_cluster(), costs=quick_in_bfloat16, precision="auto", verify_inputs=given)
    with pytest.raises(VerificationError, match="leave verify_inputs out"):
        hp.build(mod, cpu_cluster(), costs=never, verify_inputs=given)


@on_bfloat16
@pytest.mark.costly
def test_layers_that_are_not_faster_stay_in_float32() -> None:
    slow = compiled(cancelling(), slow_in_bfloat16, precision="auto")
    choice = slow.solution.precision_choice
    assert choice is not None and choice.num_bf16 == 0 and choice.error == 0
    assert [layer.reason for layer in choice.layers] == [NOT_FASTER] * 2
    assert [(layer.float32_ns, layer.bf16_ns) for layer in choice.layers] == [(1_000, 10_000)] * 2
    assert "in float32: 2 not faster" in slow.summary()


def slow_in_bfloat16(graph: Any, cluster: Any) -> Any:
    """Costs by which the twins with bfloat16 kernels are slower."""
    quick = quick_in_bfloat16(graph, cluster)
    turned = {1_000: 10_000, 10_000: 1_000}
    rows = tuple(
        tuple(cell if cell.ns is None else Cost.given(turned[cell.ns]) for cell in row)
        for row in quick.rows
    )
    return table_from_rows(graph, cluster, rows)


def never(*_: Any) -> Any:
    """Costs that nobody may ask for."""
    raise AssertionError("costs were asked for")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"z": np.zeros(1, np.float32)}, r"verify_inputs\[0\]: has no array for input 'x'"),
        (
            {"x": np.zeros((ROWS, DEPTH), np.float32), "w": np.zeros(1, np.float32)},
            r"verify_inputs\[0\]: the program has no input 'w'; it has 'x'",
        ),
        ({"x": np.zeros((1, DEPTH), np.float32)}, r"expected float32 \(16, 64\), got .* \(1, 64\)"),
        ({"x": np.zeros((ROWS, DEPTH))}, "expected float32 .*, got float64 .*astype"),
        ([small_numbers(), {"x": "text"}], r"verify_inputs\[1\]: input 'x' cannot be"),
        (["missing.npz"], r"missing\.npz: cannot be read"),
    ],
)
def test_wrong_inputs_are_refused_before_anything_is_measured(given: Any, match: str) -> None:
    with pytest.raises(ExecutionError, match=match):
        compiled(cancelling(), never, verify_inputs=given)


def test_inputs_of_another_type_are_refused_at_once() -> None:
    with pytest.raises(SolverError, match="verify_inputs is 3"):
        hp.HeteroPlace(cpu_cluster(), verify_inputs=3)
    with pytest.raises(SolverError, match="verify='off' compares none"):
        hp.HeteroPlace(cpu_cluster(), verify="off", verify_inputs="x.npz")


def guarded() -> onnx.ModelProto:
    """A Relu that inputs near zero, such as those that are made up, do not reach."""
    return make_model(
        [node("Add", "x c", "a"), node("Relu", "a", "y")],
        {"x": [2, 4]},
        ["y"],
        {"c": np.array(50, np.float32)},
    )


def broken() -> tuple[tvm.IRModule, Mapping[str, Any]]:
    """The module of `guarded`, with an absolute value in place of the Relu."""
    mod, params = hp.frontend.from_onnx(guarded())
    main = mod["main"]
    body = relay.abs(main.body.args[0])
    changed = relay.Function(main.params, body, main.ret_type, main.type_params, main.attrs)
    return tvm.IRModule.from_expr(changed), params


NEGATIVE = {"x": np.full((2, 4), -60, np.float32)}


@pytest.mark.costly(8)
def test_a_fault_that_only_the_inputs_show_is_an_error() -> None:
    mod, params = broken()
    options: dict[str, Any] = {"costs": random_costs, "solver": "heft"}
    hp.build(mod, cpu_cluster(), params, **options)
    with pytest.raises(VerificationError, match=r"on verify_inputs\[0\]: the compiled network"):
        hp.build(mod, cpu_cluster(), params, verify_inputs=NEGATIVE, **options)
    # The inputs travel with a placed module, or are given when it is built.
    placed = hp.HeteroPlace(cpu_cluster(), params=params, verify_inputs=NEGATIVE, **options)(mod)
    with pytest.raises(VerificationError, match=r"on verify_inputs\[0\]"):
        hp.build(placed)
    late = hp.HeteroPlace(cpu_cluster(), params=params, **options)(mod)
    hp.build(late)
    with pytest.raises(VerificationError, match=r"on verify_inputs\[0\]"):
        hp.build(late, verify_inputs=NEGATIVE)
    with pytest.raises(VerificationError, match=r"on verify_inputs\[0\]"):
        hp.build(late, cpu_cluster(), verify_inputs=NEGATIVE)
    with pytest.raises(SolverError, match="compares none"):
        hp.build(late, verify="off", verify_inputs=NEGATIVE)


@pytest.mark.costly
def test_a_pass_context_names_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **NEGATIVE)
    mod, params = hp.frontend.from_onnx(guarded())
    config = {"relay.HeteroPlace.verify_inputs": [str(tmp_path / "a.npz")]}
    with tvm.transform.PassContext(opt_level=3, config=config):
        executable = hp.build(mod, cpu_cluster(), params, costs=random_costs, solver="heft")
    verification = executable.verification
    assert verification is not None
    assert [each.name for each in verification.given_inputs] == [str(tmp_path / "a.npz")]


@pytest.mark.costly
def test_a_new_plan_keeps_the_inputs() -> None:
    model = tiny_cnn()
    mod, params = hp.frontend.from_onnx(model)
    options: dict[str, Any] = {"costs": "estimate", "pin": {"*": "cpu.0"}}
    place = hp.HeteroPlace(
        cpu_cluster(), params=params, verify_inputs=random_inputs(model, 5), **options
    )
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(moved(place(mod), Mover("", CPU1, op="add")))
    assert "made anew from the annotations" in executable.summary()
    assert executable.verification is not None
    assert [each.name for each in executable.verification.given_inputs] == ["verify_inputs[0]"]


@pytest.mark.costly
def test_each_item_of_several_gets_the_inputs() -> None:
    model = make_model([node("Relu", "x", "y")], {"x": [1, 4]}, ["y"])
    given = [{"x": np.full((1, 4), number, np.float32)} for number in (-60, 60)]
    executable = hp.compile(model, cpu_cluster(), costs="estimate", items=2, verify_inputs=given)
    assert executable.verification is not None
    assert [each.max_relative_difference for each in executable.verification.given_inputs] == [0, 0]


@pytest.mark.costly(8)
def test_the_command_line_takes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HETEROPLACE_MODELS", str(tmp_path / "models"))
    model, files = tmp_path / "net.onnx", [tmp_path / name for name in ("a.npz", "b.npz")]
    onnx.save(guarded(), model)
    words = ["run", str(model), "--costs", "estimate", "--runs", "1", "--json", "-q"]
    for file in files:
        np.savez(file, **NEGATIVE)
        words += ["--verify-inputs", str(file)]

    def result() -> Any:
        main(words)
        return json.loads(capsys.readouterr().out)

    first = result()
    assert [each["name"] for each in first["verification"]["given_inputs"]] == list(map(str, files))
    assert "compiled in" in first["origin"] and "compiled before" in result()["origin"]
    np.savez(files[0], x=np.zeros((2, 4), np.float32))
    assert "compiled in" in result()["origin"]
