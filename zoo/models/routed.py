"""What networks with routers have in common: their steering, and the habits of a trace.

A router of these networks adds an input, 0 by default, to its scores, so that a trace of route
decisions with a stated skew can be replayed: what is computed stays the same, only the choice is
given. Everything is seeded; sizes are parameters, by default those of the published models.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace import routing
from heteroplace.demo.networks import Weights
from heteroplace.model.routed.route_profile import RouteRecord, RouterShape
from heteroplace.relay.tasks.network import bound_module

STEER = 1000.0
"""What is added to the score of a branch that is to be taken; real scores are far below."""


class RoutedNetwork(NamedTuple):
    """A network with routers, and how its decisions are given."""

    mod: tvm.IRModule
    """Typed module; its `main` takes the inputs, then the parameters."""
    params: dict[str, tvm.nd.NDArray]
    """Weights by parameter name; not bound."""
    input_shapes: dict[str, tuple[int, ...]]
    """Shapes of the inputs, all float32."""
    routers: tuple[RouterShape, ...]
    """In the order in which they decide."""
    top_k: int
    """Branches that a cell takes."""

    @property
    def bound(self) -> tvm.IRModule:
        """The module with its weights, whose decisions profiles are of."""
        return bound_module(self.mod, self.params)

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return random numbers for the inputs; nothing is steered."""
        random = np.random.default_rng(seed)
        steering = {steer_name(router.name) for router in self.routers}
        return {
            name: np.zeros(shape, "float32")
            if name in steering
            else random.standard_normal(shape).astype("float32")
            for name, shape in self.input_shapes.items()
        }

    def steered(self, records: Iterable[RouteRecord], seed: int = 0) -> dict[str, np.ndarray]:
        """Return inputs with which the routers decide as the records of one run say."""
        inputs = self.inputs(seed)
        for record in records:
            given = inputs[steer_name(record.router)]
            assert record.cells is not None  # traces are of level 2
            for cell, branches in enumerate(record.cells):
                given[cell] = -STEER
                given[cell, list(branches)] = STEER
        return inputs


class RoutedParts:
    """Collects the inputs, weights and routers of a network."""

    def __init__(self, seed: int) -> None:
        self.weights = Weights(seed)
        self.inputs: dict[str, relay.Var] = {}
        self.routers: list[RouterShape] = []

    def input(self, name: str, *shape: int) -> relay.Var:
        """Add an input."""
        self.inputs[name] = relay.var(name, shape=shape)
        return self.inputs[name]

    def steer(self, router: str, num_cells: int, num_branches: int) -> relay.Var:
        """Add a router and the input that steers it, [cells, branches]."""
        self.routers.append(RouterShape(router, num_cells, num_branches))
        return self.input(steer_name(router), num_cells, num_branches)

    def linear(self, name: str, x: relay.Expr, num_in: int, num_out: int) -> relay.Expr:
        """Add a product with a matrix, and a bias."""
        weight = self.weights.normal(f"{name}.weight", (num_out, num_in), num_in**-0.5)
        bias = self.weights.normal(f"{name}.bias", (num_out,), 0.02)
        return relay.add(relay.nn.dense(x, weight), bias)

    def norm(self, name: str, x: relay.Expr, width: int) -> relay.Expr:
        """Add a layer norm of the last axis."""
        gamma = self.weights.normal(f"{name}.weight", (width,), 0.02, 1.0)
        beta = self.weights.normal(f"{name}.bias", (width,), 0.02)
        return relay.nn.layer_norm(x, gamma, beta)

    def conv(
        self, name: str, x: relay.Expr, channels: tuple[int, int], kernel: int = 3, stride: int = 1
    ) -> relay.Expr:
        """Add a convolution (in, out channels) with a bias, and a relu."""
        num_in, num_out = channels
        std = (2 / (num_in * kernel**2)) ** 0.5
        weight = self.weights.normal(f"{name}.weight", (num_out, num_in, kernel, kernel), std)
        bias = self.weights.normal(f"{name}.bias", (num_out,), 0.02)
        y = relay.nn.conv2d(
            x,
            weight,
            strides=(stride, stride),
            padding=(kernel // 2, kernel // 2),
            channels=num_out,
            kernel_size=(kernel, kernel),
        )
        return relay.nn.relu(relay.nn.bias_add(y, bias))

    def experts(self, name: str, which: Iterable[int], width: int, hidden: int) -> list[Any]:
        """Return functions of rows: two products with a relu between them, each its own."""

        def expert(index: int) -> Any:
            def run(rows: relay.Expr) -> relay.Expr:
                inner = relay.nn.relu(self.linear(f"{name}.{index}.in", rows, width, hidden))
                return self.linear(f"{name}.{index}.out", inner, hidden, width)

            return run

        return [expert(index) for index in which]

    def network(self, output: relay.Expr, top_k: int) -> RoutedNetwork:
        """Return the network that makes an output."""
        mod, params, shapes = self.weights.network(self.inputs, output)
        return RoutedNetwork(mod, params, shapes, tuple(self.routers), top_k)


def steer_name(router: str) -> str:
    """Return the name of the input that steers a router."""
    return f"steer.{router}"


def steered_top_k(
    logits: relay.Expr, steer: relay.Expr, k: int, factor: float = 0.0
) -> routing.Decision:
    """Return the decision for the best logits, steered; gates are the softmax of the logits."""
    found = routing.capacity_factor(relay.add(logits, steer), k, factor)
    gates = relay.nn.softmax(logits, axis=1)
    return routing.Decision(found.mask, found.top_k, gates, found.priority, found.capacity)
