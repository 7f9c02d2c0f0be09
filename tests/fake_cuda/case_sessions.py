"""State of sessions in the memory of GPUs: no call copies it to the host or back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import heteroplace as hp
from heteroplace.lower.program import Program
from heteroplace.lower.program_entries import with_entries
from tests.fake_cuda.case_networks import two_gpus
from tests.fake_cuda.control import FakeCuda

tvm = pytest.importorskip("tvm")
from tvm import relay  # noqa: E402

pytestmark = pytest.mark.timeout(120)

SIZE = 48
"""Elements of each state, and of nothing else."""
PAIRS = {"h": "output1", "c": "output2"}
OPTIONS = {"costs": "estimate", "solver": "heft", "verify": "off"}


def weights(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype("float32") / 8


W_X, W_H, W_C, V = weights(SIZE, 7), weights(SIZE, SIZE), weights(SIZE, 5), weights(3, SIZE)


def network() -> tvm.IRModule:
    """hn = relu(W_X x + W_H h), y = V hn + V cn, cn = c + W_C z: returns y, hn, cn."""
    x, z, h, c = (
        relay.var(name, shape=(1, size), dtype="float32")
        for name, size in (("x", 7), ("z", 5), ("h", SIZE), ("c", SIZE))
    )
    dense = relay.nn.dense
    hn = relay.nn.relu(dense(x, relay.const(W_X)) + dense(h, relay.const(W_H)))
    cn = c + dense(z, relay.const(W_C))
    y = dense(hn, relay.const(V)) + dense(cn, relay.const(V))
    return tvm.IRModule.from_expr(relay.Function([x, z, h, c], relay.Tuple([y, hn, cn])))


class Expected:
    """The same in numpy."""

    def __init__(self) -> None:
        self.h, self.c = np.zeros((2, 1, SIZE), "float32")

    def run(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return y."""
        self.h = np.maximum(x @ W_X.T + self.h @ W_H.T, 0)
        self.c = self.c + z @ W_C.T
        result: np.ndarray = self.h @ V.T + self.c @ V.T
        return result


def inputs(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal((1, size)).astype("float32")
        for name, size in (("x", 7), ("z", 5))
    }


def check_near(one: np.ndarray, other: np.ndarray) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def check_not_copied(program: Program) -> None:
    """Nothing of the size of a state goes over a link."""
    for queue in program.queues:
        for at in queue.instructions:
            if at.kind == "copy":
                shapes = [program.tensors[int(tensor)].shape for tensor in at.fields]
                assert (1, SIZE) not in shapes


def spaces_of_state(program: Program) -> list[str]:
    tensors = [program.tensors[program.inputs[each][1]] for each, _ in program.kept_states]
    return [program.spaces[tensor.space].name for tensor in tensors]


def compiled(pin: dict[str, str]) -> hp.Executable:
    with tvm.transform.PassContext(opt_level=3):
        return hp.compile(network(), two_gpus(), state=PAIRS, pin=pin, **OPTIONS)


def test_entries_of_a_gpu_and_a_core_share_their_sessions(fake: FakeCuda) -> None:
    programs = {"far": compiled({"*": "gpu0"}), "here": compiled({"*": "cpu.0"})}
    programs["other"] = compiled({"*": "gpu1"})
    with hp.Executor(with_entries(programs)) as executor:
        session, expected = executor.session(), Expected()
        for seed, entry in enumerate(("far", "here", "here", "other", "far", "other", "here")):
            with fake.running():
                (y,) = session.run(**inputs(seed), entry=entry)
            check_near(y, expected.run(**inputs(seed)))
            check_near(session.state["h"], expected.h)


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_sessions_of_a_gpu(fake: FakeCuda, tmp_path: Path, cuda_graphs: bool) -> None:
    executable = compiled({"*": "gpu0"})
    assert spaces_of_state(executable.lowered.program) == ["gpu0", "gpu0"]
    check_not_copied(executable.lowered.program)
    executable.export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so", cuda_graphs=cuda_graphs)
    sessions = [(executor.session(), Expected()) for _ in range(2)]
    for seed in range(6):
        session, expected = sessions[seed % 2]
        given = inputs(seed)
        with fake.running():
            (y,) = session.run(**given)
        check_near(y, expected.run(**given))
        check_near(session.state["h"], expected.h)
        check_near(session.state["c"], expected.c)
    session, expected = sessions[0]
    session.save(tmp_path / "state.npz")
    fork, other = session.fork(), executor.session()
    other.load(tmp_path / "state.npz")
    wanted = expected.run(**inputs(9))
    for each in (session, fork, other):
        with fake.running():
            check_near(each.run(**inputs(9))[0], wanted)
    fork.reset()
    assert not fork.state["h"].any()
    y, h, c = executor.run(**inputs(3), h=expected.h, c=expected.c)
    check_near(y, expected.run(**inputs(3)))
    check_near(h, expected.h)
    check_near(c, expected.c)


def test_each_state_is_where_it_is_used(fake: FakeCuda) -> None:
    pin = {"dense.1": "gpu0", "dense.2": "gpu0", "dense.3": "gpu1", "dense.4": "cpu.0"}
    executable = compiled(pin)
    assert spaces_of_state(executable.lowered.program) == ["gpu0", "gpu1"]
    groups = {task.name: task.together for task in executable.solution.graph.tasks}
    assert groups["dense.1"] == groups["dense.2"] == "state h"
    with hp.Executor(executable) as executor:
        session, expected = executor.session(), Expected()
        for seed in range(3):
            with fake.running():
                (y,) = session.run(**inputs(seed))
            check_near(y, expected.run(**inputs(seed)))
            check_near(session.state["c"], expected.c)
