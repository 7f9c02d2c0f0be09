"""A small decoder with experts: the logits of numpy and onnxruntime, in sessions of two entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_models as om
import pytest
from numpy_mixtral import mixtral_logits
from relay_models import TARGET, cores, cpu_cluster

import heteroplace as hp
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from zoo import mixtral as zoo_mixtral
from zoo.mixtral import mixtral, tiny_sizes

pytestmark = pytest.mark.relay

SIZES = tiny_sizes()
ROOM, PROMPT, TOTAL = 24, 8, 13
_TOKENS = np.random.default_rng(1).integers(0, SIZES.vocabulary, TOTAL)
_SMALL = 900_000
"""Bytes; the weights take 1.35 million."""
_ENTRIES = {"token": {"sequence_length": 1}, "prompt": {"sequence_length": PROMPT}}


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """The logits of all tokens, [length, vocabulary]."""
    logits = mixtral_logits(mixtral(SIZES, is_fused=False), SIZES, _TOKENS)
    assert np.abs(logits).max() > 1
    return logits


def mask(end: int) -> np.ndarray:
    return (np.arange(ROOM) < end).astype(np.int64)[None]


def calls() -> Iterator[tuple[int, int]]:
    """Where the tokens of each call begin and end: the prompt, then one by one."""
    yield 0, PROMPT
    yield from ((end - 1, end) for end in range(PROMPT + 1, TOTAL + 1))


def compiled(model: onnx.ModelProto, verify: str) -> hp.Executable:
    return hp.compile(
        model,
        cpu_cluster(),
        costs="estimate",
        solver="heft",
        verify=verify,
        state="auto",
        sizes={"batch_size": 1, "past_sequence_length": ROOM, "total_sequence_length": ROOM},
        entries=_ENTRIES,
    )


@pytest.mark.costly(30)
@pytest.mark.parametrize(("is_fused", "verify"), [(True, "off"), (False, "auto")])
def test_a_session_has_the_logits_of_numpy(
    is_fused: bool, verify: str, expected: np.ndarray
) -> None:
    executable = compiled(mixtral(SIZES, is_fused=is_fused), verify)
    with hp.Executor(executable) as executor:
        session = executor.session()
        for begin, end in calls():
            (logits,) = session.run(input_ids=_TOKENS[None, begin:end], attention_mask=mask(end))
            np.testing.assert_allclose(logits[0], expected[begin:end], rtol=1e-3, atol=1e-3)


def apart() -> Cluster:
    """Two cores with a memory each, which is too small for the model."""
    memories = (Memory("near", _SMALL), Memory("far", _SMALL))
    devices = tuple(
        Device(f"cpu.{at}", "cpu", TARGET, at, at, (core,)) for at, core in enumerate(cores())
    )
    links = (Link("there", 0, 1, 10**10, 1000, "there"), Link("back", 1, 0, 10**10, 1000, "back"))
    return Cluster("apart", memories, devices, links, 0)


@pytest.mark.costly(30)
def test_entries_are_placed_together_over_two_memories(expected: np.ndarray) -> None:
    executable = hp.compile(
        mixtral(SIZES),
        apart(),
        costs="estimate",
        time_limit=2,
        verify="off",
        state="auto",
        sizes={"batch_size": 1, "past_sequence_length": ROOM, "total_sequence_length": ROOM},
        entries=_ENTRIES,
        workload={"token": TOTAL - PROMPT, "prompt": 1},
    )
    programs = [executable, *executable.entries.values()]
    assert all(len(each.solution.devices_used) == 2 for each in programs)
    with hp.Executor(executable) as executor:
        session = executor.session()
        for begin, end in calls():
            (logits,) = session.run(input_ids=_TOKENS[None, begin:end], attention_mask=mask(end))
            np.testing.assert_allclose(logits[0], expected[begin:end], rtol=1e-3, atol=1e-3)


@pytest.mark.costly(30)
def test_experts_lie_in_two_memories_that_are_too_small_for_all(expected: np.ndarray) -> None:
    executable = hp.compile(
        mixtral(SIZES, length=1, past=ROOM),
        apart(),
        costs="estimate",
        solver="heft",
        verify="off",
        state="auto",
    )
    assert min(each.weights_bytes for each in executable.memory) > _SMALL // 4
    products = [
        each
        for queue in executable.lowered.program.queues
        for each in queue.instructions
        if each.kind == "branch_call"
    ]
    assert len(products) == 3 * SIZES.experts * SIZES.attention.layers
    with hp.Executor(executable) as executor:
        session = executor.session()
        for at in range(TOTAL):
            (logits,) = session.run(
                input_ids=_TOKENS[None, at : at + 1], attention_mask=mask(at + 1)
            )
            np.testing.assert_allclose(logits[0, 0], expected[at], rtol=1e-3, atol=1e-3)


@pytest.mark.costly(30)
def test_onnxruntime_has_the_logits_of_numpy(expected: np.ndarray) -> None:
    past: dict[str, np.ndarray] = {}
    for begin, end in calls():
        model = mixtral(SIZES, length=end - begin, past=ROOM)
        names = [each.name for each in model.graph.output]
        for each in model.graph.input[2:]:
            shape = [dim.dim_value for dim in each.type.tensor_type.shape.dim]
            past.setdefault(each.name, np.zeros(shape, "float32"))
        inputs = {"input_ids": _TOKENS[None, begin:end], "attention_mask": mask(end), **past}
        outputs = dict(zip(names, om.run_onnxruntime(model, inputs), strict=True))
        np.testing.assert_allclose(
            outputs.pop("logits")[0], expected[begin:end], rtol=1e-3, atol=1e-3
        )
        past = {name.replace("present", "past_key_values"): outputs[name] for name in outputs}


@pytest.mark.costly(30)
def test_the_logits_of_the_last_row_are_those_of_the_last_token(expected: np.ndarray) -> None:
    model = mixtral(SIZES, length=PROMPT, past=ROOM, has_all_rows=False)
    past = {
        each.name: np.zeros([dim.dim_value for dim in each.type.tensor_type.shape.dim], "float32")
        for each in model.graph.input[2:]
    }
    inputs = {"input_ids": _TOKENS[None, :PROMPT], "attention_mask": mask(PROMPT), **past}
    logits, *_ = om.run_onnxruntime(model, inputs)
    np.testing.assert_allclose(logits[0], expected[PROMPT - 1 : PROMPT], rtol=1e-3, atol=1e-3)


def test_the_full_size_is_what_it_says() -> None:
    sizes = zoo_mixtral.MixtralSizes()
    matrices = 3 * sizes.hidden * sizes.inner
    others = 2 * sizes.vocabulary * sizes.hidden + sizes.attention.layers * (
        2 * sizes.hidden**2 + 2 * sizes.hidden * sizes.attention.shared * sizes.attention.size
    )
    whole, of_token = (
        others + sizes.attention.layers * count * matrices
        for count in (sizes.experts, sizes.chosen)
    )
    assert (round(whole / 1e6), round(of_token / 1e6)) == (214, 82)


@pytest.mark.costly(30)
def test_the_command_writes_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixtral.onnx"
    options = ["mixtral", "--tiny", "--length", "1", "--past", "8", "-o", str(path)]
    monkeypatch.setattr("sys.argv", options)
    assert zoo_mixtral.main() == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node].count("MoE") == SIZES.attention.layers
    monkeypatch.setattr("sys.argv", [*options, "--past", "65"])
    assert zoo_mixtral.main() == 1
    assert "error: past=65 must be from 1 to 64" in capsys.readouterr().err
