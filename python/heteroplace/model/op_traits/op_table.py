"""All records -> the answers by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from heteroplace.model.op_traits import (
    elementwise_ops,
    graph_ops,
    movement_ops,
    reduction_ops,
    window_ops,
)
from heteroplace.model.op_traits.op_record import OpTraits

Rule = TypeVar("Rule")

RECORDS: tuple[OpTraits, ...] = (
    *movement_ops.RECORDS,
    *elementwise_ops.RECORDS,
    *reduction_ops.RECORDS,
    *window_ops.RECORDS,
    *graph_ops.RECORDS,
)
OPS: Mapping[str, OpTraits] = {name: record for record in RECORDS for name in record.ops}
"""By name. Use `traits_of` where an op may have no record."""
_NO_RECORD = OpTraits()


def traits_of(op: str | None) -> OpTraits:
    """Return the record of an op; of an op without a record, or of none, the defaults."""
    return _NO_RECORD if op is None else OPS.get(op, _NO_RECORD)


def ops_where(is_meant: Callable[[OpTraits], object]) -> frozenset[str]:
    """Return the ops whose records meet a condition.

    Examples
    --------
    >>> sorted(ops_where(lambda op: op.kind == "view"))
    ['expand_dims', 'reshape', 'squeeze']
    """
    return frozenset(name for name, record in OPS.items() if is_meant(record))


def rules_by_op(
    trait: Callable[[OpTraits], str | None], rules: Mapping[str, Rule]
) -> dict[str, Rule]:
    """Return for each op the rule that its record names.

    Parameters
    ----------
    trait
        Returns the name of a rule from a record; None: the op has no rule.
    rules
        By name; each name is in some record, and each name of a record is here.

    Examples
    --------
    >>> rules_by_op(lambda op: op.cut, {"broadcast": 1, "reshape": 2, "slice": 3})["reshape"]
    2
    """
    named = {op: name for op, record in OPS.items() if (name := trait(record)) is not None}
    assert set(named.values()) == set(rules), set(named.values()) ^ set(rules)
    return {op: rules[name] for op, name in named.items()}
