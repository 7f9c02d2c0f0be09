"""share_weights: programs that lay their weights out differently, over one array."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heteroplace.lower import weight_blob
from heteroplace.lower.kernels import KernelCall, KernelCalls, Value
from heteroplace.lower.lower import lower
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.program import ALIGNMENT_BYTES, PAGE_BYTES
from heteroplace.lower.shared_weights import share_weights
from heteroplace.lower.weight_blob import WeightLayout
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Plan, Run
from heteroplace.simulate.simulator import simulate
from tests.instances import cpu

pytestmark = pytest.mark.relay

SIZES = {"a": 300, "b": 5, "c": 300}
"""Bytes of the weights of each task; those of "a" and "c" have the same content."""


def weights_of(task: str) -> np.ndarray:
    return np.full(SIZES[task], 7 if task != "b" else 9, "int8")


def programs(*orders: str) -> list[Lowered]:
    """One program for each order of the three tasks, all on one core."""
    builder = TaskGraphBuilder("readers")
    x = builder.add_input("x", (64,), "int8")
    outputs = []
    for name in SIZES:
        builder.add_task(Task(name, "op"), [x])
        outputs.append(builder.add_tensor(name, (64,), "int8"))
    graph, cluster = builder.finalize(outputs), cpu(capacity=10**6)
    values = [Value((64,), "int8", input_name="x"), *[Value((64,), "int8")] * 3]
    values += [Value((size,), "int8", constant=weights_of(task)) for task, size in SIZES.items()]
    calls = [KernelCall(f"k{task}", 0, task, (0, 4 + i), (1 + i,)) for i, task in enumerate(SIZES)]
    rows = KernelCalls(tuple(values), tuple(calls), (1, 2, 3), {})
    costs = build_table(graph, cluster, lambda task, device: Cost.given(10))
    found = []
    for order in orders:
        steps = tuple(Run("abc".index(task), 0) for task in order)
        plan = Plan(graph.digest(), cluster.digest(), steps, order)
        predicted = simulate(graph, cluster, costs, plan)
        found.append(lower(rows, graph, cluster, plan, predicted))
    return found


def read_weights(lowered: Lowered, blob: np.ndarray) -> dict[str, bytes]:
    """What each kernel would read as its weights."""
    program = lowered.program
    read = {}
    for instruction in program.queues[0].instructions:
        kernel, _, arguments = instruction.fields
        tensor = program.tensors[int(arguments.split(",")[1])]
        constant = program.constants[tensor.place]
        begin = constant.blob_offset
        read[program.kernels[int(kernel)][1:]] = blob[begin : begin + constant.bytes].tobytes()
    return read


def test_every_program_reads_its_weights_from_the_blob_of_any() -> None:
    shared = share_weights(programs("abc", "bca", "cab"))
    expected = {task: weights_of(task).tobytes() for task in SIZES}
    for blob in (lowered.make_blob() for lowered in shared):
        for lowered in shared:
            assert read_weights(lowered, blob) == expected


def test_layouts_differ_before() -> None:
    first, second = programs("abc", "bca")
    assert read_weights(first, first.make_blob()) == read_weights(second, second.make_blob())
    assert read_weights(first, second.make_blob()) != read_weights(first, first.make_blob())


def test_weights_are_there_once() -> None:
    shared = share_weights(programs("abc", "bca"))
    assert len(shared[0].weights) == 2
    # 300 bytes take three times 128, 5 bytes take it once.
    assert {lowered.blob_bytes for lowered in shared} == {4 * ALIGNMENT_BYTES}


def test_equal_weights_are_one_whatever_their_types_and_distinct_ones_are_two() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(50_000).astype("float32")
    near = weights.view("uint8").copy()
    near[77_777] ^= 1
    layout = WeightLayout()
    first, equal, other = (
        Value(array.shape, array.dtype.name, constant=array)
        for array in (weights, weights.copy().view("int64"), near)
    )
    assert first.sample == equal.sample == other.sample
    assert [layout.offset(value) for value in (first, equal, other)] == [0, 0, 200_064]
    again = WeightLayout(layout.weights, layout.blob_bytes)
    assert [again.offset(value) for value in (other, first)] == [200_064, 0]
    assert [layout.offset(Value((0,), "int8", constant=np.zeros(0, "int8")))] == [400_128]


def test_distinct_weights_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(weight_blob.np, "array_equal", lambda *pair: compared.append(pair))
    layout = WeightLayout()
    for number in range(9):
        array = np.full(100_000, number, "float32")
        layout.offset(Value(array.shape, "float32", constant=array))
    assert not compared


def test_a_blob_is_made_anew_when_weights_are_added() -> None:
    layout = WeightLayout()
    layout.offset(Value((3,), "int8", constant=np.full(3, 7, "int8")))
    blob = layout.blob
    assert layout.blob is blob
    offset = layout.offset(Value((2,), "int8", constant=np.full(2, 9, "int8")))
    assert layout.blob[:3].tolist() == [7, 7, 7]
    assert layout.blob[offset : offset + 2].tolist() == [9, 9]
    assert layout.blob.ctypes.data % PAGE_BYTES == 0


def test_nothing_but_places_of_weights_changes() -> None:
    before = programs("bca")
    after = share_weights(before)
    assert after[0].program.to_text() == before[0].program.to_text()
    assert after[0].memory_bytes == before[0].memory_bytes
    assert share_weights([]) == []


def test_first_values_of_state_move_with_the_weights() -> None:
    """As `initial` has the places of those that are state."""
    before = [
        replace(one, initial={f"state{offset}": offset for offset in one.weights})
        for one in programs("abc", "bca")
    ]
    for lowered, shared in zip(before, share_weights(before), strict=True):
        blob = shared.make_blob()
        for offset, value in lowered.weights.items():
            begin, content = shared.initial[f"state{offset}"], value.constant.tobytes()
            assert blob[begin : begin + len(content)].tobytes() == content
