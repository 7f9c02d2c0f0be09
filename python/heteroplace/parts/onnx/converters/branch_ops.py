"""Our ChooseBranch ==> Relay's `If` between two expressions of the same function.

What only one of them is made of belongs to that branch (graph normal form: a value lives in the
innermost scope that all its readers share).
"""

from __future__ import annotations

from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, typed


def choose_branch(call: OnnxCall) -> relay.Expr | relay.expr.TupleWrapper:
    """Convert ChooseBranch(condition, results of then .., results of else ..)."""
    count = (len(call.operands) - 1) // 2
    results = [call.operand(1 + i) for i in range(2 * count)]
    then, otherwise = results[:count], results[count:]
    for index, pair in enumerate(zip(then, otherwise, strict=True)):
        types = [str(typed(one).checked_type) for one in pair]
        if types[0] != types[1]:
            raise FrontendError(
                f"its result {index} is {types[0]} of one branch and {types[1]} of the other, and "
                f"only results of one type can be placed. If an input decides the branch, fix its "
                f"value: input_values={{'NAME': ...}}, on the command line --fix NAME=VALUE"
            )
    condition = call.operand(0)
    if call.shape(0):
        condition = relay.reshape(condition, [])
    if call.dtype(0) != "bool":
        condition = relay.cast(condition, "bool")
    if count == 1:
        return typed(relay.If(condition, then[0], otherwise[0]))
    chosen = relay.If(condition, relay.Tuple(then), relay.Tuple(otherwise))
    return relay.expr.TupleWrapper(typed(chosen), count)
