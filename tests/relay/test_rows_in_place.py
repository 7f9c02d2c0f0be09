"""Rows that no branch takes stay where they are, and so do those that branches hand on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from item_plans import with_second_memory
from numpy_relay import run_by_numpy
from relay_models import cpu_cluster, module, var
from routed_models import routed_executable
from tvm import relay

from heteroplace import routing
from heteroplace.errors import ExecutionError
from heteroplace.lower.executable import Executable
from heteroplace.parts.routing.relay.rewrite import named_routers
from heteroplace.relay.tasks.network import cut_network
from heteroplace.run.executor import Executor

CELLS, WIDTH = 8, 16
X = var("x", (CELLS, WIDTH), "int32")
MASKS = [var(f"mask{n}", (CELLS, 2), "int32") for n in range(2)]


def routed(
    x: relay.Expr, number: int, residual: relay.Expr | None, scales: Sequence[int] = (3, 5)
) -> relay.Expr:
    """Cells times a constant by a router of a mask; a factor of 1 hands the rows on."""

    def branch(scale: int) -> routing.Branch:
        return lambda rows: rows if scale == 1 else relay.multiply(rows, relay.const(scale))

    cells = routing.annotate_cell(x, dims=(0,), shape=(1, WIDTH))
    decision = routing.from_mask(MASKS[number], top_k=2)
    return routing.route(
        cells, decision, list(map(branch, scales)), residual=residual, name=f"router{number}"
    )


def routed_error(x: relay.Expr) -> relay.Expr:
    """Branches that hand on two cells, and refuse more."""
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, WIDTH))
    decision = routing.from_mask(MASKS[0], top_k=2)
    hand_on = [lambda rows: rows] * 2
    return routing.route(cells, decision, hand_on, capacities=[2], overflow="error", name="router0")


def negated(x: relay.Expr) -> relay.Expr:
    return relay.nn.relu(relay.negative(x))


def of(*outputs: relay.Expr) -> tvm.IRModule:
    result = outputs[0] if len(outputs) == 1 else relay.Tuple(list(outputs))
    return named_routers(module([X, *MASKS], result))


def num_in_place(executable: Executable) -> int:
    """How many calls of the program are in place."""
    program = executable.lowered.program
    return sum(
        each.kind == "call" and program.kernels[int(each.fields[0])].endswith("_in_place")
        for queue in program.queues
        for each in queue.instructions
    )


def check(mod: tvm.IRModule, executable: Executable) -> None:
    """Numbers of numpy, whatever is routed where."""
    executor = Executor(executable)
    for seed in range(6):
        random = np.random.default_rng(seed)
        inputs = {"x": random.integers(-9, 10, (CELLS, WIDTH)).astype("int32")}
        for mask in MASKS:
            chosen = random.random((CELLS, 2)) < (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)[seed]
            inputs[mask.name_hint] = chosen.astype("int32")
        inputs = {name: inputs[name] for name in (p.name_hint for p in mod["main"].params)}
        for found, expected in zip(executor.run(inputs), run_by_numpy(mod, inputs), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("num_routers", [1, 2])
def test_a_residual_that_nobody_needs_afterwards_is_written_over(num_routers: int) -> None:
    y = negated(X)
    for number in range(num_routers):
        y = routed(y, number, y)
    mod = of(y)
    executable = routed_executable(mod)
    assert num_in_place(executable) == num_routers
    check(mod, executable)


def later() -> tvm.IRModule:
    r = negated(X)
    return of(relay.add(routed(r, 0, r), r))


def output() -> tvm.IRModule:
    r = negated(X)
    return of(routed(r, 0, r), r)


def without_rows() -> tvm.IRModule:
    return of(routed(negated(X), 0, None))


@pytest.mark.costly(6)
@pytest.mark.parametrize("make", [later, output, lambda: of(routed(X, 0, X)), without_rows])
def test_what_is_needed_afterwards_is_not_written_over(make: object) -> None:
    assert callable(make)
    mod = make()
    executable = routed_executable(mod)
    assert num_in_place(executable) == 0
    check(mod, executable)


@pytest.mark.costly(2)
def test_of_two_that_read_one_residual_one_writes_over_it() -> None:
    r = negated(X)
    mod = of(relay.subtract(routed(r, 0, r), routed(r, 1, r)))
    executable = routed_executable(mod)
    assert num_in_place(executable) == 1
    check(mod, executable)


@pytest.mark.costly
def test_a_residual_that_another_core_reads_is_not_waited_for() -> None:
    r = negated(X)
    mod = of(routed(r, 0, r), relay.multiply(r, relay.const(7)))
    network, cluster = cut_network(mod), cpu_cluster()
    other = [int(task.op == "multiply" and task.branch is None) for task in network.graph.tasks]
    assert sum(other) == 1
    apart = routed_executable(mod, cluster, other)
    assert num_in_place(apart) == 0
    check(mod, apart)
    together = routed_executable(mod, cluster, [0] * len(other))
    assert num_in_place(together) == 1
    check(mod, together)


def num_moving(executable: Executable) -> int:
    """How many calls of branches write to other bytes than they read."""
    program = executable.lowered.program
    variants = [
        each.fields[-1].split(";")
        for queue in program.queues
        for each in queue.instructions
        if each.kind == "branch_call"
    ]
    assert len(variants) == 2
    kernels = [re.findall(r"=(\d+)\(", text) for texts in variants for text in texts]
    names = [program.kernels[int(kernel)] for found in kernels for kernel in found]
    return sum(not name.endswith("_in_place") for name in names) * 2 // len(names)


@pytest.mark.parametrize(("scales", "num_calls"), [((1, 1), 0), ((1, 3), 2)])
def test_rows_that_all_branches_hand_on_are_read_where_they_lie(
    scales: tuple[int, int], num_calls: int
) -> None:
    r = negated(X)
    mod = of(routed(r, 0, r, scales))
    executable = routed_executable(mod)
    assert num_moving(executable) == num_calls
    check(mod, executable)


@pytest.mark.costly
def test_rows_handed_on_elsewhere_are_moved_as_the_plan_says() -> None:
    r = negated(X)
    mod = of(routed(r, 0, r, (1, 1)))
    network, cluster = cut_network(mod), with_second_memory(cpu_cluster())
    tasks = network.graph.tasks
    (apart,) = [index for index, each in enumerate(cluster.devices) if each.memory == 1]
    of_branches = [apart if task.branch is not None else 0 for task in tasks]
    executable = routed_executable(mod, cluster, of_branches)
    assert num_moving(executable) == 2
    check(mod, executable)
    there = [task.branch is not None or "combine" in task.op for task in tasks]
    combined = [apart if is_there else 0 for is_there in there]
    beside = routed_executable(mod, cluster, combined)
    assert num_moving(beside) == 0
    check(mod, beside)


def test_rows_that_are_too_many_are_refused_by_branches_that_hand_them_on() -> None:
    mod = of(routed_error(negated(X)))
    executable = routed_executable(mod)
    assert num_moving(executable) == 0
    masks = [[1, 0]] * 3 + [[0, 0]] * 5, [[0, 0]] * 8
    inputs = {f"mask{at}": np.array(mask, "int32") for at, mask in enumerate(masks)}
    with pytest.raises(ExecutionError, match="has 3 cells, its largest capacity is 2"):
        Executor(executable).run(inputs | {"x": np.ones((CELLS, WIDTH), "int32")})
