"""Split the fused groups that hold ops of several tasks, so that each kernel belongs to one task.

FuseOps works on all tasks of one target and does not know their borders. A group across a border
would run as one kernel on the device of its last task, against the annotation of the others.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.relay.expr_map import ExprMap, ExprSet
from heteroplace.relay.expressions import (
    function_pass,
    leaves,
    post_order_of_function,
    task_of_span,
    tasks_in,
)
from heteroplace.relay.tasks.float_order import between_barriers, with_barrier
from heteroplace.relay.tasks.split_repeated import split_groups


def SplitTasks() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes after FuseOps; the span of each call names its task."""
    return function_pass("SplitTasks", lambda function: split_groups(function, _borders))


def casts_within_tasks(step: tvm.transform.Pass) -> tvm.transform.Pass:
    """Return a simplifier of TVM, of the same name, that keeps a cast of another task's value.

    TVM would merge the cast with the ops of the other task and drop its span.
    """
    return between_barriers(step, "Casts", ("cast",), _separated)


def _separated(old: relay.Call, new: relay.Call) -> relay.Expr:
    if task_of_span(old) in (None, task_of_span(_maker(old.args[0]))):
        return new
    operand = with_barrier(new.args[0], old.span)
    return relay.Call(new.op, [operand], new.attrs, new.type_args, new.span)


def _borders(group: relay.Function) -> ExprSet:
    """The values of a fused group that another task of the group reads.

    A call without a task, such as an inserted layout_transform, belongs to the task it reads from.
    """
    borders = ExprSet()
    if len(tasks_in(group)) < 2:
        return borders
    task_of: ExprMap[str | None] = ExprMap()
    for node in post_order_of_function(group):
        if not isinstance(node, relay.Call):
            continue
        operands = [
            (value, task_of[maker])
            for argument in node.args
            for value in _tensors(argument)
            if isinstance(maker := _maker(value), relay.Call)
        ]
        producers = [task for _, task in operands if task is not None]
        task_of[node] = task_of_span(node) or next(iter(producers), None)
        for value, task in operands:
            if task is not None and task != task_of[node]:
                borders.add(value)
    return borders


def _tensors(value: relay.Expr) -> list[relay.Expr]:
    return list(leaves(value)) if isinstance(value, relay.Tuple) else [value]


def _maker(value: relay.Expr) -> relay.Expr:
    return value.tuple_value if isinstance(value, relay.TupleGetItem) else value
