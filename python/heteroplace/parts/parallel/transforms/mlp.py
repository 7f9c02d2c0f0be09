"""Layers, width and rows -> a multilayer perceptron as a sharded graph, for inference or training.

The model of the experiments of DistIR (arXiv 2111.05426, section 5): square layers without bias,
a rectifier after each, mean squared error, gradient descent. Lanes cut it as Megatron-LM does
(arXiv 1909.08053, section 3): weights of even layers by columns, which needs no exchange forward;
those of odd layers by rows, whose partial products are summed over the lanes before the rectifier.
Backward it is the even layers whose input gradients are summed.

A lane's matrix product, rectifier and gradients are tasks of their own: matmul, relu, loss_grad,
relu_grad, matmul_dw, matmul_dx, sgd; gradients of weights add up over microbatches. Fused, a layer
is one task forward (dense) and one backward (dense_grad), as in DistIR's section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from heteroplace.errors import ShardingError
from heteroplace.model.collectives import collective_op
from heteroplace.model.graph import Task, tensor_bytes
from heteroplace.parts.parallel.transforms.builder import (
    ShardedBuilder,
    TaskEntry,
    TensorEntry,
    check_sizes,
)
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph


@dataclass(frozen=True)
class Mlp:
    """A perceptron for one microbatch."""

    num_layers: int
    width: int
    """Inputs and outputs of each layer."""
    rows: int
    """Of one microbatch."""
    num_lanes: int = 1
    dtype: str = "float32"
    is_fused: bool = False
    """A layer is one task forward and one backward; for one lane."""
    has_input_gradient: bool = False
    """Backward also makes the gradient of the network's input, which nothing reads: DistIR's
    gradient of a product makes both. Not of fused layers."""

    def inference(self) -> ShardedGraph:
        """Return the graph of the forward pass, with weights as constants of the tasks.

        Raises
        ------
        ShardingError
            A size is below 1; the width cannot be cut into so many lanes, or a fused layer into
            any.
        """
        return _Maker(self).inference()

    def training(
        self, batch: int, learning_rate: float = 0.1, momentum: float | None = None
    ) -> ShardedGraph:
        """Return the graph of one step of gradient descent, with weights as state.

        Parameters
        ----------
        batch
            Rows of the whole batch, of all replicas and microbatches, which the loss is a mean
            over.
        momentum
            Share of the last step's direction that is kept, as state beside each weight; None: no
            such state.

        Raises
        ------
        ShardingError
            As `inference`; or the batch is below 1.
        """
        check_sizes("a step of training", batch=batch)
        return _Maker(self).training(batch, learning_rate, momentum)


class _Maker:
    def __init__(self, mlp: Mlp) -> None:
        self._mlp = mlp
        lanes, width = mlp.num_lanes, mlp.width
        check_sizes(
            "a perceptron", num_layers=mlp.num_layers, width=width, rows=mlp.rows, num_lanes=lanes
        )
        if width % lanes:
            raise ShardingError(
                f"layers of width {width} cannot be cut into {lanes} equal lanes; take a width "
                f"that is a multiple of {lanes}, or fewer lanes"
            )
        if mlp.is_fused and lanes > 1:
            raise ShardingError(
                f"fused layers cannot be cut into {lanes} lanes, which exchange partial products "
                f"before the rectifier; take one lane, or layers that are not fused"
            )
        self._builder = ShardedBuilder(f"mlp{mlp.num_layers}", lanes, mlp.num_layers)
        self._full = (mlp.rows, width)
        self._part = (mlp.rows, width // lanes)
        self._weights: list[list[str]] = []
        """[layer][lane], in training."""
        self._z: list[list[str]] = []
        """[layer][lane] of what goes into the rectifiers."""
        self._a: list[list[str]] = []
        """[layer][lane] of what layers read; the last are the outputs."""

    @property
    def _lanes(self) -> range:
        return range(self._mlp.num_lanes)

    def _name(self, stem: str, layer: int, lane: int | None) -> str:
        is_one = lane is None or self._mlp.num_lanes == 1
        return f"{stem}{layer}" if is_one else f"{stem}{layer}.{lane}"

    def _is_column(self, layer: int) -> bool:
        return layer % 2 == 0

    def _weight_shape(self, layer: int) -> tuple[int, int]:
        width, part = self._mlp.width, self._part[1]
        return (width, part) if self._is_column(layer) else (part, width)

    def _out_shape(self, layer: int) -> tuple[int, int]:
        """Of what a lane has behind a layer's rectifier."""
        return self._part if self._is_column(layer) else self._full

    def inference(self) -> ShardedGraph:
        builder = self._builder
        x = builder.add_input("x", self._full, self._mlp.dtype)
        builder.add_whole("x", [x])
        self._forward(x, with_weights=True)
        builder.outputs = [self._gathered()]
        return builder.finalize()

    def training(self, batch: int, learning_rate: float, momentum: float | None) -> ShardedGraph:
        mlp, builder = self._mlp, self._builder
        moments: list[list[str]] = []
        for layer in range(mlp.num_layers):
            axis = None if mlp.num_lanes == 1 else int(self._is_column(layer))
            self._weights.append(self._add_state("w", layer, axis))
            if momentum is not None:
                moments.append(self._add_state("m", layer, axis))
        x = builder.add_input("x", self._full, mlp.dtype)
        y = builder.add_input("y", self._full, mlp.dtype)
        builder.add_whole("x", [x])
        builder.add_whole("y", [y])
        self._forward(x, with_weights=False)
        gradients = self._backward(x, self._loss_gradients(y, batch))
        for layer in reversed(range(mlp.num_layers)):
            for lane in self._lanes:
                moment = moments[layer][lane] if moments else None
                self._update(layer, lane, gradients[layer][lane], moment, learning_rate, momentum)
        return builder.finalize()

    def _add_state(self, stem: str, layer: int, axis: int | None) -> list[str]:
        shape, dtype = self._weight_shape(layer), self._mlp.dtype
        names = [
            self._builder.add_input(self._name(stem, layer, lane), shape, dtype, shared=True)
            for lane in self._lanes
        ]
        self._builder.add_whole(f"{stem}{layer}", names, axis)
        return names

    def _add(
        self,
        op: str,
        reads: tuple[str, ...],
        output: tuple[str, tuple[int, ...]],
        layer: int,
        lane: int | None,
        flops: int,
        backward: bool = False,
        weight_bytes: int = 0,
        is_sum: bool = False,
    ) -> str:
        name, shape = output
        stem = op.partition("[")[0].removeprefix("heteroplace.")
        task_name = f"{stem}.{name}"
        task = Task(task_name, op, flops=flops, weight_bytes=weight_bytes, adds=is_sum)
        entry = TaskEntry(task, reads, layer, lane, backward)
        return self._builder.add_op(entry, shape, self._mlp.dtype, name, shared=is_sum)

    def _matmul_flops(self) -> int:
        # All three products of a layer have the same: 2 m k n.
        return 2 * self._mlp.rows * self._mlp.width * self._part[1]

    def _forward(self, x: str, with_weights: bool) -> None:
        """All layers; with weights as constants of the tasks, or as tensors that they read."""
        a = [x for _ in self._lanes]
        for layer in range(self._mlp.num_layers):
            constant = tensor_bytes(self._weight_shape(layer), self._mlp.dtype)
            reads: list[tuple[str, ...]] = [(a[lane],) for lane in self._lanes]
            if not with_weights:
                reads = [(self._weights[layer][lane], a[lane]) for lane in self._lanes]
            weight_bytes = constant if with_weights else 0
            if self._mlp.is_fused:
                flops = self._matmul_flops() + prod(self._full)
                output = (f"a{layer}", self._full)
                a = [self._add("dense", reads[0], output, layer, 0, flops, False, weight_bytes)]
                self._z.append([])
            else:
                z = self._products(layer, reads, weight_bytes)
                self._z.append(z)
                shape = self._out_shape(layer)
                a = [
                    self._add(
                        "relu",
                        (z[lane],),
                        (self._name("a", layer, lane), shape),
                        layer,
                        lane,
                        prod(shape),
                    )
                    for lane in self._lanes
                ]
            self._a.append(a)

    def _products(self, layer: int, reads: list[tuple[str, ...]], weight_bytes: int) -> list[str]:
        """What goes into the rectifier of each lane."""
        is_partial = not self._is_column(layer) and self._mlp.num_lanes > 1
        shape = self._out_shape(layer)
        stem = "p" if is_partial else "z"
        z = [
            self._add(
                "matmul",
                reads[lane],
                (self._name(stem, layer, lane), shape),
                layer,
                lane,
                self._matmul_flops(),
                False,
                weight_bytes,
            )
            for lane in self._lanes
        ]
        return self._all_reduce(z, f"z{layer}", layer, False) if is_partial else z

    def _all_reduce(self, parts: list[str], name: str, layer: int, backward: bool) -> list[str]:
        """The sum of all lanes' parts, which each lane then has."""
        flops = len(parts) * prod(self._full)
        output = (name, self._full)
        op = collective_op("all_reduce")
        total = self._add(op, tuple(parts), output, layer, None, flops, backward)
        return [total for _ in parts]

    def _gathered(self) -> str:
        """The network's output as one tensor that all lanes have, or the first has."""
        last = self._mlp.num_layers - 1
        if not self._is_column(last) or self._mlp.num_lanes == 1:
            return self._a[last][0]
        op = collective_op("all_gather")
        return self._add(op, tuple(self._a[last]), ("out", self._full), last, None, 0)

    def _loss_gradients(self, y: str, batch: int) -> list[str]:
        """The gradient of the mean squared error by what each lane has of the output."""
        last = self._mlp.num_layers - 1
        layer = self._mlp.num_layers  # on the last stage, whatever the cuts
        is_cut = self._is_column(last) and self._mlp.num_lanes > 1
        outputs = [self._gathered()] * self._mlp.num_lanes if is_cut else self._a[last]
        gradients = []
        for lane in self._lanes:
            name = self._name("dl" if is_cut else "da", last, lane)
            output = (name, self._full)
            flops = 2 * prod(self._full)
            gradient = self._add(
                f"loss_grad[{batch}]", (y, outputs[lane]), output, layer, lane, flops, True
            )
            if is_cut:
                output = (self._name("da", last, lane), self._part)
                gradient = self._add(f"slice[{lane}]", (gradient,), output, layer, lane, 0, True)
            gradients.append(gradient)
        return gradients

    def _backward(self, x: str, da: list[str]) -> list[list[str]]:
        """The gradients of all weights, [layer][lane]."""
        gradients: list[list[str]] = []
        for layer in reversed(range(self._mlp.num_layers)):
            reads = self._a[layer - 1] if layer else [x for _ in self._lanes]
            if self._mlp.is_fused:
                gradient, da = self._fused_backward(layer, reads[0], da[0])
                gradients.insert(0, [gradient])
                continue
            shape = self._out_shape(layer)
            dz = [
                self._add(
                    "relu_grad",
                    (self._z[layer][lane], da[lane]),
                    (self._name("dz", layer, lane), shape),
                    layer,
                    lane,
                    prod(shape),
                    True,
                )
                for lane in self._lanes
            ]
            gradients.insert(0, [self._weight_gradient(layer, lane, reads[lane], dz[lane])
                             for lane in self._lanes])  # fmt: skip
            if layer or self._mlp.has_input_gradient:
                da = self._input_gradients(layer, dz)
        return gradients

    def _weight_gradient(self, layer: int, lane: int, a: str, dz: str) -> str:
        output = (self._name("dw", layer, lane), self._weight_shape(layer))
        flops = self._matmul_flops()
        return self._add("matmul_dw", (a, dz), output, layer, lane, flops, True, is_sum=True)

    def _input_gradients(self, layer: int, dz: list[str]) -> list[str]:
        """The gradients of what a layer reads, for each lane of the layer before."""
        is_partial = self._is_column(layer) and self._mlp.num_lanes > 1
        shape = self._full if self._is_column(layer) else self._part
        stem = "q" if is_partial else "da"
        dx = [
            self._add(
                "matmul_dx",
                (self._weights[layer][lane], dz[lane]),
                (self._name(stem, layer - 1, lane), shape),
                layer,
                lane,
                self._matmul_flops(),
                True,
            )
            for lane in self._lanes
        ]
        return self._all_reduce(dx, f"da{layer - 1}", layer, True) if is_partial else dx

    def _fused_backward(self, layer: int, a: str, da: str) -> tuple[str, list[str]]:
        """The gradients of a fused layer's weight and of what it reads."""
        builder, dtype = self._builder, self._mlp.dtype
        gradient = f"dw{layer}"
        name = f"dense_grad.{gradient}"
        is_first = layer == 0
        # It computes the product again, which the rectifier's gradient needs.
        flops = (2 if is_first else 3) * self._matmul_flops() + prod(self._full)
        task = Task(name, "dense_grad", flops=flops, adds=True)
        reads = (self._weights[layer][0], a, da)
        shape = self._weight_shape(layer)
        builder.add_op(TaskEntry(task, reads, layer, 0, True), shape, dtype, gradient, shared=True)
        if is_first:
            return gradient, []
        size = tensor_bytes(self._full, dtype)
        before = f"da{layer - 1}"
        builder.add_tensor(TensorEntry(before, name, self._full, dtype, size))
        return gradient, [before]

    def _update(
        self,
        layer: int,
        lane: int,
        gradient: str,
        moment: str | None,
        learning_rate: float,
        momentum: float | None,
    ) -> None:
        """The new weight, and its new momentum if there is one."""
        builder, dtype = self._builder, self._mlp.dtype
        shape = self._weight_shape(layer)
        weight = self._weights[layer][lane]
        new = self._name("w'", layer, lane)
        reads = (weight, gradient) if moment is None else (weight, moment, gradient)
        op = f"sgd[{learning_rate}]" if moment is None else f"sgd[{learning_rate},{momentum}]"
        flops = (2 if moment is None else 4) * prod(shape)
        name = f"sgd.{weight}"
        entry = TaskEntry(Task(name, op, flops=flops), reads, layer, lane, True)
        builder.updates[weight] = builder.add_op(entry, shape, dtype, new, shared=True)
        if moment is not None:
            output = self._name("m'", layer, lane)
            size = tensor_bytes(shape, dtype)
            builder.updates[moment] = builder.add_tensor(
                TensorEntry(output, name, shape, dtype, size, True)
            )
