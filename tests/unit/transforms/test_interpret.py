"""Domains of interpretation: precision, soundness, times, and the fault each of them sees."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import GraphError, PlanError
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Plan, Run
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.strategy import Strategy
from heteroplace.simulate.simulator import simulate
from tests.reference.distir.dispatch import (
    AnyValue,
    Level,
    OpCall,
    Operations,
    TensorType,
)
from tests.reference.distir.domain_cost import CostDomain
from tests.reference.distir.domain_mixed import MixedDomain
from tests.reference.distir.domain_numpy import NumpyDomain
from tests.reference.distir.domain_types import TypesDomain
from tests.reference.distir.interpret import interpret
from tests.reference.distir.operations import built_in_operations
from tests.strategies import Instance, exact_cases, instances_with_plan
from tests.unit.transforms.sharded_cases import plan_of, ranks, training

HERE = ranks(1)


def chain_plan(graph: TaskGraph) -> Plan:
    """All tasks on one device, in graph order."""
    steps = tuple(Run(task, 0) for task in range(len(graph.tasks)))
    return Plan(graph.digest(), HERE.digest(), steps, "by hand")


def interpreted(graph: TaskGraph, domain: MixedDomain) -> dict[str, AnyValue]:
    """The value of each tensor, by name."""
    made = interpret(graph, HERE, chain_plan(graph), domain)
    return {graph.tensors[tensor].name: value for (tensor, _, _), value in made.values.items()}


def reshape_snippet() -> TaskGraph:
    """DistIR's example: a tensor is flattened to rows of its last extent, which is looked up."""
    builder = TaskGraphBuilder("snippet")
    x = builder.add_input("x", (256, 8, 768), "float32")
    bias = builder.add_input("bias", (768,), "float32")
    minus_one = builder.add_input("minus_one", (1,), "int64")
    builder.add_task(Task("add", "add"), [x, bias])
    builder.add_tensor("add", (256, 8, 768), "float32", name="y")
    builder.add_task(Task("shape", "shape"), ["y"])
    builder.add_tensor("shape", (3,), "int64", name="extents")
    index = builder.add_input("index", (), "int64")
    builder.add_task(Task("gather", "gather"), ["extents", index])
    builder.add_tensor("gather", (), "int64", name="last")
    builder.add_task(Task("unsqueeze", "unsqueeze"), ["last"])
    builder.add_tensor("unsqueeze", (1,), "int64", name="list")
    builder.add_task(Task("concat", "concat"), [minus_one, "list"])
    builder.add_tensor("concat", (2,), "int64", name="target")
    builder.add_task(Task("reshape", "reshape"), ["y", "target"])
    builder.add_tensor("reshape", (2048, 768), "float32", name="rows")
    return builder.finalize(["rows"])


def given_of(graph: TaskGraph, **values: AnyValue) -> dict[int, Sequence[AnyValue]]:
    ids = {tensor.name: index for index, tensor in enumerate(graph.tensors)}
    return {ids[name]: [value] for name, value in values.items()}


def test_the_shape_that_a_network_computes_is_known_in_the_mixed_domain() -> None:
    graph = reshape_snippet()
    given = given_of(graph, minus_one=np.array([-1]), index=np.array(2))
    found = interpreted(graph, MixedDomain(graph, given))
    assert found["y"] == TensorType((256, 8, 768), "float32")
    assert np.array_equal(found["extents"], [256, 8, 768])
    assert found["last"] == 768
    assert np.array_equal(found["target"], [-1, 768])
    assert found["rows"] == TensorType((2048, 768), "float32")
    # With types alone only the number of axes is known.
    types = interpreted(graph, TypesDomain(graph))
    assert types["rows"] == TensorType((None, None), "float32")
    # Where even the list is unknown, so is the shape.
    unknown = interpreted(graph, MixedDomain(graph, {**given, **given_of(
        graph, minus_one=TensorType(None, "int64"))}))  # fmt: skip
    assert str(unknown["rows"]) == "float32[??]"


