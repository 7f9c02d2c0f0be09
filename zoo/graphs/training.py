"""The graph of a training step, op by op, as TensorFlow 1 writes it: Celeritas' kind of graph.

Ops are added forward; `training_graph` then adds for each op, backwards, the ops of its gradient,
sums where a value has several readers, and an optimiser of two slots (Adam) for each variable. The
many small nodes of such graphs are there: constants of shapes and axes, reads of variables, sums
and reshapes of broadcasts, identities behind gradients of several inputs. What one device must do
together (a variable, its reads, its slots, its update) is one colocation group.

The gradient of an op says which values it reads, so what a step must keep for its backward pass
lives that long in every plan. A variable is a tensor that lives to its update; its slots are
resident.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from zoo.graphs.roofline import (
    BATCHED_MATMUL,
    MATMUL,
    MEMORY_BOUND,
    Efficiency,
    roofline_costs,
)

_DTYPE = "float32"
_DTYPE_BYTES = 4
_SMALL = (4,)
_NUM_SLOTS = 2
"""Of Adam: both moments of the gradient."""
_VIEW = Efficiency(1.0, math.inf)
"""Nothing is moved: the result is a view, or a few bytes."""

_GRADIENT, _RESULT = -1, -2
"""What a gradient reads beside inputs of its op: gradients of the op's results, and the results."""


@dataclass(frozen=True)
class Value:
    """A tensor of the forward pass."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool = True
    """Whether a variable is among what it is computed from."""


@dataclass(frozen=True)
class _Gradient:
    """One op of the backward pass: it makes the gradients of some inputs of a forward op."""

    op: str
    reads: tuple[int, ...]
    """Positions of inputs, or `_GRADIENT`, `_RESULT`."""
    of: tuple[int, ...]
    """Positions of the inputs whose gradients it makes; empty: all of them."""


def _by_result(op: str) -> tuple[_Gradient, ...]:
    return (_Gradient(op, (_GRADIENT, _RESULT), (0,)),)


def _by_gradient(op: str) -> tuple[_Gradient, ...]:
    return (_Gradient(op, (_GRADIENT,), (0,)),)


_PRODUCT = (_Gradient("matmul", (_GRADIENT, 1), (0,)), _Gradient("matmul", (0, _GRADIENT), (1,)))
_GRADIENTS: Mapping[str, tuple[_Gradient, ...]] = {
    "conv2d": (
        _Gradient("conv2d_input_grad", (_GRADIENT, 1), (0,)),
        _Gradient("conv2d_filter_grad", (0, _GRADIENT), (1,)),
    ),
    "matmul": _PRODUCT,
    "batch_matmul": tuple(replace(part, op="batch_matmul") for part in _PRODUCT),
    "gather": (_Gradient("scatter", (_GRADIENT,), (0,)),),
    "bias_add": (_Gradient("identity", (_GRADIENT,), (0,)), _Gradient("sum", (_GRADIENT,), (1,))),
    "batch_norm": (_Gradient("batch_norm_grad", (_GRADIENT, 0, 1), ()),),
    "layer_norm": (_Gradient("layer_norm_grad", (_GRADIENT, 0, 1), ()),),
    "add": (_Gradient("identity", (_GRADIENT,), (0,)), _Gradient("identity", (_GRADIENT,), (1,))),
    "multiply": (
        _Gradient("multiply", (_GRADIENT, 1), (0,)),
        _Gradient("multiply", (_GRADIENT, 0), (1,)),
    ),
    "relu": _by_result("relu_grad"),
    "tanh": _by_result("tanh_grad"),
    "sigmoid": _by_result("sigmoid_grad"),
    "gelu": (_Gradient("gelu_grad", (_GRADIENT, 0), (0,)),),
    "softmax": _by_result("softmax_grad"),
    "pool": (_Gradient("pool_grad", (_GRADIENT, 0, _RESULT), (0,)),),
    "concat": (_Gradient("split", (_GRADIENT,), ()),),
    "split": _by_gradient("concat"),
    "reshape": _by_gradient("reshape"),
    "transpose": _by_gradient("transpose"),
    "scale": _by_gradient("scale"),
    "loss": _by_result("multiply"),
    "square_sum": (_Gradient("multiply", (_GRADIENT, 0), (0,)),),
}
"""By op of the forward pass. A variable's read is the identity."""

_BROADCASTS = frozenset({"add", "multiply"})
"""Their gradients are summed over what was broadcast, which TensorFlow only knows in the run."""
_NUM_CONSTANTS: Mapping[str, int] = {
    **dict.fromkeys(("reshape", "transpose", "concat", "split", "sum", "scale", "gather"), 1),
    **dict.fromkeys(("conv2d_input_grad", "conv2d_filter_grad", "batch_norm", "scatter"), 1),
    "batch_norm_grad": 2,
}
"""Constants that an op reads: shapes, axes, permutations."""

