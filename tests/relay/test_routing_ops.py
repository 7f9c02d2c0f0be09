"""The ops of routed networks as stock TVM compiles them, against their meaning by numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import CUDA, TARGET, module, var
from test_rebatch import outputs
from tvm import relay
from tvm.contrib import graph_executor

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay import ops
from heteroplace.parts.routing.relay.host import call_host
from heteroplace.parts.routing.relay.router import RouterOptions
from heteroplace.parts.routing.relay.row_kernels import route_body
from heteroplace.tvm_bridge import register_cuda_compiler

MASK = np.array(
    [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]],
    "int32",
)
"""Loads of 3, 4 and 0 cells."""
CELLS, BRANCHES = MASK.shape
INNER = np.array([[1, 0], [0, 1], [1, 1], [1, 0]] * 2 + [[-7, 9]] * 4, "int32")
"""Of two cells for each row of a branch; no load is above 4, and what is behind it is no mask."""
LIKE = ((1, 2, 4, 8),) * BRANCHES


def routed(options: RouterOptions, priority: relay.Expr | None = None) -> list[relay.Expr]:
    """Everything that a router's results are read by; branches hand on what they get."""
    name, rows = options.name, options.rows(CELLS)
    mask, x, gates = var("mask", MASK.shape, "int32"), var("x", (CELLS, 5)), var("g", MASK.shape)
    parts, residual = var("parts", (CELLS, BRANCHES, 2, 2)), var("residual", (CELLS, 5))
    seats, loads, offsets = ops.router(mask, options, priority)
    branches = [ops.branch_rows_of(options, branch, CELLS) for branch in range(BRANCHES)]
    inner, halves = var("inner", INNER.shape, "int32"), RouterOptions("inner", ((12,),) * 2, 2)

    def joined(buffer: relay.Expr) -> relay.Expr:
        taken = [ops.take_branch(buffer, loads, offsets, of) for of in branches]
        return ops.join_branches(taken, loads, offsets, name, rows)

    plain = joined(ops.dispatch(x, seats, offsets, rows))
    gated = joined(ops.dispatch(x, seats, offsets, rows, gates))
    by_branch = joined(ops.dispatch(parts, seats, offsets, rows, is_by_branch=True))
    return [
        seats,
        loads,
        offsets,
        *[ops.router(inner, halves, around=(loads, of))[0] for of in branches],
        ops.combine(plain, seats, offsets),
        ops.combine(plain, seats, offsets, gates, residual),
        ops.combine(gated, seats, offsets),
        ops.combine(by_branch, seats, offsets, residual=var("parts0", (CELLS, 2, 2))),
    ]


def inputs_of(mod: tvm.IRModule) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = {p.name_hint: [int(e) for e in p.checked_type.shape] for p in mod["main"].params}
    found = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    masks = {"mask": MASK, "inner": INNER}
    return {name: value.astype("float32") for name, value in found.items()} | masks


