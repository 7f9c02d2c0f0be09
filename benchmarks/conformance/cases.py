"""The test suite inside the `onnx` wheel -> cases: a model, its inputs and its outputs.

The suite is that of the ONNX standard (`onnx.backend.test`): node cases, which the wheel generates
in seconds, one per form of an op, and again with the op expanded by its own definition; and simple
cases, which lie in files.
"""

from __future__ import annotations

import heapq
import random
import re
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, numpy_helper

from heteroplace.parts.onnx.prepare.onnx_load import true_inputs

_EXPANDED = re.compile(r"(_expanded)(_ver\d+)?$")
_DATA_SETS = "test_data_set_*"


@dataclass(frozen=True)
class Case:
    """One model of the suite with what goes in and what must come out."""

    name: str
    """Without the "test_" that the suite puts before all."""
    op: str
    """The op that it is about; a case that expands an op is about that op."""
    model: ModelProto
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    """(inputs, outputs) of each run: arrays; lists for sequences; None for an empty optional."""
    rtol: float
    """Difference to an expected value that is allowed, over that value."""
    atol: float
    """And beside it."""
    of_largest: float = 0.0
    """And of floats, over the largest value of the same output."""


def load_cases(only: str = "", share: float = 1.0, seed: int = 0) -> list[Case]:
    """Return the cases of the suite, by name.

    Parameters
    ----------
    only
        Regular expression that the name of a case must match somewhere.
    share, seed
        Below 1: see `draw_cases`.
    """
    cases = sorted((*_node_cases(), *_simple_cases()), key=lambda case: case.name)
    matching = [case for case in cases if re.search(only, case.name)]
    return draw_cases(matching, share, seed) if share < 1.0 else matching


def draw_cases(cases: Sequence[Case], share: float, seed: int) -> list[Case]:
    """Return about this part of the cases, at least one, drawn at random by `seed`, in their order.

    One that becomes n nodes has the weight 1 / n, which is about 1 / the time that it takes. An op
    becomes the nodes of its definition, which the suite has as an expanded case.

    Source: P. S. Efraimidis, P. G. Spirakis, Weighted random sampling with a reservoir,
    doi:10.1016/j.ipl.2005.11.003.
    """
    nodes: dict[str, int] = defaultdict(lambda: 1)
    for case in cases:
        name = _EXPANDED.sub("", case.name)
        nodes[name] = max(nodes[name], len(case.model.graph.node))
    uniform = random.Random(seed).random
    keys = {case.name: uniform() ** nodes[_EXPANDED.sub("", case.name)] for case in cases}
    count = max(1, round(share * len(cases)))
    drawn = set(heapq.nlargest(count, keys, key=lambda name: keys[name]))
    return [case for case in cases if case.name in drawn]


def _node_cases() -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about the overflows that cases are made of
        from onnx.backend.test.loader import load_model_tests

        loaded: list[Any] = list(load_model_tests(kind="node"))
    ops: dict[str, str] = {}
    for case in loaded:
        nodes = [node.op_type for node in case.model.graph.node if node.op_type != "Constant"]
        ops[case.name] = (nodes or ["Constant"])[0]
    return [
        Case(
            case.name.removeprefix("test_"),
            ops.get(_EXPANDED.sub("", case.name), ops[case.name]),
            case.model,
            [(_arrays(inputs), _arrays(outputs)) for inputs, outputs in case.data_sets],
            case.rtol,
            case.atol,
        )
        for case in loaded
    ]


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Return the values with tensors as arrays; some cases give them as protobufs."""
    return [
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        for value in values
    ]


def _simple_cases() -> list[Case]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "simple"
    return [_read_case(path.parent) for path in sorted(folder.glob("*/model.onnx"))]


def _read_case(folder: Path) -> Case:
    model = onnx.load(folder / "model.onnx")
    graph = model.graph
    inputs = true_inputs(graph)
    data_sets = [
        (
            [_read_value(one / f"input_{i}.pb", info) for i, info in enumerate(inputs)],
            [_read_value(one / f"output_{i}.pb", info) for i, info in enumerate(graph.output)],
        )
        for one in sorted(folder.glob(_DATA_SETS))
    ]
    # The tolerances of `onnx.backend.test.loader`.
    op = graph.node[0].op_type if graph.node else "none"
    return Case(folder.name.removeprefix("test_"), op, model, data_sets, 1e-3, 1e-7)


def _read_value(path: Path, info: onnx.ValueInfoProto) -> Any:
    content = path.read_bytes()
    if info.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if info.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))
