"""The table of op traits: one record for each op, and nothing in it that no one reads."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
import tvm

import heteroplace
from heteroplace.model.op_traits.op_record import WRITE_ROWS_OP, OpTraits
from heteroplace.model.op_traits.op_table import OPS, RECORDS, ops_where, rules_by_op, traits_of
from heteroplace.parts.kernels.cpu import (
    batch_matmul_op,
    grouped_matmul_op,
    matmul_op,
    packed_matmul_op,
)
from heteroplace.relay.cache.op import CACHED_ATTENTION_OP
from heteroplace.relay.recurrent.op import RECURRENT_BYTES_OP, RECURRENT_OP

PACKAGE = Path(heteroplace.__file__).parent
NOT_ANSWERS = {"ops", "is_relay"}


def test_no_op_has_two_records() -> None:
    counts = Counter(name for record in RECORDS for name in record.ops)
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_op_is_registered_by_tvm_unless_its_graph_is_not_relay() -> None:
    own = {
        batch_matmul_op.BATCH_MATMUL_OP,
        grouped_matmul_op.BFLOAT16_MATMUL.name,
        matmul_op.MATMUL_OP,
        grouped_matmul_op.INT8_MATMUL.name,
        packed_matmul_op.PACKED_MATMUL_OP,
        *(RECURRENT_OP, RECURRENT_BYTES_OP),
        *(CACHED_ATTENTION_OP, WRITE_ROWS_OP),
    }
    assert own <= set(OPS)
    registered = set(tvm.ir.Op.list_op_names()) | own
    assert {name for name in OPS if name not in registered} == ops_where(lambda op: not op.is_relay)


def test_every_record_names_ops_and_says_something_about_them() -> None:
    plain = OpTraits()
    for record in RECORDS:
        assert record.ops
        assert record.of("") != plain, record.ops


def test_every_trait_is_read_by_a_module() -> None:
    names = {field.name for field in fields(OpTraits)} - NOT_ANSWERS
    folder = PACKAGE / "model" / "op_traits"
    read: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if folder not in path.parents and "op_traits" in (text := path.read_text()):
            nodes = ast.walk(ast.parse(text))
            read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert names - read == set()


def test_an_op_without_a_record_has_the_answers_of_an_unknown_op() -> None:
    assert traits_of("my.op") == traits_of(None) == OpTraits()
    assert traits_of("reshape").kind == "view"


@pytest.mark.parametrize(
    "rules", [{"reshape": 1}, {"reshape": 1, "broadcast": 2, "slice": 3, "x": 4}]
)
def test_rules_and_records_name_the_same_rules(rules: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        rules_by_op(lambda op: op.cut, rules)
