"""Caches that sessions keep: rows are written where they lie, if nobody reads what was there."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import pytest
from onnx_models import make_model, node
from relay_models import cpu_cluster, random_costs

import heteroplace as hp
from heteroplace.run.executor import Executor
from tests.tiny_decoders import CAPACITY, greedy_tokens, onnx_decoder

pytestmark = pytest.mark.relay

CACHE = (1, 1, CAPACITY, 16)
"""Shape of the tiny decoder's keys, and of its values."""


def compiled(model: onnx.ModelProto, **options: object) -> hp.Executable:
    return hp.compile(
        model,
        cpu_cluster(),
        costs=random_costs,
        solver="heft",
        verify="off",
        **options,  # type: ignore[arg-type]
    )


def tensors_in(executable: hp.Executable, storage: str) -> list[int]:
    """Elements of each tensor of a program that lies in such storage."""
    tensors = executable.lowered.program.tensors
    return [prod(tensor.shape) for tensor in tensors if tensor.storage == storage]


def scatter_model(*, reads_old: bool) -> onnx.ModelProto:
    """present = past with the row x at a place; y = present + 1, or past + 1."""
    nodes = [
        node("TensorScatter", "past x place", "present", axis=-2),
        node("Add", f"{'past' if reads_old else 'present'} one", "y"),
    ]
    inputs = {"past": [1, 2, 8, 16], "x": [1, 2, 1, 16]}
    model = make_model(nodes, inputs, ["present", "y"], {"one": np.float32(1)}, opset=24)
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("place", onnx.TensorProto.INT64, [1])
    )
    for output in model.graph.output:
        output.type.CopyFrom(
            onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1, 2, 8, 16])
        )
    return model


@pytest.mark.costly
def test_a_decoder_holds_nothing_of_the_size_of_its_cache_but_the_cache() -> None:
    executable = compiled(onnx_decoder(1), state="auto")
    program = executable.lowered.program
    assert set(tensors_in(executable, "session")) == {prod(CACHE)}
    assert prod(CACHE) not in tensors_in(executable, "arena")
    assert not [at for queue in program.queues for at in queue.instructions if at.kind == "copy"]
    assert [name for name in program.kernels if "write_rows" in name] == [
        name for name in program.kernels if name.endswith("_in_place")
    ]
    assert executable.memory[0].values_bytes > 2 * 4 * prod(CACHE)


@pytest.mark.costly
def test_without_the_option_the_cache_goes_in_and_out() -> None:
    executable = compiled(onnx_decoder(1))
    assert tensors_in(executable, "session") == []
    assert prod(CACHE) in tensors_in(executable, "arena")


@pytest.mark.costly(4)
@pytest.mark.parametrize("length", [1, 5])
def test_a_session_writes_the_same_tokens_as_onnxruntime(length: int) -> None:
    prompt = list(range(1, 11))
    with Executor(compiled(onnx_decoder(length), state="auto")) as executor:
        session = executor.session()
        assert list(session.generate(prompt, max_new_tokens=8)) == greedy_tokens(prompt, 8)


@pytest.mark.costly
def test_a_forked_cache_is_another_one() -> None:
    prompt = [7, 3, 9]
    with Executor(compiled(onnx_decoder(1), state="auto")) as executor:
        session = executor.session()
        first = list(session.generate(prompt, max_new_tokens=4))
        other = session.fork()
        assert list(session.generate([5], max_new_tokens=4)) == greedy_tokens(
            [*prompt, *first, 5], 4
        )
        assert list(other.generate([6], max_new_tokens=4)) == greedy_tokens([*prompt, *first, 6], 4)


@pytest.mark.parametrize("reads_old", [False, True])
def test_a_cache_whose_old_rows_are_read_is_written_beside(reads_old: bool) -> None:
    executable = compiled(scatter_model(reads_old=reads_old), state={"past": "present"})
    assert (256 in tensors_in(executable, "arena")) is True  # y
    in_place = [name for name in executable.lowered.program.kernels if name.endswith("_in_place")]
    assert bool(in_place) is not reads_old
    expected = np.zeros((1, 2, 8, 16), "float32")
    with Executor(executable) as executor:
        session = executor.session()
        for place in (0, 5, 5, 7):
            x = np.random.default_rng(place).standard_normal((1, 2, 1, 16)).astype("float32")
            (y,) = session.run(x=x, place=np.array([place]))
            before = expected.copy()
            expected[:, :, place : place + 1] = x
            np.testing.assert_array_equal(y, (before if reads_old else expected) + 1)
            np.testing.assert_array_equal(session.state["past"], expected)
