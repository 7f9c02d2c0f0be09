"""One executable that has a model at several sizes, over the same weights and state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import make_model, node
from relay_models import cpu_cluster, random_costs
from test_memory_by_lifetime import needs_two_cores, two_memories

import heteroplace as hp
from heteroplace.cli.main import main
from heteroplace.errors import ArtifactError, ExecutionError, FrontendError, LoweringError
from heteroplace.files.placement import Placement
from heteroplace.lower.program_entries import with_entries
from heteroplace.native.compiled_file import read_manifest

pytestmark = pytest.mark.relay

SIZES = {"one": {"x": (1, 64)}, "many": {"x": (4, 64)}}


def running_mean(rows: str | int = "n") -> onnx.ModelProto:
    """y = relu(x W - h), hn = h / 2 + mean of the rows of x W."""
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype("float32") / 8
    nodes = [
        node("MatMul", "x w", "p"),
        node("Sub", "p h", "d"),
        node("Relu", "d", "y"),
        node("ReduceMean", "p", "m", axes=[0], keepdims=1),
        node("Mul", "h half", "a"),
        node("Add", "a m", "hn"),
    ]
    constants = {"w": weights, "half": np.float32(0.5)}
    return make_model(nodes, {"x": [rows, 64], "h": [1, 64]}, ["y", "hn"], constants)


class Expected:
    """The same in numpy."""

    def __init__(self) -> None:
        (self.weights,) = (
            onnx.numpy_helper.to_array(each)
            for each in running_mean().graph.initializer
            if each.name == "w"
        )
        self.h = np.zeros((1, 64), "float32")

    def run(self, x: np.ndarray) -> np.ndarray:
        """Return y."""
        product = x @ self.weights
        y = np.maximum(product - self.h, 0)
        self.h = self.h / 2 + product.mean(0, keepdims=True)
        return y


def compiled(**options: object) -> hp.Executable:
    return hp.compile(
        running_mean(),
        cpu_cluster(),
        costs=random_costs,
        solver="heft",
        state={"h": "hn"},
        entries=SIZES,
        **options,  # type: ignore[arg-type]
    )


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 64)).astype("float32")


@pytest.fixture(scope="module")
def executable() -> hp.Executable:
    return compiled()


def check_runs(executor: hp.Executor) -> None:
    """A session goes on through both entries."""
    assert list(executor.entries) == ["one", "many"]
    session, expected = executor.session(), Expected()
    for seed, count in enumerate([1, 4, 4, 1, 1, 4]):
        x = rows(count, seed)
        (y,) = session.run(x=x)
        np.testing.assert_allclose(y, expected.run(x), rtol=1e-4, atol=1e-5)
    x = rows(4, 9)
    (y,) = session.run(x=x, entry="many")
    np.testing.assert_allclose(y, expected.run(x), rtol=1e-4, atol=1e-5)


@pytest.mark.costly
def test_a_session_goes_on_through_all_entries(executable: hp.Executable) -> None:
    with hp.Executor(executable) as executor:
        check_runs(executor)


def test_a_file_has_all_entries(
    executable: hp.Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    executable.export_library(tmp_path / "model.so")
    manifest = read_manifest(tmp_path / "model.so")
    assert manifest.entry == "one"
    (many,) = manifest.entries
    assert (many.name, many.manifest.inputs[0][1]) == ("many", (4, 64))
    assert main(["show", str(tmp_path / "model.so")]) == 0
    text = capsys.readouterr().out
    assert "\nentry one: x [1,64]; predicted " in text
    assert "\nentry many: x [4,64]; predicted " in text
    with hp.load(tmp_path / "model.so") as executor:
        check_runs(executor)
        many_rows = executor.entries["many"]
        y, _ = many_rows.run(x=rows(4, 0), h=np.zeros((1, 64), "float32"))
        np.testing.assert_allclose(y, Expected().run(rows(4, 0)), rtol=1e-4, atol=1e-5)


def test_equal_weights_lie_in_the_file_once(executable: hp.Executable) -> None:
    programs = [executable, *executable.entries.values()]
    assert len({id(each.blob) for each in programs}) == 1


@pytest.mark.costly
@needs_two_cores
def test_entries_keep_state_in_memories_of_their_own() -> None:
    places = {"one": "cpu.1", "many": "cpu.0"}
    programs = {
        name: hp.compile(
            running_mean(),
            two_memories(2**30),
            costs=random_costs,
            solver="heft",
            state={"h": "hn"},
            input_shapes=sizes,
            pin={"*": places[name]},
        )
        for name, sizes in SIZES.items()
    }
    spaces = [[space.name for space in each.lowered.program.spaces] for each in programs.values()]
    assert ["ram1" in names for names in spaces] == [True, False]
    with hp.Executor(with_entries(programs)) as executor:
        check_runs(executor)
        session = executor.session(initial={"h": np.ones((1, 64), "float32")})
        before = session.num_bytes
        session.run(x=rows(4, 0))
        assert session.num_bytes == 2 * before
        fork = session.fork()
        (expected,) = session.run(x=rows(1, 1))
        np.testing.assert_array_equal(fork.run(x=rows(1, 1))[0], expected)
        np.testing.assert_array_equal(fork.state["h"], session.state["h"])
        session.reset()
        np.testing.assert_array_equal(session.state["h"], np.ones((1, 64), "float32"))


def test_a_wrong_entry_is_refused(executable: hp.Executable) -> None:
    with hp.Executor(executable) as executor:
        session = executor.session()
        with pytest.raises(ExecutionError, match="no entry 'few'; the file has one, many"):
            session.run(x=rows(1, 0), entry="few")
        with pytest.raises(ExecutionError, match=r"input 'x': expected float32 \(1, 64\)"):
            session.run(x=rows(3, 0))


def test_entries_with_other_state_are_refused() -> None:
    model = make_model(
        [node("Add", "x h", "y"), node("Mul", "h h", "hn")],
        {"x": ["n", 8], "h": ["n", 8]},
        ["y", "hn"],
    )
    with pytest.raises(LoweringError, match=r"state 'h' is float32 \[1, 8\] in entry"):
        hp.compile(
            model,
            cpu_cluster(),
            costs=random_costs,
            solver="heft",
            state="auto",
            entries={"a": {"x": (1, 8), "h": (1, 8)}, "b": {"x": (2, 8), "h": (2, 8)}},
        )


def test_several_entries_have_no_relay_module(executable: hp.Executable, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="several entries"):
        executable.export_library(tmp_path / "model.so", with_source=True)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "entries is empty"),
        ({"one": 1}, "is 1, of type int; expected sizes by their names"),
        ([1], "entries is of type list"),
        ({"one": {"width": 4}}, "no input has a free size 'width'; free are: n"),
    ],
)
def test_wrong_entries_are_refused_before_anything_is_compiled(entries: Any, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        hp.compile(running_mean(), cpu_cluster(), costs=random_costs, entries=entries)


def test_entries_on_other_devices_are_refused(executable: hp.Executable) -> None:
    solution = executable.solution
    cluster = replace(solution.cluster, devices=tuple(reversed(solution.cluster.devices)))
    other = replace(
        executable,
        manifest=replace(
            executable.manifest,
            placement=Placement.of(replace(solution, cluster=cluster), executable.memory),
        ),
    )
    with pytest.raises(LoweringError, match="entry 'b' is placed on other devices than 'a'"):
        with_entries({"a": executable, "b": other})