_PRODUCTS = ("conv2d", "conv2d_input_grad", "conv2d_filter_grad", "matmul")
_VIEWS = ("identity", "reshape", "constant", "variable", "broadcast_axes")
_ELEMENTWISE = (
    *("batch_norm", "batch_norm_grad", "layer_norm", "layer_norm_grad", "relu", "relu_grad"),
    *("tanh", "tanh_grad", "sigmoid", "sigmoid_grad", "gelu", "gelu_grad", "softmax"),
    *("softmax_grad", "pool", "pool_grad", "concat", "split", "transpose", "scale", "add"),
    *("multiply", "bias_add", "sum", "add_n", "loss", "gather", "scatter", "square_sum"),
    *("subtract", "assign_sub", "apply_adam"),
)
OP_CLASSES: Mapping[str, Efficiency] = {
    **dict.fromkeys(_PRODUCTS, MATMUL),
    "batch_matmul": BATCHED_MATMUL,
    **dict.fromkeys(_VIEWS, _VIEW),
    **dict.fromkeys(_ELEMENTWISE, MEMORY_BOUND),
}
"""Efficiency of each op of the graphs."""


def training_costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return roofline costs of a graph made by `Network.training_graph`."""
    return roofline_costs(graph, cluster, OP_CLASSES)


@dataclass(frozen=True)
class _Op:
    name: str
    op: str
    inputs: tuple[Value, ...]
    results: tuple[Value, ...]
    flops: int


class Network:
    """Takes the ops of a forward pass in order; `training_graph` is the step that trains it."""

    def __init__(self, name: str) -> None:
        self._builder = TaskGraphBuilder(name)
        self._ops: list[_Op] = []
        self._group_of: dict[str, str] = {}
        """By the name of a variable's read, its variable."""
        self._forward_of: dict[str, str] = {}
        """By the name of a task of the backward pass, the forward op that its gradient is of."""
        self._current_forward: str | None = None
        """The forward op whose gradient is being added."""
        self._updates: list[str] = []
        """Results of updates that no gradient makes."""
        self._num_of: defaultdict[str, int] = defaultdict(int)

    def input(self, name: str, shape: tuple[int, ...]) -> Value:
        """Add an input of the model."""
        return Value(self._builder.add_input(name, shape, _DTYPE), shape, is_trained=False)

    def variable(self, name: str, shape: tuple[int, ...]) -> Value:
        """Add a variable; return what its read makes."""
        held = self._task(name, "variable", (), (shape,), group=name)
        read = self._task(f"{name}/read", "identity", held, (shape,), group=name)
        self._group_of[read[0].name] = name
        return read[0]

    def average(self, name: str, value: Value) -> None:
        """Keep a moving average of `value` from step to step."""
        held = self._task(name, "variable", (), (value.shape,), group=name)[0]
        read = self._task(f"{name}/read", "identity", [held], (value.shape,), group=name)[0]
        change = self._task(f"{name}/change", "subtract", [read, value], (value.shape,))[0]
        change = self._task(f"{name}/part", "scale", [change], (value.shape,))[0]
        made = self._task(f"{name}/update", "assign_sub", [held, change], (_SMALL,), group=name)
        self._updates.append(made[0].name)

    def add(
        self,
        op: str,
        inputs: Sequence[Value],
        *shapes: tuple[int, ...],
        flops: int = 0,
    ) -> Value:
        """Add an op of `_GRADIENTS` with results of these shapes; return the first of them."""
        return self.add_parts(op, inputs, shapes, flops)[0]

    def add_parts(
        self, op: str, inputs: Sequence[Value], shapes: Sequence[tuple[int, ...]], flops: int = 0
    ) -> tuple[Value, ...]:
        """Add an op as `add` does; return all its results."""
        name = self._next_name(op)
        trained = any(value.is_trained for value in inputs)
        made = self._task(name, op, inputs, shapes, flops)
        results = tuple(replace(value, is_trained=trained) for value in made)
        self._ops.append(_Op(name, op, tuple(inputs), results, flops))
        return results

    def training_graph(
        self, losses: Sequence[Value], *, colocates_gradients: bool = False
    ) -> TaskGraph:
        """Return the step: forward, the gradients of the sum of `losses`, and all updates.

        Parameters
        ----------
        colocates_gradients
            Each forward op and all ops of its gradient are one colocation group, as with
            TensorFlow's `colocate_gradients_with_ops`. A sum of gradients joins the first of them.
        """
        gradients: defaultdict[str, list[Value]] = defaultdict(list)
        for loss in losses:
            gradients[loss.name].append(self._constant())
        for op in reversed(self._ops):
            of_results = [self._sum(gradients[value.name]) for value in op.results]
            if any(of_results) and any(value.is_trained for value in op.inputs):
                self._current_forward = op.name
                self._add_gradients(op, [one for one in of_results if one], gradients)
                self._current_forward = None
        outputs = [*(loss.name for loss in losses), *self._updates]
        for read, variable in self._group_of.items():
            gradient = self._sum(gradients[read])
            if gradient:
                outputs.append(self._update(read, variable, gradient))
        graph = self._builder.finalize(outputs)
        return self._with_colocated_gradients(graph) if colocates_gradients else graph

    def _with_colocated_gradients(self, graph: TaskGraph) -> TaskGraph:
        group_of = {name: name for name in self._forward_of.values()} | self._forward_of
        tasks = (
            replace(task, together=group_of.get(task.name, task.together)) for task in graph.tasks
        )
        return replace(graph, tasks=tuple(tasks))

    def _add_gradients(
        self, op: _Op, of_results: list[Value], gradients: defaultdict[str, list[Value]]
    ) -> None:
        parts = _GRADIENTS[op.op]
        is_several = len(parts) > 1 or not parts[0].of
        axes: tuple[Value, ...] = ()
        if op.op in _BROADCASTS:
            shapes = [self._constant(), self._constant()]
            axes = self._task(self._next_name("axes"), "broadcast_axes", shapes, (_SMALL,))
        for part in parts:
            targets = [
                op.inputs[index]
                for index in (part.of or range(len(op.inputs)))
                if op.inputs[index].is_trained
            ]
            if not targets:
                continue
            reads = [
                value
                for position in part.reads
                for value in (
                    of_results
                    if position == _GRADIENT
                    else op.results[:1]
                    if position == _RESULT
                    else [op.inputs[position]]
                )
            ]
            name = self._next_name(f"grad/{op.op}")
            made = self._task(name, part.op, reads, [one.shape for one in targets], op.flops)
            for target, value in zip(targets, made, strict=True):
                if axes:
                    value = self._view("sum_view", [value, *axes], target.shape)
                    value = self._view("reshape_view", [value, self._constant()], target.shape)
                if is_several:
                    value = self._view("dependency", [value], target.shape)
                gradients[target.name].append(value)

    def _sum(self, values: list[Value]) -> Value | None:
        if len(values) < 2:
            return values[0] if values else None
        name = self._next_name("sum")
        forward = self._forward_of.get(values[0].name.rpartition(".")[0])
        if forward is not None:
            self._forward_of[name] = forward
        return self._task(name, "add_n", values, (values[0].shape,))[0]

    def _update(self, read: str, variable: str, gradient: Value) -> str:
        """Add the slots of a variable and its update; return the update's result."""
        slots = [self._slot(f"{variable}/slot{i}", variable, gradient) for i in range(_NUM_SLOTS)]
        held = Value(f"{variable}.0", gradient.shape)
        reads = [held, *slots, gradient]
        name = f"{variable}/update"
        return self._task(name, "apply_adam", reads, (_SMALL,), group=variable)[0].name

    def _slot(self, name: str, variable: str, gradient: Value) -> Value:
        size = math.prod(gradient.shape) * _DTYPE_BYTES
        held = self._task(name, "variable", (), (_SMALL,), group=variable, resident_bytes=size)
        return self._task(f"{name}/read", "identity", held, (_SMALL,), group=variable)[0]

    def _view(self, what: str, reads: Sequence[Value], shape: tuple[int, ...]) -> Value:
        return self._task(self._next_name(what), "identity", reads, (shape,))[0]

    def _constant(self) -> Value:
        name = self._next_name("constant")
        made = self._task(name, "constant", (), (_SMALL,))[0]
        return replace(made, is_trained=False)

    def _next_name(self, kind: str) -> str:
        self._num_of[kind] += 1
        return f"{kind}_{self._num_of[kind]}"

    def _task(
        self,
        name: str,
        op: str,
        inputs: Sequence[Value],
        shapes: Sequence[tuple[int, ...]],
        flops: int = 0,
        group: str | None = None,
        resident_bytes: int = 0,
    ) -> tuple[Value, ...]:
        if self._current_forward is not None:
            self._forward_of[name] = self._current_forward
        constants = [self._constant() for _ in range(_NUM_CONSTANTS.get(op, 0))]
        task = Task(name, op, flops=flops, weight_bytes=resident_bytes, together=group)
        self._builder.add_task(task, list(dict.fromkeys(v.name for v in [*inputs, *constants])))
        return tuple(
            Value(self._builder.add_tensor(name, shape, _DTYPE), shape) for shape in shapes
        )