def test_the_most_precise_implementation_wins() -> None:
    operations = Operations()
    seen = []

    def say(name: str):  # type: ignore[no-untyped-def]
        def run(call: OpCall, *arguments: AnyValue) -> list[AnyValue]:
            seen.append((name, [isinstance(argument, TensorType) for argument in arguments]))
            return [arguments[0]]

        return run

    concrete, typed, any_ = Level.CONCRETE, Level.TYPED, Level.ANY
    operations.register("op", [any_, any_], say("any"))
    operations.register("op", [concrete, typed], say("concrete first"))
    operations.register("op", [typed, concrete], say("concrete last"))
    operations.register("op", [any_], say("all alike"), is_variadic=True)
    call = OpCall(Task("t", "op"), "op", (), ())
    array, type_, unknown = np.zeros(2), TensorType((2,), "float64"), TensorType(None, "float64")
    for arguments in ((array, array), (type_, array), (type_, type_), (unknown, array)):
        operations.call(call, arguments)
    operations.call(call, (array, type_, unknown))
    assert seen == [
        ("concrete first", [False, True]),
        ("concrete last", [True, False]),
        ("any", [True, True]),
        ("any", [True, True]),
        ("all alike", [True, True, True]),
    ]
    operations = Operations()
    operations.register("op", [concrete], say("array"))
    with pytest.raises(GraphError, match=r"'op' is given \(typed\), and takes \(concrete\)"):
        operations.call(call, (type_,))
    with pytest.raises(GraphError, match="takes nothing: it is not registered"):
        Operations().call(call, (type_,))


def random_program(random: Random) -> tuple[TaskGraph, dict[str, np.ndarray]]:  # type: ignore[type-arg]
    """Elementwise ops, products, and shapes that are computed, on small arrays."""
    builder = TaskGraphBuilder("random")
    arrays: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
    tensors: list[str] = []
    for index in range(3):
        shape = (random.choice((1, 4)), 4)
        name = f"x{index}"
        arrays[name] = np.arange(shape[0] * 4, dtype="float64").reshape(shape) - random.randrange(9)
        tensors.append(builder.add_input(name, num_bytes=8))
    arrays["minus_one"], arrays["index"] = np.array([-1]), np.array(random.randrange(2))
    for name in ("minus_one", "index"):
        builder.add_input(name, num_bytes=8)

    def add(op: str, reads: list[str]) -> str:
        name = f"{op}{len(tensors)}.{random.random()}"
        builder.add_task(Task(name, op), reads)
        return builder.add_tensor(name, num_bytes=8)

    for _ in range(random.randint(2, 8)):
        kind = random.choice(("add", "multiply", "relu", "reshape"))
        first = random.choice(tensors)
        if kind == "relu":
            tensors.append(add("relu", [first]))
        elif kind == "reshape":
            extent = add("unsqueeze", [add("gather", ["index", add("shape", [first])])])
            target = add("concat", ["minus_one", extent])
            tensors.append(add("reshape", [first, target]))
        else:
            second = random.choice([tensor for tensor in tensors if tensor != first])
            tensors.append(add(kind, [first, second]))
    return builder.finalize([tensors[-1]]), arrays


@given(st.integers(0, 2**32 - 1))
@exact_cases(150)
def test_abstract_results_contain_the_concrete_ones(seed: int) -> None:
    """Property 8. The index comes before the shape among the arguments of gather here."""
    random = Random(seed)
    graph, arrays = random_program(random)
    operations = swapped_gather()
    given = given_of(graph, **arrays)
    concrete = interpreted(graph, MixedDomain(graph, given, None, operations))
    some = {
        name: array if random.random() < 0.5 else TensorType(
            None if random.random() < 0.2 else tuple(
                None if random.random() < 0.2 else extent for extent in array.shape
            ), array.dtype.name)
        for name, array in arrays.items()
    }  # fmt: skip
    mixed = interpreted(graph, MixedDomain(graph, given_of(graph, **some), None, operations))
    for name, value in mixed.items():
        if isinstance(value, TensorType):
            assert value.contains(np.asarray(concrete[name]))
        else:
            assert np.array_equal(value, concrete[name])


