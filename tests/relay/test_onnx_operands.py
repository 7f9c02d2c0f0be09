"""Which converter an op has in each domain, and which operands a converter reads at import."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import NodeProto, TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from docs.pages.ops import microsoft_rows, op_pages, op_rows
from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters import CONVERTERS, REFUSED
from heteroplace.parts.onnx.converters.call import Converter
from heteroplace.parts.onnx.converters.microsoft.microsoft import (
    MICROSOFT_CONVERTERS,
    MICROSOFT_DOMAIN,
    MICROSOFT_SHARED,
)
from heteroplace.parts.onnx.converters.ml.ml import ML_CONVERTERS
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.known_ops import OTHER_OPS, known_ops
from heteroplace.parts.onnx.prepare.onnx_operands import (
    MICROSOFT_READ_AT_IMPORT,
    READ_AT_IMPORT,
    inputs_read_at_import,
)
from heteroplace.tvm_bridge import register_onnx_mapping_shim

pytestmark = pytest.mark.relay

STANDARD = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}


def is_known(op_type: str, domain: str) -> bool:
    register_onnx_mapping_shim()
    return known_ops()(NodeProto(op_type=op_type, domain=domain))


# --- domains ------------------------------------------------------------------------------------


def test_ops_of_microsoft_are_those_that_onnxruntime_has() -> None:
    schemas = {one.name for one in get_all_operator_schema() if one.domain == MICROSOFT_DOMAIN}
    without_domain = {"SimplifiedLayerNormalization"}
    assert MICROSOFT_SHARED | set(MICROSOFT_CONVERTERS) <= schemas | without_domain


@pytest.mark.parametrize("op_type", ["Conv", "LayerNormalization", "CausalConvWithState"])
def test_an_op_of_microsoft_is_not_taken_for_one_of_onnx(op_type: str) -> None:
    assert not is_known(op_type, MICROSOFT_DOMAIN)
    with pytest.raises(FrontendError, match=f"no such op in domain com.microsoft.*{op_type}|"
                       f"com.microsoft.{op_type} 'n_y': there is no such op"):  # fmt: skip
        node = om.node(op_type, "x", "y", domain=MICROSOFT_DOMAIN)
        domains = [MICROSOFT_DOMAIN]
        from_onnx(om.make_model([node], {"x": [2]}, ["y"], domains=domains), simplify=False)


def test_an_op_of_onnx_is_not_taken_for_one_of_microsoft() -> None:
    assert STANDARD & set(MICROSOFT_CONVERTERS) <= OTHER_OPS
    assert STANDARD & set(ML_CONVERTERS) == set()
    assert not any(is_known(op_type, "") for op_type in OTHER_OPS)


def test_no_op_of_an_unknown_domain_is_converted() -> None:
    names = {*CONVERTERS, *MICROSOFT_CONVERTERS, *ML_CONVERTERS}
    assert not any(is_known(name, "org.example") for name in names)


def test_a_quantised_convolution_with_its_channels_last_is_refused() -> None:
    weights = {"s": np.float32(0.1), "z": np.uint8(0), "w": np.ones((8, 8, 1, 1), np.uint8)}
    node = om.node("QLinearConv", "x s z w s z s z", "y", domain=MICROSOFT_DOMAIN, channels_last=1)
    x = np.ones((1, 8, 8, 8), np.uint8)
    model = om.typed_model([node], {"x": x}, [], weights, domains=[MICROSOFT_DOMAIN])
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.UINT8, x.shape))
    with pytest.raises(FrontendError, match="channels_last=1 is not supported"):
        from_onnx(model, simplify=False)


def test_the_table_of_ops_says_which_ops_have_a_converter() -> None:
    rows = {name: who for name, who, _ in op_rows()}
    converted = {name for name, who in rows.items() if who in ("heteroplace", "TVM")}
    assert converted == {name for name in rows if is_known(name, "")}
    assert {rows[name] for name in REFUSED if name in rows} == {"refused"}
    names = [name for name, *_ in microsoft_rows()]
    assert names and all(is_known(name, MICROSOFT_DOMAIN) for name in names)
    (page,) = op_pages().values()
    assert "| RoiAlign | heteroplace | Convert RoiAlign" in page
    assert "| QuickGelu | heteroplace |" in page


@pytest.mark.parametrize("op_type", ["NonMaxSuppression", "Unique"])
def test_an_op_whose_size_depends_on_values_says_where_to_cut(op_type: str) -> None:
    shapes = {"x": [1, 6, 4], "s": [1, 1, 6]} if op_type == "NonMaxSuppression" else {"x": [6]}
    model = om.make_model([om.node(op_type, " ".join(shapes), "y")], shapes, ["y"])
    with pytest.raises(FrontendError, match=r"End the model at its operand.* outside"):
        from_onnx(model, simplify=False)


# --- operands that are read ---------------------------------------------------------------------


def positions_read(converter: Converter) -> set[int | None]:
    """Operands of which a converter asks a value; None: a computed position."""
    positions: set[int | None] = set()
    pending, seen = [converter], set()
    while pending:
        function = inspect.unwrap(pending.pop())
        if function in seen or not inspect.isfunction(function):
            continue
        seen.add(function)
        for call in _calls(function):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "constant":
                first = call.args[0]
                positions.add(first.value if isinstance(first, ast.Constant) else None)
            elif isinstance(call.func, ast.Name):
                pending.append(function.__globals__.get(call.func.id))
    return positions


def _beyond(name: str) -> set[int]:
    """Positions that only another op has, with which it shares its converter."""
    schemas = onnx.defs.get_all_schemas_with_history()
    counts = [one.max_input for one in schemas if (one.name, one.domain) == (name, "")]
    return set(range(max(counts), 10)) if counts else set()


def _calls(function: Converter) -> Iterator[ast.Call]:
    tree = ast.parse(inspect.getsource(inspect.getmodule(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            yield from (part for part in ast.walk(node) if isinstance(part, ast.Call))


@pytest.mark.costly(3)
@pytest.mark.parametrize(
    ("converters", "table"),
    [(CONVERTERS, READ_AT_IMPORT), (MICROSOFT_CONVERTERS, MICROSOFT_READ_AT_IMPORT)],
)
def test_every_operand_that_a_converter_reads_is_in_the_table(
    converters: Mapping[str, Converter], table: Mapping[str, Sequence[int]]
) -> None:
    assert positions_read(CONVERTERS["TopK"]) == {1}
    missing = {}
    for name, converter in converters.items():
        positions = positions_read(converter) - _beyond(name)
        listed = (1,) if name.startswith("Reduce") else table.get(name, ())
        if not positions - {None} <= set(listed) or (positions and not listed):
            missing[name] = positions
    assert missing == {}


def test_the_length_of_all_keys_is_asked_of_the_user() -> None:
    names = "q k v - - ends whole"
    node = om.node("GroupQueryAttention", names, "y", domain=MICROSOFT_DOMAIN,
                   num_heads=2, kv_num_heads=2)  # fmt: skip
    q = np.ones((1, 3, 16), np.float32)
    inputs = {"q": q, "k": q, "v": q, "ends": np.int32([2]), "whole": np.int32(3)}
    model = om.typed_model([node], inputs, ["y"], domains=[MICROSOFT_DOMAIN])
    assert inputs_read_at_import(model) == ("whole",)
    imported = from_onnx(model, simplify=False, input_values={"whole": inputs["whole"]})
    assert list(imported.inputs) == ["q", "k", "v", "ends"]
