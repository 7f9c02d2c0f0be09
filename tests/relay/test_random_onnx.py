"""Random chains and graphs of ONNX nodes: the numbers of onnxruntime, whatever types and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import onnx
import pytest
from random_onnx import Chain
from random_onnx_arithmetic import ARITHMETIC, binary, unary
from random_onnx_graphs import Graph
from random_onnx_joins import GRAPH_OPS, concat_values, join
from random_onnx_movement import MOVEMENT, SHAPES, gather, pad, slice_some
from random_onnx_quantised import QUANTISED
from random_onnx_runs import fault, nearby, ours, reference
from random_onnx_windows import MAPS

pytestmark = pytest.mark.relay

CHAIN_OPS = (*ARITHMETIC, *MAPS, *MOVEMENT)
OPS = (*CHAIN_OPS, *GRAPH_OPS, *GRAPH_OPS)
BETWEEN = (*SHAPES, pad, slice_some, gather, join, concat_values, unary, binary)
QUANTISED_OPS = (*QUANTISED, *QUANTISED, *BETWEEN)
OPTIONS: Sequence[dict[str, Any]] = ({}, {}, {"kernels": "tvm"}, {"solver": "single"})
NUM_BATCHES, BATCH_SIZE = 3, 4
MANY = 500
NUM_CHAIN_BATCHES, CHAIN_BATCH_SIZE = 20, 10
MANY_CHAINS = 1_000
ALIKE = frozenset({("graph", 478)})
"""Graphs that say at which place the largest of values is that only rounding tells apart."""


def graph_of(number: int, kind: str) -> Graph:
    """Graph `number` of a kind, of three to twelve ops."""
    random = Random(f"{kind} {number}")
    ops = OPS if kind == "graph" else QUANTISED_OPS
    return Graph(random, ops, random.randint(3, 12))


def check_graph(graph: Graph, **options: Any) -> str:
    """Run a graph; raise where its numbers are wrong, or return why it says nothing."""
    model, inputs = graph.model(), graph.inputs()
    expected = reference(model, inputs)
    if expected is None:
        return "no reference"
    rounded = reference(model, nearby(inputs))
    assert rounded is not None
    computed = ours(model, inputs, **options)
    if computed is None:
        return "refused"
    assert len(computed) == len(expected)
    faults = [
        f"{name}: {wrong}"
        for name, *arrays in zip(graph.outputs, computed, expected, rounded, strict=True)
        if (wrong := fault(*arrays))
    ]
    assert not faults, f"{faults}\n{onnx.printer.to_text(model)}"
    return ""


def check_graphs(kind: str, numbers: range) -> None:
    chosen = [number for number in numbers if (kind, number) not in ALIKE]
    said = [
        check_graph(graph_of(number, kind), **OPTIONS[number % len(OPTIONS)]) for number in chosen
    ]
    assert said.count("") > len(said) // 2, said


@pytest.mark.costly(70)
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
@pytest.mark.parametrize("kind", ["graph", "quantised"])
def test_graphs_have_the_numbers_of_onnxruntime(kind: str, batch: int) -> None:
    check_graphs(kind, range(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graph", "quantised"])
def test_many_graphs_have_the_numbers_of_onnxruntime(kind: str) -> None:
    check_graphs(kind, range(NUM_BATCHES * BATCH_SIZE, MANY))


def chain_of(number: int) -> Chain:
    """Chain `number`, of one to eight ops."""
    random = Random(f"onnx {number}")
    return Chain(random, CHAIN_OPS, random.randint(1, 8))


def check_chain(chain: Chain) -> str:
    """Run a chain; return what is wrong with its numbers, or why it says nothing."""
    model, inputs = chain.model(), chain.inputs()
    expected = reference(model, inputs)
    if expected is None:
        return "no reference"
    rounded = reference(model, nearby(inputs))
    computed = ours(model, inputs)
    if computed is None:
        return "refused"
    assert rounded is not None
    wrong = fault(computed[0], expected[0], rounded[0])
    assert not wrong, f"{wrong}\n{onnx.printer.to_text(model)}"
    return ""


def check_chains(numbers: range) -> None:
    said = [check_chain(chain_of(number)) for number in numbers]
    assert said.count("") > len(said) // 2, said


@pytest.mark.costly(25)
@pytest.mark.parametrize("batch", range(NUM_CHAIN_BATCHES))
def test_chains_have_the_numbers_of_onnxruntime(batch: int) -> None:
    check_chains(range(batch * CHAIN_BATCH_SIZE, (batch + 1) * CHAIN_BATCH_SIZE))


@pytest.mark.slow
def test_many_chains_have_the_numbers_of_onnxruntime() -> None:
    check_chains(range(NUM_CHAIN_BATCHES * CHAIN_BATCH_SIZE, MANY_CHAINS))
