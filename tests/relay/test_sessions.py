"""State that a program keeps between calls: sessions, their files, and what they refuse."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx_models import make_model, node
from rank_jobs import two_hosts
from relay_models import cpu_cluster, random_costs
from test_replan import elsewhere

import heteroplace as hp
from heteroplace.cli.main import WRONG_INPUT, main
from heteroplace.cli.tvmc_plugin.tvmc import main as tvmc
from heteroplace.errors import ArtifactError, ExecutionError, SolverError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.run.executor import Executor
from heteroplace.run.sessions import Session
from heteroplace.tvm_bridge import require_tvm

pytestmark = pytest.mark.relay

PAIRS = {"h": "hn", "c": "cn"}


def filters() -> onnx.ModelProto:
    """Two filters of a signal: y = relu(x - h), hn = x / 2 + h / 4, cn = c + h."""
    nodes = [
        node("Sub", "x h", "d"),
        node("Relu", "d", "y"),
        node("Mul", "x half", "a"),
        node("Mul", "h quarter", "b"),
        node("Add", "a b", "hn"),
        node("Add", "c h", "cn"),
    ]
    sizes = {name: [2, 8] for name in ("x", "h", "c")}
    constants = {"half": np.float32(0.5), "quarter": np.float32(0.25)}
    return make_model(nodes, sizes, ["hn", "y", "cn"], constants)


class Expected:
    """The same in numpy."""

    def __init__(self) -> None:
        self.h, self.c = np.zeros((2, 2, 8), np.float32)

    def run(self, x: np.ndarray) -> np.ndarray:
        """Return y."""
        y = np.maximum(x - self.h, 0)
        self.h, self.c = x * np.float32(0.5) + self.h * np.float32(0.25), self.c + self.h
        return y

    def check(self, session: Session, x: np.ndarray) -> None:
        """Run both once."""
        (y,) = session.run(x=x)
        np.testing.assert_array_equal(y, self.run(x))
        np.testing.assert_array_equal(session.state["h"], self.h)
        np.testing.assert_array_equal(session.state["c"], self.c)


def compiled(state: Any = PAIRS, **options: Any) -> hp.Executable:
    return hp.compile(
        filters(), cpu_cluster(), costs=random_costs, solver="heft", state=state, **options
    )


@pytest.fixture(scope="module")
def executable() -> hp.Executable:
    return compiled()


@pytest.fixture
def executor(executable: hp.Executable) -> Executor:
    return Executor(executable, max_in_flight=3)


def signal(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, 8), dtype=np.float32)


def test_a_session_carries_its_state_from_call_to_call(executor: Executor) -> None:
    session, expected = executor.session(), Expected()
    assert [name for name, _, _ in session.inputs] == ["x"]
    assert [name for name, _, _ in session.outputs] == ["y"]
    for seed in range(20):
        expected.check(session, signal(seed))
    assert session.num_calls == 20
    assert repr(session) == "Session(20 calls, state h, c: 256 bytes)"


def test_sessions_know_nothing_of_each_other_nor_of_plain_calls(executor: Executor) -> None:
    sessions = [(executor.session(), Expected()) for _ in range(4)]
    for seed in range(24):
        session, expected = sessions[seed * 7 % 4]
        expected.check(session, signal(seed))
        executor.run(x=signal(), h=signal(1), c=signal(2))


def test_sessions_of_eight_threads_do_not_mix(executor: Executor) -> None:
    def work(thread: int) -> None:
        for opened in range(20):
            session, expected = executor.session(), Expected()
            for call in range(5):
                expected.check(session, signal(1000 * thread + 10 * opened + call))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))  # raises what a thread raises


def test_reset_and_initial_state(executor: Executor) -> None:
    start = {"h": signal(7)}
    session = executor.session(initial=start)
    expected = Expected()
    expected.h = start["h"]
    expected.check(session, signal())
    session.reset()
    assert session.num_calls == 0
    np.testing.assert_array_equal(session.state["h"], start["h"])
    np.testing.assert_array_equal(session.state["c"], np.zeros((2, 8)))


def test_what_callers_do_to_arrays_leaves_the_state(executor: Executor) -> None:
    start, expected = signal(7), Expected()
    expected.h = start.copy()
    session = executor.session(initial={"h": start})
    start[:] = 0
    session.state["h"][:] = 0
    expected.check(session, signal())
    session.reset()
    assert session.state["h"].any()


def test_a_fork_goes_its_own_way(executor: Executor) -> None:
    session, expected = executor.session(), Expected()
    expected.check(session, signal(0))
    other, expected_of_other = session.fork(), Expected()
    expected_of_other.h, expected_of_other.c = expected.h, expected.c
    assert other.num_calls == 1
    for seed in (1, 2):
        expected.check(session, signal(seed))
        expected_of_other.check(other, signal(seed + 10))


def test_a_file_of_a_session_goes_on_elsewhere(executor: Executor, tmp_path: Path) -> None:
    session, expected = executor.session(), Expected()
    expected.check(session, signal(0))
    session.save(tmp_path / "session.npz")
    expected.check(session, signal(1))
    other, again = Executor(compiled()).session(), Expected()
    again.run(signal(0))
    other.load(tmp_path / "session.npz")
    again.check(other, signal(1))
    again.check(other, signal(2))


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def foreign(path: Path) -> None:
    np.savez(path, x=signal())


def of_other_state(path: Path) -> None:
    np.savez(path, **{"state:h": signal()})


def of_another_shape(path: Path) -> None:
    np.savez(path, **{"state:h": signal()[:1], "state:c": signal()})


@pytest.mark.parametrize("spoil", [damaged, foreign, of_other_state, of_another_shape, Path.unlink])
def test_a_wrong_file_leaves_the_session_as_it_was(
    executor: Executor, tmp_path: Path, spoil: Any
) -> None:
    session, expected = executor.session(), Expected()
    expected.check(session, signal(0))
    path = tmp_path / "session.npz"
    session.save(path)
    spoil(path)
    with pytest.raises(ExecutionError, match=r"session\.npz"):
        session.load(path)
    expected.check(session, signal(1))


def test_a_file_that_cannot_be_written(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        executor.session().save(tmp_path / "nowhere" / "session.npz")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "inputs 'x' are missing"),
        ({"x": signal(), "h": signal()}, "'h' is state, which the session keeps"),
        ({"x": signal()[0]}, r"expected float32 \(2, 8\)"),
        ({"x": signal(), "z": signal()}, "no input 'z'"),
        (signal(), "inputs are a ndarray"),
    ],
)
def test_a_refused_call_leaves_the_state(executor: Executor, inputs: Any, message: str) -> None:
    session, expected = executor.session(), Expected()
    expected.check(session, signal(0))
    with pytest.raises(ExecutionError, match=message):
        session.run(inputs)
    expected.check(session, signal(1))


def test_outputs_are_written_in_place(executor: Executor) -> None:
    session, out = executor.session(), np.empty((2, 8), np.float32)
    (y,) = session.run(x=signal(), out=[out])
    assert y is out
    np.testing.assert_array_equal(out, np.maximum(signal(), 0))
    with pytest.raises(ExecutionError, match="2 elements; expected a list of 1 arrays"):
        session.run(x=signal(), out=[out, out])


def test_one_session_takes_one_call_at_a_time(executor: Executor) -> None:
    session = executor.session()
    with session._lock, pytest.raises(ExecutionError, match="fork the session"):
        session.run(x=signal())


def test_a_program_without_state_has_no_sessions() -> None:
    with pytest.raises(ExecutionError, match="compile it with state='auto'"):
        Executor(compiled(state={})).session()


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ({"x": signal()}, "no state 'x'; it has 'h', 'c'"),
        ({"h": signal()[0]}, "state 'h': expected float32"),
    ],
)
def test_initial_state_that_does_not_fit(
    executor: Executor, initial: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ExecutionError, match=f"initial: .*{message}"):
        executor.session(initial)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"h": "hm"}, "no output 'hm'; it has 'hn', 'y', 'cn'"),
        ({"g": "hn"}, "no input 'g'; it has 'x', 'h', 'c'"),
        ({"h": "hn", "c": "hn"}, "'hn' twice"),
        ("all", "expected 'auto'"),
    ],
)
def test_wrong_pairs_are_refused(state: Any, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        compiled(state)


def test_a_placed_module_carries_the_pairs() -> None:
    require_tvm()
    mod = from_onnx(filters()).mod
    options: dict[str, Any] = {"costs": random_costs, "solver": "heft"}
    placed = hp.HeteroPlace(cpu_cluster(), state="auto", **options)(mod)
    expected = Expected()
    session = Executor(hp.build(placed)).session()
    for seed in range(3):
        expected.check(session, signal(seed))


def test_files_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, compiled_file = tmp_path / "net.onnx", tmp_path / "net.so"
    onnx.save(filters(), model)
    command = ["compile", str(model), "-o", str(compiled_file), "--costs", "estimate"]
    main([*command, "--state", "h=hn", "--state", "c=cn"])
    capsys.readouterr()
    main(["show", str(compiled_file)])
    assert "state h <- hn\nstate c <- cn\n" in capsys.readouterr().out
    with hp.load(compiled_file) as executor:
        expected = Expected()
        for session in (executor.session(), executor.session()):
            expected = Expected()
            for seed in range(3):
                expected.check(session, signal(seed))


@pytest.mark.costly(3)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of TVM's own
@pytest.mark.parametrize("options", [["state=auto"], ["state=h=hn", "state=c=cn"]])
def test_tvmc_takes_the_pairs(tmp_path: Path, options: list[str]) -> None:
    model, compiled_file = tmp_path / "net.onnx", tmp_path / "net.so"
    onnx.save(filters(), model)
    words = [word for each in (*options, "costs=estimate") for word in ("--placement-option", each)]
    command = ["compile", str(model), "--placement", "local", "-o", str(compiled_file), *words]
    assert tvmc(command) == 0
    assert hp.load(compiled_file).session_state == (("h", "hn"), ("c", "cn"))


@pytest.mark.parametrize("state", [["auto"], ["h=hn", "c=cn"]])
def test_a_pass_context_takes_the_pairs(state: Any) -> None:
    mod = from_onnx(filters()).mod
    with tvm.transform.PassContext(opt_level=3, config={"relay.HeteroPlace.state": state}):
        executable = hp.build(mod, cpu_cluster(), costs=random_costs, solver="heft")
    assert Executor(executable).session_state == (("h", "hn"), ("c", "cn"))


def test_auto_beside_a_pair_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "net.onnx", "--state", "auto", "--state", "h=hn"]) == WRONG_INPUT
    assert "--state: 'auto' finds all pairs; give it alone" in capsys.readouterr().err


@pytest.mark.costly
def test_a_plan_that_is_made_again_keeps_the_pairs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"costs": random_costs, "solver": "heft"}
    executable = hp.compile(filters(), elsewhere(), state="auto", verify="off", **options)
    executable.export_library(tmp_path / "far.so", with_source=True)
    place_options = {"cluster": cpu_cluster(), **options}
    with hp.load(tmp_path / "far.so", on_missing="replan", place_options=place_options) as executor:
        session, expected = executor.session(), Expected()
        for seed in range(3):
            expected.check(session, signal(seed))


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.costly(14))])
def test_many_sessions_leave_nothing_behind(executor: Executor, tmp_path: Path, count: int) -> None:
    def use(number: int) -> None:
        session, expected = executor.session(), Expected()
        expected.check(session, signal(number))
        other = session.fork()
        other.save(tmp_path / "session.npz")
        session.load(tmp_path / "session.npz")
        with pytest.raises(ExecutionError):
            session.run(x=signal()[0])
        expected.check(session, signal(number + 1))

    use(0)
    gc.collect()
    objects = len(gc.get_objects())
    for number in range(count):
        use(number)
    gc.collect()
    assert len(gc.get_objects()) - objects < count / 10


def test_state_over_several_hosts_is_refused() -> None:
    with pytest.raises(SolverError, match=r"on one host, and cluster 'two' has 'a', 'b'"):
        hp.compile(filters(), two_hosts(), costs=random_costs, solver="heft", state=PAIRS)