def check_by_numpy(results: list[relay.Expr], **given: Any) -> list[np.ndarray]:
    body = relay.Tuple(results)
    mod = module(relay.analysis.free_vars(body), body)
    inputs = {name: value for name, value in inputs_of(mod).items() if name in names(mod)} | given
    found = outputs(mod, inputs)
    with np.errstate(all="ignore"):
        expected = run_by_numpy(mod, inputs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    return found


def names(mod: tvm.IRModule) -> list[str]:
    return [parameter.name_hint for parameter in mod["main"].params]


@pytest.mark.costly
def test_the_worked_instance() -> None:
    assert RouterOptions("r", LIKE, 2).rows(CELLS) == 18
    found = check_by_numpy(routed(RouterOptions("r", LIKE, 2)))
    np.testing.assert_array_equal(
        found[0], [[1, 0, 0], [0, 1, 0], [2, 2, 0], [0, 3, 0], [3, 0, 0], [0, 4, 0]]
    )
    assert found[1].tolist() == [3, 4, 0] and found[2].tolist() == [0, 4, 8]


VARIANTS = {
    "drop": RouterOptions("drop", ((1, 2),) * 3, 2, "drop"),
    "first": RouterOptions("first", ((1, 2),) * 3, 3, "drop"),
    "apart": RouterOptions("apart", ((1, 2), (3,), (2, 4)), 2, "rounds", quantum=4),
}
"""Cells behind a capacity dropped, in order or the least important; unlike branches, aligned."""


@pytest.mark.costly
def test_routers_of_every_kind() -> None:
    results = []
    for name, options in VARIANTS.items():
        priority = var("priority", (CELLS,)) if name == "first" else None
        every = routed(options, priority)
        results += [*every[:5], every[7]]
    shared = {}
    for parameter in relay.analysis.free_vars(relay.Tuple(results)):
        shared.setdefault(parameter.name_hint, []).append(parameter)
    same = {other: first for first, *others in shared.values() for other in others}
    body = relay.bind(relay.Tuple(results), same)
    priority = np.array([0, np.nan, 3, 1, 2, 1], "float32")
    found = check_by_numpy(list(body.fields), priority=priority)
    assert found[2].tolist() == [0, 2, 4]  # 1 and 2 cells are dropped
    assert found[0].tolist() == [[1, 0, 0], [0, 1, 0], [2, 2, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert found[6].tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 0], [0, 2, 0], [2, 0, 0], [0, 0, 0]]
    assert found[14].tolist() == [0, 4, 12]
    assert found[3][:, 0].tolist() == [1, 0, 2, 3] + [0] * 8  # of two rows


@pytest.mark.costly
def test_whole_tensors_are_chosen() -> None:
    mask, x, other = var("mask", (1, 3), "int32"), var("x", (4, 3)), var("other", (4, 3))
    options = RouterOptions("r", ((1,),) * 3, 3)
    _, loads, _ = ops.router(mask, options)
    inside = [ops.enter_branch(x, loads, "r", branch) for branch in range(3)]
    made = [relay.multiply(value, relay.const(at + 1.0)) for at, value in enumerate(inside)]
    plain = ops.select(made, loads, "r")
    body = relay.Tuple([plain, ops.select(made, loads, "r", other)])
    mod = module([mask, x, other], body)
    run = stock_executor(mod)
    data = {name: inputs_of(mod)[name] for name in ("x", "other")}
    for taken in ([0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]):
        total = sum(at + 1.0 for at, is_in in enumerate(taken) if is_in)
        found = run({**data, "mask": np.array([taken], "int32")})
        np.testing.assert_allclose(found[0], data["x"] * total, rtol=1e-6)
        expected = data["x"] * total if any(taken) else data["other"]
        np.testing.assert_allclose(found[1], expected, rtol=1e-6)


def stock_executor(mod: tvm.IRModule) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    """The module compiled by stock TVM, to be run often."""
    with tvm.transform.PassContext(opt_level=0):
        library = relay.build(mod, target=TARGET)
    executor = graph_executor.GraphModule(library["default"](tvm.cpu(0)))

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        executor.run(**inputs)
        return [executor.get_output(at).numpy() for at in range(executor.get_num_outputs())]

    return run


def test_masks_that_are_none_end_the_run_and_the_next_works() -> None:
    mask = var("mask", (4, 3), "int32")
    seats, loads, _ = ops.router(mask, RouterOptions("gate", ((2, 4),) * 3, 1))
    run = stock_executor(module([mask], relay.Tuple([seats, loads])))
    for wrong, words in (
        ([1, 0, 1], "router 'gate': its mask gives a cell more than 1 branches"),
        ([0, -1, 0], "router 'gate': a route decision is none of its 3 branches"),
    ):
        with pytest.raises(tvm.TVMError, match=words):
            run({"mask": np.array([[0, 0, 0], wrong, [0, 1, 0], [0, 0, 1]], "int32")})
        assert run({"mask": np.array([[0, 1, 0]] * 4, "int32")})[1].tolist() == [0, 4, 0]


def test_a_function_on_the_host_decides() -> None:
    calls = []

    def decide(x: tvm.nd.NDArray, mask: tvm.nd.NDArray) -> None:
        calls.append(x.numpy())
        if (x.numpy() > 100).any():
            raise ValueError("too large to be routed")
        mask.copyfrom(np.stack([x.numpy() > 0, x.numpy() <= 0], axis=1).astype("int32"))

    name = "heteroplace.tests.decide"
    tvm.register_func(name, decide, override=True)
    x = var("x", (4,))
    run = stock_executor(module([x], call_host(name, [x], (4, 2))))
    values = np.array([1, -1, 2, -3], "float32")
    assert run({"x": values})[0].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    with pytest.raises(Exception, match="too large to be routed"):
        run({"x": values * 100})
    assert run({"x": -values})[0].tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert len(calls) == 3
    with pytest.raises(RoutingError, match="'f' reads nothing"):
        call_host("f", [], (4, 2))


@pytest.mark.costly
def test_gpus_have_a_kernel_for_each_part() -> None:
    register_cuda_compiler()
    every = routed(VARIANTS["first"], var("priority", (CELLS,)))
    body = relay.Tuple([every[0], every[7]])
    mod = module(relay.analysis.free_vars(body), body)
    with tvm.transform.PassContext(opt_level=0):
        library = relay.build(mod, target=tvm.target.Target(CUDA, host=TARGET))
    code = library.get_lib().imported_modules[0].get_source()
    # A thread for each branch counts, a block for each cell finds seats, one thread adds up, and
    # cells are dropped.
    assert len(set(re.findall(r"\w*router\w*kernel\w*", code))) == 4
    for op in ("dispatch", "take_branch", "join_branches", "combine"):
        assert re.search(rf"__global__ .*{op}\w*kernel", code)


def on_threads_one_by_one(function: tvm.tir.PrimFunc) -> tvm.runtime.Module:
    """A kernel for GPUs, its threads in turn on the host."""

    def in_turn(stmt: tvm.tir.Stmt) -> tvm.tir.Stmt | None:
        if stmt.attr_key != "thread_extent":
            return None
        serial = tvm.tir.ForKind.SERIAL
        return tvm.tir.For(stmt.node.var, 0, stmt.value, serial, stmt.body)

    body = tvm.tir.stmt_functor.ir_transform(function.body, None, in_turn, ["tir.AttrStmt"])
    return tvm.build(function.with_body(body), target=TARGET)


@pytest.mark.parametrize("priority", [False, True])
def test_masks_that_are_none_make_a_load_below_0_on_gpus(priority: bool) -> None:
    kinds = [((5, 3), "int32"), *([((5,), "float32")] if priority else [])]
    reads = [tvm.tir.decl_buffer(shape, dtype) for shape, dtype in kinds]
    makes = [tvm.tir.decl_buffer(shape, "int32") for shape in ((5, 3), (3,), (3,))]
    options = RouterOptions("gate", ((2, 5),) * 3, 1, "drop" if priority else "rounds")
    with tvm.target.Target(CUDA, host=TARGET):
        body = route_body(options)(reads, makes)
    run = on_threads_one_by_one(tvm.tir.PrimFunc([*reads, *makes], body))

    def made(mask: np.ndarray) -> list[list[int]]:
        arrays = [mask, *([np.zeros(5, "float32")] if priority else [])]
        given = [tvm.nd.array(array) for array in arrays]
        found = [tvm.nd.array(np.full(shape, 7, "int32")) for shape in ((5, 3), (3,), (3,))]
        run(*given, *found)
        return [array.numpy().tolist() for array in found[1:]]

    good = np.eye(3, dtype="int32")[[0, 2, 2, 1, 2]]
    good[3] = 0
    assert made(good) == [[1, 0, 3], [0, 2, 2]]
    for cell in range(5):
        for wrong in ([1, 0, 1], [0, 0, -1]):
            mask = good.copy()
            mask[cell] = wrong
            loads, offsets = made(mask)
            assert min(loads) == -1
            assert min(offsets) >= 0


def test_a_constant_mask_is_decided_in_the_run() -> None:
    _, loads, _ = ops.router(relay.const(MASK), RouterOptions("r", LIKE, 2))
    folded = relay.transform.FoldConstant()(module([], loads))
    assert isinstance(folded["main"].body, relay.TupleGetItem)


X, SEATS, INTS = var("x", (6, 5)), var("s", (6, 3), "int32"), var("i", (3,), "int32")
ROWS = ops.BranchRows("r", 1, 6, 6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ops.router(X, RouterOptions("r", LIKE, 2))[0], "a mask is int32"),
        (
            lambda: ops.router(SEATS, RouterOptions("r", LIKE[:2], 2))[0],
            "of 2 branches, expected 3",
        ),
        (lambda: ops.router(SEATS, RouterOptions("r", LIKE, 4))[0], "top_k is 4, expected 1 to 3"),
        (
            lambda: ops.router(SEATS, RouterOptions("r", ((4, 2),) * 3, 1))[0],
            r"branch 0 has capacities \(4, 2\), expected at least one, positive and ascending",
        ),
        (
            lambda: ops.router(SEATS, RouterOptions("r", LIKE, 1, "spill"))[0],
            "overflow is 'spill', expected one of rounds, drop, error",
        ),
        (lambda: ops.router(SEATS, RouterOptions("r", LIKE, 1, quantum=0))[0], "quantum is 0"),
        (lambda: ops.router(SEATS, RouterOptions("r", LIKE, 1), INTS)[0], "a priority is float32"),
        (lambda: ops.dispatch(INTS, SEATS, INTS, 9), "not of the cells of the seats"),
        (lambda: ops.dispatch(X, SEATS, INTS, 9, X), "gates are float32"),
        (lambda: ops.dispatch(SEATS, SEATS, INTS, 9, var("g", (6, 3))), "of int32 cannot be mult"),
        (lambda: ops.take_branch(X, INTS, INTS, ROWS._replace(branch=3)), "branch 3 of a router"),
        (lambda: ops.join_branches([X, X], INTS, INTS, "r", 9), "2 branches, loads"),
        (lambda: ops.join_branches([X, X, SEATS], INTS, INTS, "r", 9), "rows of unlike types"),
        (lambda: ops.combine(X, SEATS, INTS, residual=INTS), "gates and residual are"),
        (lambda: ops.enter_branch(X, INTS, "r", -1), "branch -1 of a router of 3"),
        (lambda: ops.select([X, X], INTS, "r"), "2 branches, loads"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], relay.Expr], words: str) -> None:
    expr = make()
    with pytest.raises(RoutingError, match=words):
        module(relay.analysis.free_vars(expr), expr)
