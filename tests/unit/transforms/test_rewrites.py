"""What rewrites leave as it is, what they save, and how they read as text."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.distir.gpt2 import Gpt2
from heteroplace.errors import ShardingError
from heteroplace.model.graph import Task
from heteroplace.model.memory_use.live_memory import live_peaks
from heteroplace.model.plan import Plan, Run
from heteroplace.parts.parallel.transforms.assemble import assemble
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.recompute import recompute
from heteroplace.parts.parallel.transforms.replicas import sum_over_replicas
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph, WholeTensor, cut_stages
from heteroplace.parts.parallel.transforms.strategy import Strategy
from heteroplace.parts.parallel.transforms.zero import shard_states
from tests.reference.distir.domain_numpy import cut_inputs, run_reference
from tests.unit.transforms.sharded_cases import costs_by_op, plan_of, ranks, training


def lines(sharded: ShardedGraph) -> list[str]:
    """Each task as "task(what it reads) -> what it makes @ its only replica"."""
    graph = sharded.graph
    found = []
    for task_id, task in enumerate(graph.tasks):
        reads = ", ".join(graph.tensors[t].name for t in graph.task_inputs[task_id])
        makes = ", ".join(graph.tensors[t].name for t in graph.task_outputs[task_id])
        replica = sharded.replica[task_id]
        where = "" if replica is None else f" @ {replica}"
        found.append(f"{task.op.removeprefix('heteroplace.')}({reads}) -> {makes}{where}")
    return found


def updates(sharded: ShardedGraph) -> dict[str, str]:
    names = [tensor.name for tensor in sharded.graph.tensors]
    return {names[state]: names[tensor] for state, tensor in sharded.graph.updates}


ONE_LAYER = Mlp(1, 2, 4).training(batch=8)
PASSES = ["matmul(w0, x) -> z0", "relu(z0) -> a0", "loss_grad[8](y, a0) -> da0"]
BACK = ["relu_grad(z0, da0) -> dz0", "matmul_dw(x, dz0) -> dw0"]


def test_levels_of_zero_read_as_documented() -> None:
    assert lines(ONE_LAYER) == [*PASSES, *BACK, "sgd[0.1](w0, dw0) -> w'0"]
    assert lines(shard_states(ONE_LAYER, 0, 2)) == [
        *PASSES,
        *BACK,
        "all_reduce(dw0) -> dw0.sum",
        "sgd[0.1](w0, dw0.sum) -> w'0",
    ]
    for level, kind, root in ((1, "all_reduce", " @ 0"), (2, "reduce", " @ 0")):
        found = shard_states(ONE_LAYER, level, 2)
        assert lines(found) == [
            *PASSES,
            *BACK,
            f"{kind}(dw0) -> dw0.sum{root}",
            "sgd[0.1](w0, dw0.sum) -> w'0 @ 0",
            "broadcast(w'0) -> w'0.all @ 0",
        ]
        assert updates(found) == {"w0": "w'0.all"}
    found = shard_states(Mlp(2, 2, 4).training(batch=8), 3, 2)
    assert updates(found) == {"w0": "w'0", "w1": "w'1"}
    text = lines(found)
    assert "broadcast(w1) -> w1.forward @ 0" in text
    assert text.index("broadcast(w1) -> w1.backward @ 0") == text.index(
        "matmul_dx(w1.backward, dz1) -> da0"
    ) - 1  # fmt: skip
    assert [line for line in text if "w0.backward" in line] == []
    assert [line for line in text if line.startswith("sgd")] == [
        "sgd[0.1](w1, dw1.sum) -> w'1 @ 0",
        "sgd[0.1](w0, dw0.sum) -> w'0 @ 1",
    ]


def test_updates_that_read_from_each_other_have_one_owner() -> None:
    """A new weight that a task of its own makes of the new momentum."""
    builder = ShardedBuilder.of(Mlp(3, 2, 4).training(batch=8))
    for layer in range(3):
        weight, gradient, direction = f"w{layer}", f"dw{layer}", f"direction{layer}"
        builder.read_instead(gradient, direction, [f"sgd.{weight}"])
        entry = TaskEntry(Task(f"scale.{weight}", "scale"), (gradient,), layer, 0, True)
        builder.add_task(entry)
        made = replace(builder.tensors[gradient], name=direction, producer=entry.task.name)
        builder.add_tensor(made, after=gradient)
    found = shard_states(builder.finalize(), 2, 2)
    owners = {
        task.name: replica
        for task, replica in zip(found.graph.tasks, found.replica, strict=True)
        if replica is not None
    }
    for layer, owner in ((2, 0), (1, 1), (0, 0)):
        names = [f"reduce.dw{layer}.sum", f"scale.w{layer}", f"sgd.w{layer}",
                 f"broadcast.w'{layer}.all"]  # fmt: skip
        assert [owners.pop(name) for name in names] == [owner] * 4
    assert not owners


def test_one_replica_needs_no_exchange() -> None:
    for level in range(4):
        assert shard_states(ONE_LAYER, level, 1) is ONE_LAYER


def test_recomputed_activations_are_made_right_before_their_backward_pass() -> None:
    sharded = recompute(Mlp(3, 2, 4, is_fused=True).training(batch=4), 3)
    assert lines(sharded)[3:] == [
        "loss_grad[4](y, a2) -> da2",
        "dense(w0, x) -> a0.again",
        "dense(w1, a0.again) -> a1.again",
        "dense_grad(w2, a1.again, da2) -> dw2, da1",
        "dense_grad(w1, a0.again, da1) -> dw1, da0",
        "dense_grad(w0, x, da0) -> dw0",
        "sgd[0.1](w2, dw2) -> w'2",
        "sgd[0.1](w1, dw1) -> w'1",
        "sgd[0.1](w0, dw0) -> w'0",
    ]
    # Single layers keep what they hand on, so there is nothing to compute again.
    plain = Mlp(3, 2, 4, is_fused=True).training(batch=4)
    assert lines(recompute(plain, 1)) == lines(plain)


def test_groups_do_not_reach_over_stages() -> None:
    sharded = recompute(Mlp(4, 2, 4, is_fused=True).training(batch=4), 3, (1,))
    again = [task.name for task in sharded.graph.tasks if task.name.endswith(".again")]
    assert again == ["dense.a1.again", "dense.a2.again"]
    sharded.stages((1,))
    with pytest.raises(ShardingError, match=r"backward task .* at stage 1 reads from .* stage 0"):
        sharded.stages((2,))
    with pytest.raises(ShardingError, match="groups of 0 layers"):
        recompute(sharded, 0)


def peaks(zero: int = 0, every: int = 0, degrees: Degrees | None = None) -> list[int]:
    """Live bytes of each rank, for layers whose weights are large."""
    strategy = Strategy(degrees or Degrees(4), zero=zero, recompute_every=every)
    width, batch = (64, 4) if degrees is None else (2, 64)
    sharded = training(strategy, batch, 8, width, momentum=0.9)
    cluster = ranks(strategy.degrees.num_devices)
    plan = plan_of(sharded, strategy, cluster)
    costs = costs_by_op(sharded.graph, cluster, {})
    return [peak.num_bytes for peak in live_peaks(sharded.graph, cluster, costs, plan)]


def test_each_level_of_zero_takes_less_memory() -> None:
    found = [max(peaks(zero)) for zero in range(4)]
    assert found[0] > found[1] > found[2] > found[3]
    weights = 8 * 64 * 64 * 8
    # Weights, gradients and momentum of all layers; at level 3 a quarter of weights and momentum.
    assert found[0] >= 3 * weights
    assert found[3] <= weights


def test_bounded_1f1b_takes_less_memory_than_gpipe() -> None:
    """Each microbatch in flight keeps what its backward pass reads: two activations of a layer, at
    stage 0 one beside the input."""
    activation = 4 * 2 * 8
    sharded = Mlp(4, 2, 4, dtype="float64").training(batch=32)
    cluster = ranks(4)
    costs = costs_by_op(sharded.graph, cluster, {"matmul": 2, "matmul_dw": 2, "matmul_dx": 2})
    found = {}
    for schedule in ("gpipe", "1f1b"):
        plan = assemble(sharded, cluster, Degrees(1, 1, 4, 8), schedule)
        peaks = live_peaks(sharded.graph, cluster, costs, plan)
        found[schedule] = [peak.num_bytes for peak in peaks]
    kept = (1, 2, 2, 2)
    assert all(g >= 8 * k * activation for g, k in zip(found["gpipe"], kept, strict=True))
    in_flight = (4, 3, 2, 1)
    for size, count, k in zip(found["1f1b"], in_flight, kept, strict=True):
        assert count * k * activation <= size <= (count * k + 4) * activation


def test_recomputation_takes_less_memory_where_activations_are_large() -> None:
    found = [peaks(0, every, Degrees(1, 1, 1, 1))[0] for every in (0, 4, 2)]
    assert found[0] > found[1]
    assert found[0] > found[2]


def test_builders_give_back_what_they_are_made_of() -> None:
    for sharded in (
        ONE_LAYER,
        training(Strategy(Degrees(2, 2, 2, 2), zero=3, recompute_every=2), 16),
        Mlp(3, 4, 2, num_lanes=2).inference(),
    ):
        assert ShardedBuilder.of(sharded).finalize() == sharded


def test_rewrites_keep_tasks_of_microbatches() -> None:
    plain = Mlp(4, 8, 2, num_lanes=2).training(batch=8)
    summed = sum_over_replicas(plain)
    kinds = Counter(task.op for task in summed.graph.tasks)
    kinds.subtract(Counter(task.op for task in plain.graph.tasks))
    assert {op: count for op, count in kinds.items() if count} == {"heteroplace.all_reduce": 8}
    kept = [task for task in summed.graph.tasks if task in plain.graph.tasks]
    assert kept == list(plain.graph.tasks)


def test_weights_of_several_blocks_are_cut_in_each() -> None:
    """Queries, keys and values in one weight: a lane has its heads of each."""
    builder = ShardedBuilder("blocks", 2, 1)
    parts = [
        builder.add_input(f"qkv.{lane}", (2, extent), "float64", shared=True)
        for lane, extent in enumerate((6, 3))
    ]
    builder.add_whole("qkv", parts, axis=1, blocks=3)
    for lane, part in enumerate(parts):
        entry = TaskEntry(Task(f"sgd.{lane}", "relu"), (part,), 0, lane, True)
        extent = builder.tensors[part].shape[1]
        builder.updates[part] = builder.add_op(entry, (2, extent), "float64", f"new{lane}", True)
    sharded = builder.finalize()
    whole = np.arange(18.0).reshape(2, 9) - 5
    given = cut_inputs(sharded, {"qkv": whole}, 1)
    assert [given[tensor][0][1].tolist() for tensor in (0, 1)] == [[4, 5, 7, 8, 10, 11], [6, 9, 12]]
    cluster = ranks(2)
    steps = (Run(0, 0), Run(1, 1))
    plan = Plan(sharded.graph.digest(), cluster.digest(), steps, "by hand")
    state, _ = run_reference(sharded, cluster, plan, {"qkv": whole})
    assert np.array_equal(state["qkv"], np.maximum(whole, 0))
    with pytest.raises(ShardingError, match="expected an axis 1 of 4 equal blocks"):
        replace(sharded, whole=(WholeTensor("qkv", (0, 1), 1, 4),))
    with pytest.raises(ShardingError, match="input 'qkv' is not given; there are: w"):
        cut_inputs(sharded, {"w": whole}, 1)
    with pytest.raises(ShardingError, match=r"shape \[3, 6\].*expected \[2, 6\]"):
        cut_inputs(sharded, {"qkv": np.zeros((3, 9))}, 1)
    for shape in ((2, 10), (2,), ()):
        with pytest.raises(ShardingError, match="expected 9 along axis 1, for 2 parts"):
            cut_inputs(sharded, {"qkv": np.zeros(shape)}, 1)


@pytest.mark.parametrize("shared", [True, False])
def test_single_numbers_are_for_all_items(shared: bool) -> None:
    builder = ShardedBuilder("scaled", 1, 1)
    builder.add_whole("rate", [builder.add_input("rate", (), "float64", shared=shared)])
    builder.outputs = [
        builder.add_op(TaskEntry(Task("op", "relu"), ("rate",), 0, 0), (), "float64", "y")
    ]
    sharded, rate = builder.finalize(), np.array(0.5)
    assert cut_inputs(sharded, {"rate": rate}, 1) == {0: (rate,)}
    if shared:
        assert cut_inputs(sharded, {"rate": rate}, 4) == {0: (rate,)}
    else:
        with pytest.raises(ShardingError, match="'rate' is a single number for each of 4 items"):
            cut_inputs(sharded, {"rate": rate}, 4)


def test_graphs_that_are_cut_wrongly_are_refused() -> None:
    graph = ONE_LAYER.graph
    count = len(graph.tasks)
    ahead, zeros = (False,) * count, (0,) * count
    with pytest.raises(ShardingError, match="layer has 1 entries; expected 6"):
        ShardedGraph(graph, 1, 1, (0,), zeros, ahead)
    with pytest.raises(ShardingError, match=r"'matmul.z0' of op 'matmul' has no lane"):
        ShardedGraph(graph, 1, 1, zeros, (None, *zeros[1:]), ahead)
    with pytest.raises(ShardingError, match="has lane 3; there are 1"):
        ShardedGraph(graph, 1, 1, zeros, (3, *zeros[1:]), ahead)
    with pytest.raises(ShardingError, match=r"forward task 'relu.a0' reads from backward task"):
        ShardedGraph(graph, 1, 1, zeros, zeros, (True, *ahead[1:]))
    with pytest.raises(ShardingError, match=r"'relu.a0' reads from 'matmul.z0' of a later layer"):
        ShardedGraph(graph, 1, 2, (1, *zeros[1:]), zeros, ahead)
    with pytest.raises(ShardingError, match="'x' stands for tensors"):
        ShardedGraph(graph, 1, 1, zeros, zeros, ahead, (), (WholeTensor("x", (99,)),))


@pytest.mark.parametrize("size", ["num_layers", "width", "rows", "num_lanes", "num_heads"])
def test_networks_of_no_size_are_refused_by_name(size: str) -> None:
    makers = [Gpt2(2, 8, 2, 4)]
    if size != "num_heads":
        makers.append(Mlp(2, 8, 4))
    for maker in makers:
        with pytest.raises(ShardingError, match=f"cannot be built: {size} is 0; expected at least"):
            replace(maker, **{size: 0}).inference()
    with pytest.raises(ShardingError, match="a step of training cannot be built: batch is 0"):
        Mlp(2, 8, 4).training(batch=0)


def test_cuts_are_checked() -> None:
    assert cut_stages(7, 3) == (0, 0, 1, 1, 2, 2, 2)
    for cuts in ((0,), (3, 3), (4, 2), (7,), (-1,)):
        with pytest.raises(ShardingError, match="expected ascending numbers from 1 to 6"):
            cut_stages(7, cuts)
    with pytest.raises(ShardingError, match="7 layers cannot be cut into 8 stages"):
        cut_stages(7, 8)


def test_uneven_cuts_and_values_that_skip_stages_are_sent_once() -> None:
    """A tensor that stages 1 and 2 read goes from stage 0 to both."""
    builder = ShardedBuilder("skip", 1, 3)
    builder.add_input("x", (4,), "float32")
    for layer, reads in enumerate((("x",), ("t0",), ("t0", "t1"))):
        entry = TaskEntry(Task(f"op{layer}", "op"), reads, layer, 0)
        builder.add_op(entry, (4,), "float32", f"t{layer}")
    builder.outputs = ["t2"]
    sharded = builder.finalize()
    cluster = ranks(3, host=2)
    plan = assemble(sharded, cluster, Degrees(1, 1, 3, 2), cuts=(1, 2))
    sent = [(copy.tensor, copy.src, copy.dst) for copy in plan.copies if copy.items == (1,)]
    assert sent == [(0, 2, 0), (1, 0, 1), (1, 0, 2), (2, 1, 2)]
    two = assemble(sharded, ranks(2), Degrees(1, 1, 2, 1), cuts=(1,))
    assert [(copy.tensor, copy.dst) for copy in two.copies] == [(1, 1)]
