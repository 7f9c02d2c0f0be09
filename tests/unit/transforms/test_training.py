"""Sharded training steps equal the unsharded one, and ranks that run by themselves equal both."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import ShardingError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_op
from heteroplace.model.plan import Collective, Plan, Run
from heteroplace.parts.parallel.transforms.assemble import assemble
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.replicas import sum_at_end
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.strategy import Strategy
from heteroplace.simulate.simulator import simulate
from tests.reference.distir.dispatch import Level
from tests.reference.distir.domain_cost import CostDomain
from tests.reference.distir.domain_numpy import (
    NumpyDomain,
    cut_inputs,
    run_reference,
)
from tests.reference.distir.interpret import interpret
from tests.reference.distir.operations import built_in_operations
from tests.reference.distir_counts import distir_counts
from tests.reference.ranks import Ranks
from tests.strategies import exact_cases
from tests.unit.transforms.sharded_cases import (
    costs_by_op,
    plan_of,
    random_arrays,
    ranks,
    sgd_step,
    sums_of,
    training,
    with_op,
    worst_difference,
)

NUM_LAYERS, WIDTH, BATCH = 4, 8, 16
ARRAYS = random_arrays(NUM_LAYERS, WIDTH, BATCH)
EXPECTED = sgd_step(ARRAYS, NUM_LAYERS)
TOLERANCE = 1e-12


def instance_c() -> list[Strategy]:
    """90 programs: degrees of 1, 2, 4 each; one microbatch for one stage, 2 or 4 for several."""
    found = []
    for data, tensor, pipeline in product((1, 2, 4), repeat=3):
        for micro_batches in (1,) if pipeline == 1 else (2, 4):
            for schedule in ("gpipe", "1f1b"):
                degrees = Degrees(data, tensor, pipeline, micro_batches)
                found.append(Strategy(degrees, schedule))
    return found


def check(sharded: ShardedGraph, cluster: Cluster, plan: Plan) -> None:
    check_plan(sharded.graph, cluster, costs_by_op(sharded.graph, cluster, {}), plan)


@pytest.mark.costly
def test_the_90_programs_of_instance_c_equal_sequential_training() -> None:
    programs = instance_c()
    assert len(programs) == 90
    worst = 0.0
    for strategy in programs:
        d, t, p, k = (strategy.degrees.data, strategy.degrees.tensor,
                      strategy.degrees.pipeline, strategy.degrees.micro_batches)  # fmt: skip
        cluster = ranks(d * t * p)
        sharded = training(strategy, BATCH)
        plan = plan_of(sharded, strategy, cluster)
        over_lanes = (NUM_LAYERS - 1) * d * k if t > 1 else 0
        assert len(plan.collectives) == over_lanes + (NUM_LAYERS * t if d > 1 else 0)
        assert len(plan.copies) == 2 * (p - 1) * k * d * t
        found, _ = run_reference(sharded, cluster, plan, ARRAYS)
        worst = max(worst, worst_difference(found, EXPECTED))
    assert worst <= TOLERANCE


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (Degrees(1, 1, 1, 1), (30, 0, 6)),
        (Degrees(2, 2, 2, 2), (254, 20, 16)),
        (Degrees(2, 2, 2, 4), (442, 32, 32)),
        (Degrees(4, 4, 4, 4), (1918, 64, 384)),
    ],
)
def test_programs_have_as_many_ops_as_distirs(
    degrees: Degrees, expected: tuple[int, int, int]
) -> None:
    """DistIR sums the gradients of all microbatches by one op."""
    strategy = Strategy(degrees)
    sharded = training(strategy, BATCH)
    if degrees.micro_batches > 1:
        sharded = sum_at_end(sharded)
    cluster = ranks(degrees.num_devices)
    plan = plan_of(sharded, strategy, cluster, sums_at_end=sums_of(sharded))
    check(sharded, cluster, plan)
    assert distir_counts(sharded, degrees, plan) == expected
    found, _ = run_reference(sharded, cluster, plan, ARRAYS)
    assert worst_difference(found, EXPECTED) <= TOLERANCE


def test_an_output_that_is_added_up_at_the_end_is_the_sum_of_all_microbatches() -> None:
    strategy = Strategy(Degrees(1, 1, 2, 4))
    builder = ShardedBuilder.of(training(strategy, BATCH))
    builder.outputs = ["dw0"]
    added = builder.finalize()
    at_end = sum_at_end(added)
    cluster = ranks(strategy.degrees.num_devices)
    plan = plan_of(at_end, strategy, cluster, sums_at_end=sums_of(at_end))
    check(at_end, cluster, plan)
    (found,) = run_reference(at_end, cluster, plan, ARRAYS)[1]
    (expected,) = run_reference(added, cluster, plan_of(added, strategy, cluster), ARRAYS)[1]
    assert found.shape == expected.shape == (WIDTH, WIDTH)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_one_of_each_is_the_program_itself() -> None:
    sharded = training(Strategy(Degrees()), BATCH)
    plan = assemble(sharded, ranks(1), Degrees())
    assert [getattr(step, "task", None) for step in plan.steps] == list(
        range(len(sharded.graph.tasks))
    )


ANY_STRATEGY = st.builds(
    Strategy,
    st.builds(Degrees, *(st.sampled_from((1, 2, 2, 4)) for _ in range(4))),
    st.sampled_from(("gpipe", "1f1b")),
    st.integers(0, 3),
    st.integers(0, 4),
)


def check_strategy(strategy: Strategy, seed: int, is_buffered: bool) -> None:
    """The plan passes the check; reference of the sharded = of the unsharded; ranks = reference."""
    cluster = ranks(strategy.degrees.num_devices)
    sharded = training(strategy, BATCH)
    early = range(seed % (strategy.degrees.pipeline + 1))
    held = seed % 3 > 0
    plan = plan_of(sharded, strategy, cluster, early_updates=early, holds_updates=held)
    check(sharded, cluster, plan)
    found, _ = run_reference(sharded, cluster, plan, ARRAYS)
    assert worst_difference(found, EXPECTED) <= TOLERANCE
    domain = NumpyDomain(sharded.graph, cut_inputs(sharded, ARRAYS, plan.items))
    reference = interpret(sharded.graph, cluster, plan, domain).values
    values = Ranks(sharded.graph, cluster, plan, domain, seed, is_buffered).run()
    for key, value in reference.items():
        assert np.array_equal(np.asarray(value), values[key])


@pytest.mark.costly
@given(ANY_STRATEGY, st.integers(0, 2**32 - 1), st.booleans())
@exact_cases(30)
def test_any_strategy_equals_sequential_training_and_its_ranks(
    strategy: Strategy, seed: int, is_buffered: bool
) -> None:
    """Properties 1 and 2."""
    check_strategy(strategy, seed, is_buffered)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_strategy_equals_sequential_training_and_its_ranks() -> None:
    """All of D, T, P, K of 1, 2 and 4, both schedules, ZeRO 0 to 3, recomputed or not."""
    numbers = (1, 2, 4)
    for seed, (d, t, p, k, schedule, zero, every) in enumerate(
        product(numbers, numbers, numbers, numbers, ("gpipe", "1f1b"), range(4), (0, 2))
    ):
        strategy = Strategy(Degrees(d, t, p, k), schedule, zero, every)
        check_strategy(strategy, seed, is_buffered=seed % 2 == 0)


@pytest.mark.costly
@given(ANY_STRATEGY, st.integers(0, 2**32 - 1), st.sampled_from((None, 0, 1)))
@exact_cases(20)
def test_the_core_simulates_strategies_as_the_oracle_does(
    strategy: Strategy, seed: int, copy_engines: int | None
) -> None:
    random = Random(seed)
    number = strategy.degrees.num_devices
    cluster = ranks(number, random.randrange(5), copy_engines, random.choice((None, 0)))
    sharded = training(strategy, BATCH)
    plan = plan_of(sharded, strategy, cluster)
    ops = {op.partition("[")[0] for op in (task.op for task in sharded.graph.tasks)}
    costs = costs_by_op(sharded.graph, cluster, {op: random.randrange(9) for op in sorted(ops)})
    oracle = CostDomain(sharded.graph, cluster, costs)
    interpret(sharded.graph, cluster, plan, oracle)
    timeline = simulate(sharded.graph, cluster, costs, plan)
    for span in timeline.spans:
        assert (span.start_ns, span.finish_ns) == oracle.times_ns[span.step]
    assert timeline.makespan_ns == oracle.makespan_ns


def test_single_precision_equals_sequential_training() -> None:
    arrays = random_arrays(NUM_LAYERS, WIDTH, BATCH, dtype="float32")
    strategy = Strategy(Degrees(2, 2, 2, 4), zero=1)
    sharded = training(strategy, BATCH, dtype="float32")
    plan = plan_of(sharded, strategy, ranks(8))
    found, _ = run_reference(sharded, ranks(8), plan, arrays)
    assert worst_difference(found, sgd_step(arrays, NUM_LAYERS)) <= 1e-6


@pytest.mark.parametrize("momentum", [None, 0.5])
def test_updates_come_early_in_the_stages_that_are_named(momentum: float | None) -> None:
    """Stage 0 has layers 0 and 1: what updates w1 need not wait for the gradient of w0."""
    strategy = Strategy(Degrees(1, 1, 2, 2))
    sharded = training(strategy, BATCH, momentum=momentum)
    graph = sharded.graph
    for early, expected in (((), 0), ((0,), 1), ((0, 1), 2)):
        plan = plan_of(sharded, strategy, ranks(2), early_updates=early)
        stages_with_early = 0
        for device in range(2):
            own = [step for step in plan.steps if isinstance(step, Run) and step.device == device]
            runs = [step.task for step in own]
            last = max(at for at, task in enumerate(runs) if not sharded.is_update[task])
            updated = {
                graph.state_of[tensor]
                for task in runs[:last]
                for tensor in graph.task_outputs[task]
                if tensor in graph.state_of
            }
            stages_with_early += len(updated) == (1 if momentum is None else 2)
        assert stages_with_early == expected


@pytest.mark.parametrize("zero", [0, 1])
def test_sums_of_replicas_are_held_until_the_next_gradient_is_made(zero: int) -> None:
    """Nothing is held on one device, or at the end of the pass."""

    def order(replicas: int, is_held: bool) -> list[str]:
        strategy = Strategy(Degrees(replicas, 1, 1, 1), zero=zero)
        sharded = training(strategy, BATCH)
        options = {"early_updates": (0,), "holds_updates": is_held}
        plan = plan_of(sharded, strategy, ranks(replicas), **options)
        made = [
            sharded.graph.tensors[tensor].name
            for step in plan.steps
            if isinstance(step, (Run, Collective))
            for tensor in sharded.graph.task_outputs[step.task]
        ]
        return [name for name in dict.fromkeys(made) if name.startswith("dw")]

    at_once, held = order(2, False), order(2, True)
    made = [f"dw{layer}" for layer in reversed(range(NUM_LAYERS))]
    summed = [f"{name}.sum" for name in made]
    assert at_once == [name for pair in zip(made, summed, strict=True) for name in pair]
    waiting = [name for pair in pairwise(made) for name in (pair[1], f"{pair[0]}.sum")]
    assert held == [made[0], *waiting, summed[-1]]
    assert order(1, True) == order(1, False)


@pytest.mark.parametrize("zero", range(4))
def test_momentum_goes_on_from_step_to_step(zero: int) -> None:
    strategy = Strategy(Degrees(2, 1, 2, 2), zero=zero)
    sharded = training(strategy, BATCH, momentum=0.5)
    cluster = ranks(4)
    plan = plan_of(sharded, strategy, cluster)
    check(sharded, cluster, plan)
    names = [f"w{layer}" for layer in range(NUM_LAYERS)]
    moments = {name: np.zeros((WIDTH, WIDTH)) for name in names}
    weights = dict(ARRAYS)
    state = dict(ARRAYS) | {name.replace("w", "m"): moments[name] for name in names}
    for _ in range(2):
        found, _ = run_reference(sharded, cluster, plan, state)
        state |= found
        after = sgd_step(weights, NUM_LAYERS, rate=1.0)
        for name in names:
            moments[name] = 0.5 * moments[name] + (weights[name] - after[name])
            weights[name] = weights[name] - 0.1 * moments[name]
    for name in names:
        assert np.abs(state[name] - weights[name]).max() <= TOLERANCE
        assert np.abs(state[name.replace("w", "m")] - moments[name]).max() <= TOLERANCE


def test_odd_numbers_of_layers_gather_the_output_of_the_last() -> None:
    arrays = random_arrays(3, WIDTH, BATCH)
    for degrees in (Degrees(1, 2, 1, 1), Degrees(2, 4, 3, 2)):
        strategy = Strategy(degrees)
        cluster = ranks(degrees.num_devices)
        sharded = training(strategy, BATCH, num_layers=3)
        plan = plan_of(sharded, strategy, cluster)
        check(sharded, cluster, plan)
        found, _ = run_reference(sharded, cluster, plan, arrays)
        assert worst_difference(found, sgd_step(arrays, 3)) <= TOLERANCE


def mutated(strategy: Strategy, which: str) -> float:
    """How far a broken program is from sequential training."""
    sharded = training(strategy, BATCH)
    operations = built_in_operations()
    kept = collective_op("all_reduce")
    if which == "loss":
        rows = strategy.degrees.rows(BATCH)
        sharded = with_op(
            sharded, lambda op: op.replace(f"loss_grad[{BATCH}]", f"loss_grad[{rows}]")
        )
    else:
        is_lane = which == "lanes"

        def first(call, *parts):  # type: ignore[no-untyped-def]
            # The sum of the lanes' partial input gradients, or of the replicas' weights'.
            is_broken = call.task.name.startswith("all_reduce.da" if is_lane else "all_reduce.dw")
            return [parts[0] if is_broken else sum(parts[1:], parts[0])]

        operations.register(kept, [Level.CONCRETE], first, is_variadic=True)
    cluster = ranks(strategy.degrees.num_devices)
    plan = plan_of(sharded, strategy, cluster)
    found, _ = run_reference(sharded, cluster, plan, ARRAYS, operations=operations)
    return worst_difference(found, EXPECTED)


@pytest.mark.parametrize("which", ["loss", "replicas", "lanes"])
def test_the_comparison_sees_each_mutant(which: str) -> None:
    """A loss divided by the microbatch, no sum over replicas, no sum over lanes backward."""
    assert mutated(Strategy(Degrees(2, 2, 2, 4)), which) > 1e-3


def test_updates_from_one_replica_alone_are_refused() -> None:
    degrees = Degrees(2)
    sharded = Mlp(2, WIDTH, degrees.rows(BATCH)).training(BATCH)
    with pytest.raises(ShardingError, match=r"'sgd.w1' reads what matmul_dw.dw1 of one replica"):
        assemble(sharded, ranks(2), degrees)
    summed = training(Strategy(degrees), BATCH, num_layers=2)
    with pytest.raises(ShardingError, match="is a collective over one replica"):
        assemble(summed, ranks(2), Degrees(1, 1, 2, 1))


def test_what_does_not_fit_together_is_refused() -> None:
    sharded = Mlp(2, WIDTH, 4, num_lanes=2).training(BATCH)
    with pytest.raises(ShardingError, match="the graph has 2 lanes for 1"):
        assemble(sharded, ranks(2), Degrees(1, 1, 2, 1))
    with pytest.raises(ShardingError, match="2 layers cannot be cut into 3 stages"):
        assemble(sharded, ranks(6), Degrees(1, 2, 3, 1))
    with pytest.raises(ShardingError, match="given to two ranks: d0, d0"):
        assemble(sharded, ranks(2), Degrees(1, 2, 1, 1), devices=(0, 0))
    with pytest.raises(ShardingError, match="width 8 cannot be cut into 3 equal lanes"):
        Mlp(2, 8, 4, num_lanes=3).inference()
    with pytest.raises(ShardingError, match="ZeRO has levels 0, 1, 2, 3; got 4"):
        training(Strategy(Degrees(2), zero=4), BATCH)


def test_inference_equals_the_unsharded_network() -> None:
    random = Random(3)
    expected = np.asarray(ARRAYS["x"])
    for layer in range(NUM_LAYERS):
        expected = np.maximum(expected @ ARRAYS[f"w{layer}"], 0)
    for data, lanes, stages in product((1, 2), (1, 2, 4), (1, 2, 4)):
        degrees = Degrees(data, lanes, stages, random.choice((1, 2, 4)))
        sharded = Mlp(NUM_LAYERS, WIDTH, degrees.rows(BATCH), lanes, "float64").inference()
        constants = {}
        for layer in range(NUM_LAYERS):
            parts = np.split(ARRAYS[f"w{layer}"], lanes, axis=1 if layer % 2 == 0 else 0)
            stem = "z" if layer % 2 == 0 or lanes == 1 else "p"
            for lane, part in enumerate(parts):
                name = f"{stem}{layer}.{lane}" if lanes > 1 else f"{stem}{layer}"
                constants[f"matmul.{name}"] = (part,)
        for host in (None, 0):
            cluster = ranks(degrees.num_devices, host=host)
            plan = assemble(sharded, cluster, degrees)
            check_plan(sharded.graph, cluster, costs_by_op(sharded.graph, cluster, {}), plan)
            inputs = {"x": ARRAYS["x"]}
            _, (found,) = run_reference(sharded, cluster, plan, inputs, constants)
            assert np.abs(found - expected).max() <= TOLERANCE