def test_types_of_sharded_steps_are_those_of_the_graph() -> None:
    for degrees in (Degrees(1, 2, 1, 1), Degrees(2, 2, 2, 2), Degrees(1, 4, 3, 1)):
        strategy = Strategy(degrees, zero=3 if degrees.data > 1 else 0, recompute_every=2)
        sharded = training(strategy, batch=8, num_layers=3)
        cluster = ranks(degrees.num_devices)
        domain = TypesDomain(sharded.graph)
        interpret(sharded.graph, cluster, plan_of(sharded, strategy, cluster), domain)
        assert not domain.unchecked


def test_a_wrong_shape_is_seen_before_anything_runs() -> None:
    builder = TaskGraphBuilder("wrong")
    weight = builder.add_input("w", (3, 4), "float32")
    x = builder.add_input("x", (2, 5), "float32")
    builder.add_task(Task("product", "matmul"), [weight, x])
    graph = builder.finalize([builder.add_tensor("product", (2, 4), "float32")])
    with pytest.raises(GraphError, match=r"'matmul' cannot be applied to \(float32\[2, 5\]"):
        interpreted(graph, TypesDomain(graph))
    builder = TaskGraphBuilder("other")
    x = builder.add_input("x", (2, 5), "float32")
    builder.add_task(Task("relu", "relu"), [x])
    graph = builder.finalize([builder.add_tensor("relu", (5, 2), "float32")])
    with pytest.raises(GraphError, match=r"'relu.0' is float32\[2, 5\]; expected float32\[5, 2\]"):
        interpreted(graph, TypesDomain(graph))


def test_a_value_that_is_not_there_is_refused_with_its_step() -> None:
    strategy = Strategy(Degrees(1, 1, 2, 1))
    sharded = training(strategy, batch=4)
    cluster = ranks(2)
    plan = plan_of(sharded, strategy, cluster)
    first = plan.copies[0]
    broken = Plan(plan.graph_digest, plan.cluster_digest,
                  tuple(step for step in plan.steps if step != first), "by hand")  # fmt: skip
    with pytest.raises(PlanError, match="reads tensor 'a1' of item 0, which is not in memory 'm1'"):
        interpret(sharded.graph, cluster, broken, TypesDomain(sharded.graph))
    with pytest.raises(GraphError, match="input 'w3' is not given"):
        interpret(sharded.graph, cluster, plan, NumpyDomain(sharded.graph, {}))


def test_gradients_of_halves_are_no_zeros_in_large_batches() -> None:
    builder = TaskGraphBuilder("halves")
    for name in ("y", "p"):
        builder.add_input(name, (2,), "float16")
    builder.add_task(Task("slope", "loss_grad[100000]"), ["y", "p"])
    builder.add_tensor("slope", (2,), "float16", name="dp")
    graph = builder.finalize(["dp"])
    halves = (np.array([-60000, 0], "float16"), np.array([60000, 64], "float16"))
    domain = NumpyDomain(graph, {t: [half] for t, half in zip(graph.inputs, halves, strict=True)})
    found = interpreted(graph, domain)["dp"]
    expected = (halves[1].astype("float64") - halves[0]) / 100_000
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-3)


@given(instances_with_plan(max_tasks=6, max_items=3, has_modes=True))
@exact_cases(100)
def test_the_core_simulates_what_interpretation_by_times_says(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    oracle = CostDomain(found.graph, found.cluster, found.costs)
    interpret(found.graph, found.cluster, plan, oracle)
    timeline = simulate(found.graph, found.cluster, found.costs, plan)
    for span in timeline.spans:
        assert (span.start_ns, span.finish_ns) == oracle.times_ns[span.step]
    assert timeline.makespan_ns == oracle.makespan_ns


def swapped_gather() -> Operations:
    """Operations whose gather takes the index first, as the order of tensors has it here."""
    operations = built_in_operations()
    plain = built_in_operations()
    for levels in ((Level.CONCRETE, Level.CONCRETE), (Level.ANY, Level.ANY)):
        operations.register(
            "gather", levels, lambda call, index, data: plain.call(call, (data, index))
        )
    return operations
