"""Each value an array or a type: what is known is computed, the rest has its type.

The mixed domain of DistIR (arXiv 2111.05426, section 3.3), by which shapes that a network computes
from constants and from other shapes are known before it runs. Small integer inputs that feed shapes
are given as arrays, tensors as types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from heteroplace.errors import GraphError, PlanError
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Load
from heteroplace.parts.parallel.transforms.recompute import plain_name
from tests.reference.distir.dispatch import (
    AnyValue,
    Array,
    OpCall,
    Operations,
    TensorType,
    split_op,
    type_of,
)
from tests.reference.distir.interpret import Key, StepCall
from tests.reference.distir.operations import OPERATIONS

TaskFunction = Callable[[Sequence[AnyValue]], Sequence[AnyValue]]


class MixedDomain:
    """A domain of `interpret`.

    Parameters
    ----------
    given
        For each model input, by tensor id, its value for each item, or the only one of a shared
        tensor. What is not given has the type that the graph says.
    constants
        For each task, by name, the constants that it has beside its tensors; they come before
        these as arguments.
    functions
        What tasks do, by name, instead of what is registered for their ops: arguments to outputs,
        for one item. So fused ops and compiled kernels are run. What computes again does the same.
    """

    def __init__(
        self,
        graph: TaskGraph,
        given: Mapping[int, Sequence[AnyValue]] | None = None,
        constants: Mapping[str, Sequence[AnyValue]] | None = None,
        operations: Operations = OPERATIONS,
        functions: Mapping[str, TaskFunction] | None = None,
    ) -> None:
        self._graph = graph
        self._functions = dict(functions or {})
        self._given = dict(given or {})
        self._constants = dict(constants or {})
        self._operations = operations
        self._calls: dict[int, OpCall] = {}

    def given(self, key: Key) -> AnyValue:
        """See `Domain.given`."""
        tensor, _, item = key
        if tensor not in self._given:
            return self.declared(tensor)
        values = self._given[tensor]
        if item >= len(values):
            name = self._graph.tensors[tensor].name
            raise PlanError(
                f"input {name!r} is given for {len(values)} items, and the plan reads item {item}"
            )
        self._check(tensor, values[item])
        return values[item]

    def declared(self, tensor: int) -> TensorType:
        """Return the type that the graph says a tensor has."""
        found = self._graph.tensors[tensor]
        return TensorType(found.shape if found.dtype else None, found.dtype)

    def apply(self, call: StepCall, values: Mapping[Key, AnyValue]) -> dict[Key, AnyValue]:
        """See `Domain.apply`."""
        if isinstance(call.step, Copy):
            pairs = zip(call.makes, call.reads, strict=True)
            return {made: values[read] for made, read in pairs}
        assert not isinstance(call.step, Load)  # `interpret` refuses them
        task, items = call.step.task, call.step.items
        if self._graph.batch_size(task, len(items)) == 1:
            items = items[:1]
        found: dict[Key, AnyValue] = {}
        for item in items:
            arguments = [values[key] for key in call.reads if self._is_of(key, item)]
            outputs = self.evaluate(task, arguments)
            of_tensor = dict(zip(self._graph.task_outputs[task], outputs, strict=True))
            for key in call.makes:
                if self._is_of(key, item):
                    prior = found[key] if key in found else values.get(key)
                    found[key] = self._joined(task, key, prior, of_tensor[key[0]])
        return found

    def _is_of(self, key: Key, item: int) -> bool:
        return self._graph.tensors[key[0]].shared or key[2] == item

    def _joined(self, task: int, key: Key, prior: AnyValue | None, part: AnyValue) -> AnyValue:
        """What is in a place now: the part, or what was there and the part."""
        if prior is None:
            return part
        found = self._graph.tasks[task]
        if not found.adds:
            name = self._graph.tensors[key[0]].name
            raise PlanError(
                f"task {found.name!r} makes tensor {name!r}, which is shared, anew for each of "
                f"several items; expected a task that adds, or one run for one item"
            )
        return self.add(prior, part)

    def add(self, total: AnyValue, part: AnyValue) -> AnyValue:
        """Return what a shared tensor is after one more part."""
        if isinstance(total, TensorType) or isinstance(part, TensorType):
            if type_of(total) != type_of(part):
                raise GraphError(f"{type_of(part)} is added to {type_of(total)}")
            return type_of(total)
        summed: Array = total + part
        return summed

    def evaluate(self, task: int, arguments: Sequence[AnyValue]) -> Sequence[AnyValue]:
        """Return what a task makes of its arguments for one item.

        Raises
        ------
        GraphError
            No implementation takes them, or it makes other than the graph says.
        """
        call = self.op_call(task)
        name = plain_name(call.task.name)
        arguments = [*self._constants.get(name, ()), *arguments]
        function = self._functions.get(name)
        outputs = function(arguments) if function else self._operations.call(call, arguments)
        made = self._graph.task_outputs[task]
        if len(outputs) != len(made):
            raise GraphError(
                f"task {call.task.name!r}: op {call.name!r} made {len(outputs)} values; expected "
                f"{len(made)}"
            )
        for tensor, value in zip(made, outputs, strict=True):
            self._check(tensor, value)
        return outputs

    def op_call(self, task: int) -> OpCall:
        """Return a task as implementations see it."""
        if task not in self._calls:
            found = self._graph.tasks[task]
            name, attributes = split_op(found.op)
            outputs = tuple(self._graph.tensors[t] for t in self._graph.task_outputs[task])
            self._calls[task] = OpCall(found, name, attributes, outputs)
        return self._calls[task]

    def _check(self, tensor: int, value: AnyValue) -> None:
        """Raise GraphError if a value cannot be of the type that the graph says."""
        declared, found = self.declared(tensor), type_of(value)
        if declared.shape is None:
            return
        is_same = found.dtype == declared.dtype
        if is_same and found.shape is not None:
            pairs = zip(found.shape, declared.shape, strict=False)
            is_same = len(found.shape) == len(declared.shape) and all(
                extent is None or extent == said for extent, said in pairs
            )
        if not is_same:
            name = self._graph.tensors[tensor].name
            raise GraphError(f"tensor {name!r} is {found}; expected {declared}")
