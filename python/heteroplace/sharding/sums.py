"""A neutral module of one microbatch -> the same, adding gradients up, as all but the first do.

before ==> after, for a task that makes a gradient %dw

    %dw = nn.dense(%g, %x)  ==>  %dw = add(%dw.before, nn.dense(%g, %x))
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.codegen.task_bodies import TaskBodies
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.expressions import post_order, rebuild


def with_sums(mod: tvm.IRModule, graph: TaskGraph) -> tvm.IRModule:
    """Return the module in which tasks that add up read an input more for each tensor they make.

    Parameters
    ----------
    mod
        Its spans name the tasks of `graph`.

    Raises
    ------
    LoweringError
        They do not belong together.
    """
    main = mod["main"]
    bodies = TaskBodies(main, graph)
    made = {
        bodies.expression(tensor): graph.tensors[tensor].name
        for task, description in enumerate(graph.tasks)
        for tensor in (graph.task_outputs[task] if description.adds else ())
        if graph.tensors[tensor].shared
    }
    before: list[relay.Var] = []

    def add(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if old not in made:
            return new
        before.append(relay.Var(f"{made[old]}.before", old.checked_type))
        call = relay.add(before[-1], new)
        return relay.Call(call.op, call.args, call.attrs, None, old.span)

    mapped: dict[relay.Expr, relay.Expr] = {}
    rebuild(post_order(main.body), mapped, add)
    function = relay.Function([*main.params, *before], mapped[main.body])
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))
