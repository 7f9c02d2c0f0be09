"""Neutral module -> what each of its tasks computes, to be put together as a task graph says.

A graph that was rewritten still has all tasks of the module, with their names, and the tensors that
these make; what stands for a tensor in what a task reads has its name with a word behind it, or is
in its place in the order of ids. A task that the module does not have is one of it that runs once
more, with a word behind its name: "dense.3.again".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.lower.segments import planned_task
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.expressions import (
    leaves,
    post_order,
    task_span,
    tensor_types,
)

Result = tuple[relay.Call, int]
"""A call, and which of its results."""


class TaskBodies:
    """The calls of each task of a module, of which there may be further instances."""

    def __init__(self, main: relay.Function, graph: TaskGraph) -> None:
        self._graph = graph
        self._task_id = {task.name: index for index, task in enumerate(graph.tasks)}
        self._tensor_id = {tensor.name: index for index, tensor in enumerate(graph.tensors)}
        self._inputs = {graph.tensors[tensor].name: tensor for tensor in graph.inputs}
        self._calls: dict[str, list[relay.Call]] = defaultdict(list)
        """By task, operands first."""
        for node in post_order(main.body):
            if isinstance(node, relay.Call):
                self._calls[planned_task(node, self._task_id)].append(node)
        self._results = self._results_of_tasks(main)
        """By task of the module, its results in the order of the outputs of the task."""
        self._tensor_of = {
            result: tensor
            for task, results in self._results.items()
            for result, tensor in zip(results, graph.task_outputs[self._task_id[task]], strict=True)
        }
        self._result_of = {tensor: result for result, tensor in self._tensor_of.items()}

    def expression(self, tensor: int) -> relay.Expr | None:
        """Return what a tensor is in the module; None: the module does not make it."""
        if tensor not in self._result_of:
            return None
        call, index = self._result_of[tensor]
        is_tuple = isinstance(call.checked_type, relay.TupleType)
        return relay.TupleGetItem(call, index) if is_tuple else call

    def instance(
        self, task: int, reads: Sequence[relay.Expr]
    ) -> tuple[list[relay.Expr], list[relay.TensorType]]:
        """Return what a task makes of what it reads, and its types.

        Parameters
        ----------
        reads
            In the order of the graph's `task_inputs`.

        Raises
        ------
        LoweringError
            The module has no such task, or one that reads another number of tensors.
        """
        name = self._graph.tasks[task].name
        base = self._base(name)
        given = self._given(task, base, reads)
        new_calls: dict[relay.Call, relay.Call] = {}
        span = task_span(name)
        for call in self._calls[base]:
            arguments = [self._argument(argument, new_calls, given) for argument in call.args]
            new_calls[call] = relay.Call(call.op, arguments, call.attrs, call.type_args, span)
        values, types = [], []
        for call, index in self._results[base]:
            is_tuple = isinstance(call.checked_type, relay.TupleType)
            values.append(
                relay.TupleGetItem(new_calls[call], index, span) if is_tuple else new_calls[call]
            )
            types.append(tensor_types(call.checked_type)[index])
        return values, types

    def _given(self, task: int, base: str, reads: Sequence[relay.Expr]) -> dict[int, relay.Expr]:
        """What an instance reads for each tensor that the task of the module reads."""
        tensors = self._graph.task_inputs[task]
        given = dict(zip(tensors, reads, strict=True))
        old = sorted({self._tensor(leaf) for leaf in self._leaves_read(base)})
        replaced = [tensor for tensor in old if tensor not in given]
        # A task may read fields of a tuple that its ops make no use of; these are in the module.
        own_vars = {*self._inputs.values(), *self._tensor_of.values()}
        new = [tensor for tensor in tensors if tensor not in own_vars]
        # Named as what it is another instance of; maybe of a field that no op makes use of.
        for tensor, origin in [(tensor, self._origin(tensor)) for tensor in new]:
            if origin in replaced:
                given[origin] = given[tensor]
                replaced.remove(origin)
            elif origin not in own_vars or origin in old:
                continue
            new.remove(tensor)
        if len(replaced) != len(new):
            raise LoweringError(
                f"task {self._graph.tasks[task].name!r} reads {len(new)} tensors that the module "
                f"does not have in place of {len(replaced)}; they do not belong together"
            )
        return given | {was: given[now] for was, now in zip(replaced, new, strict=True)}

    def _origin(self, tensor: int) -> int | None:
        """The tensor whose name a tensor has with a word behind it; None: there is none."""
        return self._tensor_id.get(self._graph.tensors[tensor].name.rpartition(".")[0])

    def types_of_collective(self, task: int) -> list[relay.TensorType] | None:
        """Return the types of what a collective of the module makes; None: it is not there."""
        name = self._graph.tasks[task].name
        if name not in self._calls:
            return None
        return tensor_types(self._calls[name][-1].checked_type)

    def check_order(self, task: int) -> None:
        """Raise LoweringError unless a collective of the module reads its tensors in graph order.

        Parts are summed and joined in that order, so another one would give other numbers.
        """
        name = self._graph.tasks[task].name
        tensors = [self._tensor(leaf) for leaf in self._leaves_read(name)]
        if name in self._calls and tensors != sorted(set(tensors)):
            raise LoweringError(
                f"collective {name!r} reads its {len(tensors)} tensors in another "
                f"order than that in "
                f"which they are made, or one of them twice; give it a tensor of each lane, in "
                f"their order"
            )

    def _base(self, name: str) -> str:
        base = name
        while base not in self._calls:
            base, point, _ = base.rpartition(".")
            if not point:
                raise LoweringError(
                    f"task {name!r} is not in the module, which has {len(self._calls)} tasks; the "
                    f"module and its graph do not belong together"
                )
        return base

    def _leaves_read(self, task: str) -> list[relay.Expr]:
        """The tensors that the calls of a task read of others; not weights."""
        own = set(self._calls.get(task, ()))
        return [
            leaf
            for call in self._calls.get(task, ())
            for argument in call.args
            for leaf in leaves(argument)
            if not isinstance(leaf, relay.Constant) and _call_of(leaf) not in own
        ]

    def _tensor(self, leaf: relay.Expr) -> int:
        if isinstance(leaf, relay.Var):
            return self._inputs[leaf.name_hint]
        index = leaf.index if isinstance(leaf, relay.TupleGetItem) else 0
        return self._tensor_of[_call_of(leaf), index]

    def _argument(
        self,
        value: relay.Expr,
        new_calls: dict[relay.Call, relay.Call],
        given: dict[int, relay.Expr],
    ) -> relay.Expr:
        """An argument of a call in an instance of its task."""
        if isinstance(value, relay.Constant):
            return value
        if isinstance(value, relay.Tuple):
            return relay.Tuple([self._argument(field, new_calls, given) for field in value.fields])
        if isinstance(value, relay.TupleGetItem) and isinstance(value.tuple_value, relay.Tuple):
            return self._argument(value.tuple_value.fields[value.index], new_calls, given)
        if _call_of(value) in new_calls:
            call = new_calls[_call_of(value)]
            is_field = isinstance(value, relay.TupleGetItem)
            return relay.TupleGetItem(call, value.index, value.span) if is_field else call
        if isinstance(value.checked_type, relay.TupleType):
            return relay.Tuple([given[self._tensor(leaf)] for leaf in leaves(value)])
        return given[self._tensor(value)]

    def _results_of_tasks(self, main: relay.Function) -> dict[str, list[Result]]:
        """What each task makes, in the order of its outputs."""
        outside: dict[Result, None] = {}
        for leaf in leaves(main.body):
            self._note_outside(leaf, "", outside)
        for task, calls in self._calls.items():
            for call in calls:
                for leaf in (leaf for argument in call.args for leaf in leaves(argument)):
                    self._note_outside(leaf, task, outside)
        results_of = {}
        for task, calls in self._calls.items():
            count = len(self._graph.task_outputs[self._task_id[task]])
            # Operands come first, so the last one is what the others are for.
            last = calls[-1]
            results = [(last, index) for index in range(len(tensor_types(last.checked_type)))]
            if len(results) != count:
                place = {call: position for position, call in enumerate(calls)}
                results = sorted(
                    (result for result in outside if result[0] in place),
                    key=lambda result: (place[result[0]], result[1]),
                )
            if len(results) != count:
                raise LoweringError(
                    f"task {task!r} makes {count} tensors, and others read {len(results)} results "
                    f"of its ops; the module and its graph do not belong together"
                )
            results_of[task] = results
        return results_of

    def _note_outside(self, leaf: relay.Expr, task: str, outside: dict[Result, None]) -> None:
        call = _call_of(leaf)
        if isinstance(call, relay.Call) and planned_task(call, self._task_id) != task:
            outside[call, leaf.index if isinstance(leaf, relay.TupleGetItem) else 0] = None


def _call_of(leaf: relay.Expr) -> relay.Expr:
    """The call whose result, or a field of it, a tensor is; else the tensor itself."""
    return leaf.tuple_value if isinstance(leaf, relay.TupleGetItem) else leaf
