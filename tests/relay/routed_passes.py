"""Small routed networks, profiles of them, and what a pass that specialises must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from numpy_relay import run_by_numpy
from relay_models import module, var
from tvm import relay

from heteroplace import routing
from heteroplace.model.routed.route_profile import RouteProfile, RouteRecord, RouterShape
from heteroplace.parts.routing.dynamic.recorded_routes import ProfileBuilder
from heteroplace.parts.routing.relay.rewrite import model_digest, named_routers, routers_of
from heteroplace.parts.routing.relay.router import RouterOptions

CELLS, WIDTH = 8, 4
RUNS = 40


def expert(seed: int, width: int = WIDTH) -> Callable[[relay.Expr], relay.Expr]:
    """A product with weights of its own."""
    values = np.random.default_rng(seed).standard_normal((width, WIDTH)).astype("float32")
    back = np.ones((WIDTH, width), "float32")

    def branch(rows: relay.Expr) -> relay.Expr:
        hidden = relay.nn.dense(rows, relay.const(values))
        return hidden if width == WIDTH else relay.nn.dense(hidden, relay.const(back))

    return branch


def two_layers(**options: Any) -> tvm.IRModule:
    """Two routers of four branches, of which the last one is wider than the others."""
    x = var("x", (CELLS, WIDTH))
    y = x
    for layer in range(2):
        mask = var(f"mask{layer}", (CELLS, 4), "int32")
        cells = routing.annotate_cell(y, dims=(0,), shape=(1, WIDTH))
        experts = [expert(10 * layer + index) for index in range(3)] + [expert(layer, 6)]
        y = routing.route(cells, routing.from_mask(mask, 1), experts, **options)
    masks = [var for var in relay.analysis.free_vars(y) if var.name_hint != "x"]
    return named_routers(module([x, *masks], y))


def early_exit() -> tvm.IRModule:
    """A router that decides about a whole tensor."""
    x, mask = var("x", (1, WIDTH)), var("mask", (1, 2), "int32")
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, WIDTH))
    y = routing.route(cells, routing.from_mask(mask, 1), [expert(0), expert(1)])
    return named_routers(module([x, mask], y))


def shapes_of_module(mod: tvm.IRModule) -> tuple[RouterShape, ...]:
    return tuple(
        RouterShape(router.options.name, router.num_cells, router.options.num_branches)
        for router in routers_of(mod)
    )


def profile_of(
    mod: tvm.IRModule, decide: Callable[[int, int], tuple[int, ...]], runs: int = RUNS
) -> RouteProfile:
    """What is recorded where `decide` says the branch of each cell by run and router."""
    shapes = shapes_of_module(mod)
    builder = ProfileBuilder(model_digest(mod), shapes)
    for run in range(runs):
        for index, shape in enumerate(shapes):
            taken = decide(run, index)
            loads = tuple(taken.count(branch) for branch in range(shape.num_branches))
            cells = tuple((branch,) for branch in taken)
            builder.add(RouteRecord(run, shape.name, loads, cells))
    return builder.profile()


def pairs(run: int, router: int) -> tuple[int, ...]:
    """Cells of branches 0 and 2 of the first router take 1 and 3 of the second, and so on."""
    return ((0, 0, 2, 2, 1, 1, 3, 3), (1, 1, 3, 3, 0, 0, 2, 2))[router]


def skewed(run: int, router: int) -> tuple[int, ...]:
    return (0, 0, 0, 0, 0, 1, 1, 3) if run % 2 else (0, 0, 1, 1, 1, 1, 1, 3)


def options_of(mod: tvm.IRModule) -> list[RouterOptions]:
    return [router.options for router in routers_of(mod)]


def outputs(mod: tvm.IRModule) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = {}
    for parameter in mod["main"].params:
        shape = tuple(int(extent) for extent in parameter.checked_type.shape)
        if parameter.checked_type.dtype == "int32":
            inputs[parameter.name_hint] = np.eye(shape[1], dtype="int32")[
                generator.integers(0, shape[1], shape[0])
            ]
        else:
            inputs[parameter.name_hint] = generator.standard_normal(shape).astype("float32")
    return run_by_numpy(mod, inputs)


def check_pass(made: tvm.transform.Pass, mod: tvm.IRModule) -> tvm.IRModule:
    """What the pass makes of a module; it computes the same, and again changes nothing."""
    found = made(mod)
    for one, other in zip(outputs(found), outputs(mod), strict=True):
        np.testing.assert_array_equal(one, other)
    assert tvm.ir.structural_equal(made(found), found)
    assert model_digest(found) == model_digest(mod)
    return found
