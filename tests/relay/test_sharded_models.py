"""`heteroplace.shard` and the pass `Shard`: what is planned is built, and computes as it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from relay_models import cores, module, var
from shard_models import (
    BATCH,
    WIDTH,
    descend,
    forward,
    layer_weights,
    onnx_perceptron,
    perceptron,
    rank_cluster,
    rows_of,
)
from tvm import relay

import heteroplace
from heteroplace.errors import (
    ArtifactError,
    ClusterError,
    HeteroPlaceError,
    InfeasibleError,
    LoweringError,
    MissingCostError,
    PlanError,
    ShardingError,
    VerificationError,
)
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare.onnx_source import OnnxSource, with_source
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.shard_options import read_shard_options
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.relay.annotate.sharded_attribute import read_sharded

RATE = 0.1


def shared(cluster: Cluster | None = None, rows: int = 1, **options: Any) -> tvm.IRModule:
    mod, params = perceptron(rows)
    given = {"batch": BATCH, "costs": "estimate", "params": params} | options
    with tvm.transform.PassContext(opt_level=3):
        return heteroplace.shard(mod, cluster or rank_cluster(), **given)


def built(mod: tvm.IRModule) -> heteroplace.Executor:
    record, _ = read_sharded(mod) or pytest.fail("no plan")
    solution = record.solution
    check_plan(solution.graph, solution.cluster, solution.costs, solution.plan)
    with tvm.transform.PassContext(opt_level=3):
        return heteroplace.Executor(heteroplace.build(mod))


@pytest.mark.costly
@pytest.mark.parametrize(
    "degrees", [{"data": 2}, {"tensor": 2}, {"pipeline": 2, "micro_batches": 4}], ids=str
)
def test_sharded_model_computes_the_whole_batch(degrees: dict[str, int]) -> None:
    (output,) = built(shared(**degrees)).run(x=rows_of(1))
    np.testing.assert_allclose(output, forward(layer_weights(), rows_of(1))[-1], atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"tensor": 2}, marks=pytest.mark.slow),
        {"data": 2, "zero": 2},
        {"pipeline": 2, "micro_batches": 4, "weight_gradients": "end"},
        pytest.param(
            {"data": 2, "micro_batches": 2, "zero": 1, "weight_gradients": "end"},
            marks=pytest.mark.slow,
        ),
        pytest.param({"data": 2, "zero": 1}, marks=pytest.mark.slow),
        pytest.param({"data": 2, "zero": 3}, marks=pytest.mark.slow),
        pytest.param({"pipeline": 2, "micro_batches": 4, "recompute": 1}, marks=pytest.mark.slow),
        pytest.param(
            {"pipeline": 2, "micro_batches": 4, "schedule": "gpipe"}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_three_steps_of_training_are_those_of_numpy(options: dict[str, Any]) -> None:
    executor = built(shared(optimizer=f"sgd:{RATE}", **options))
    weights = layer_weights()
    for step in range(3):
        x, labels = rows_of(step), rows_of(step + 9)
        (loss,) = executor.run(x=x, labels=labels)
        expected, weights = descend(weights, x, labels, RATE)
        assert float(loss) == pytest.approx(expected, rel=1e-5)
    if "tensor" not in options:
        for layer, weight in enumerate(weights):
            np.testing.assert_allclose(executor.state(f"w{layer}"), weight, atol=1e-5)


def of_onnx(model: onnx.ModelProto, source: onnx.ModelProto, **options: Any) -> tvm.IRModule:
    """A model, shared, that says it came from `source`."""
    shapes = (
        {"x": (1, WIDTH)} if model.graph.input[0].type.tensor_type.shape.dim[0].dim_param else {}
    )
    imported = from_onnx(model, input_shapes=shapes)
    mod = with_source(imported.mod, OnnxSource.of(source, shapes, simplify=True))
    with tvm.transform.PassContext(opt_level=3):
        return heteroplace.shard(
            mod, rank_cluster(), params=imported.params, batch=BATCH, costs="estimate", **options
        )


@pytest.mark.costly
@pytest.mark.parametrize(
    ("rows", "degrees"),
    [
        ("N", {"tensor": 2}),
        pytest.param(2, {"data": 2}, marks=pytest.mark.costly),
        pytest.param("N", {"pipeline": 2, "micro_batches": 4}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_shared_model_is_compared_with_its_onnx_model(
    rows: str | int, degrees: dict[str, int]
) -> None:
    """A model that takes two rows is run for two at a time."""
    model = onnx_perceptron(rows)
    with tvm.transform.PassContext(opt_level=3):
        found = heteroplace.build(of_onnx(model, model, **degrees), verify="on").verification
    assert found is not None
    assert found.reference.startswith("onnxruntime")
    assert found.max_relative_difference <= 1e-5


@pytest.mark.costly
def test_shared_model_that_is_not_its_onnx_model_is_not_built() -> None:
    mod = of_onnx(onnx_perceptron(), onnx_perceptron(seed=1), data=2)
    with tvm.transform.PassContext(opt_level=3), pytest.raises(VerificationError, match="differs"):
        heteroplace.build(mod)


@pytest.mark.costly
def test_gradients_are_summed_when_that_is_faster_and_fits() -> None:
    ways = {"each": 0, "end": 0, "auto": 0}
    for way in ways:
        record, _ = read_sharded(
            shared(optimizer="sgd:0.1", pipeline=2, micro_batches=4, weight_gradients=way)
        ) or pytest.fail("no plan")
        ways[way] = record.solution.predicted_ns
        assert way in (record.told.weight_gradients, "auto")
    assert ways["auto"] == min(ways["each"], ways["end"])


def test_a_plan_that_sums_nothing_at_the_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network of which no task is proven to add up microbatches."""
    monkeypatch.setattr(ModelSource, "joinable", lambda *_: frozenset())
    record, _ = read_sharded(
        shared(optimizer="sgd:0.1", pipeline=2, micro_batches=4, weight_gradients="end")
    ) or pytest.fail("no plan")
    assert record.told.weight_gradients == "each"


@pytest.mark.slow
def test_auto_takes_degrees_no_slower_than_one_device() -> None:
    best = read_sharded(shared(degrees="auto"))
    alone = read_sharded(shared(data=1))
    assert best is not None and alone is not None
    assert best[0].solution.predicted_ns <= alone[0].solution.predicted_ns


@pytest.mark.costly(5)
@pytest.mark.skipif(len(cores()) < 2, reason="two ranks need two cores")
@pytest.mark.parametrize(
    "options",
    [
        {"data": 2},
        {"optimizer": "sgd:0.1", "pipeline": 2, "micro_batches": 4, "weight_gradients": "end"},
    ],
    ids=str,
)
def test_a_plan_of_measured_costs_is_built(options: dict[str, Any]) -> None:
    mod = shared(costs="measure", store="off", **options)
    record, _ = read_sharded(mod) or pytest.fail("no plan")
    assert record.solution.costs.is_measured
    given = {"labels": rows_of(2)} if "optimizer" in options else {}
    built(mod).run(x=rows_of(1), **given)


def ran_in_turns(lines: list[str]) -> list[str]:
    (line,) = [line for line in lines if line.endswith(" in turns")]
    return line.removeprefix("Running ").removesuffix(" in turns").split("; ")


@pytest.mark.costly
@pytest.mark.skipif(len(cores()) < 2, reason="two ranks need two cores")
def test_of_given_degrees_both_ways_to_sum_gradients_are_run() -> None:
    lines: list[str] = []
    options = {"optimizer": "sgd:0.1", "pipeline": 2, "micro_batches": 4, "progress": lines.append}
    shared(costs="measure", store="off", **options)
    assert set(ran_in_turns(lines)) == {"1/1/2/4", "1/1/2/4, weight gradients at the end"}


@pytest.mark.costly(30)
@pytest.mark.skipif(len(cores()) < 2, reason="two ranks need two cores")
def test_the_fastest_of_those_that_ran_is_taken() -> None:
    lines: list[str] = []
    options = {"costs": "measure", "store": "off", "progress": lines.append}
    best = read_sharded(shared(run_best=2, **options))
    ran = ran_in_turns(lines)
    assert best is not None and len(ran) == 2
    assert "/".join(map(str, best[0].told.degrees)) in ran
    first, second = (cluster := rank_cluster()).devices
    absent = replace(cluster, devices=(first, replace(second, cores=(4095,))))
    with pytest.raises(MissingCostError, match=r"cannot be run on .*cpu.1 \(core 4095.*run_best=0"):
        shared(absent, run_best=1)


def test_pass_does_the_same_and_changes_nothing_on_its_own_output() -> None:
    mod, params = perceptron()
    step = relay.transform.Shard(
        rank_cluster(), params=params, batch=BATCH, degrees="2,1,1", costs="estimate"
    )
    with tvm.transform.PassContext(opt_level=3):
        once = step(mod)
    assert tvm.ir.structural_equal(once, shared(data=2))
    assert tvm.ir.structural_equal(once, step(once))
    other = relay.transform.Shard(rank_cluster(), params=params, batch=2 * BATCH, costs="estimate")
    with pytest.raises(ShardingError, match="shared already, and not by this batch, degrees; to"):
        other(once)
    heteroplace.build(once, rank_cluster())
    with pytest.raises(PlanError, match="is shared by cluster 'ranks' already; to share it by"):
        heteroplace.build(once, "cpu-two-gpus")


@pytest.mark.parametrize(
    "options", [{"data": 2}, {"data": 2, "micro_batches": 4}, {"data": 2, "zero": 2}], ids=str
)
def test_collectives_that_leave_devices_free_are_no_work_of_theirs(options: dict[str, int]) -> None:
    cluster = rank_cluster()
    devices = tuple(replace(device, copy_engines=1) for device in cluster.devices)
    mod = shared(replace(cluster, devices=devices), optimizer="sgd:0.1", **options)
    record, _ = read_sharded(mod) or pytest.fail("no plan")
    assert 0 < record.solution.bound_ns < record.solution.predicted_ns


def test_a_module_that_holds_rows_makes_microbatches_of_multiples() -> None:
    (output,) = built(shared(rows=2, data=2)).run(x=rows_of(2))
    np.testing.assert_allclose(output, forward(layer_weights(), rows_of(2))[-1], atol=1e-5)
    with pytest.raises(ShardingError, match="holds 3 rows, and microbatches of 4 cannot be made"):
        shared(rows=3, data=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"data": 3}, ShardingError, "a batch of 8 rows cannot be cut into 3 replicas"),
        ({"data": 2, "tensor": 2}, ShardingError, "need 4 devices; cluster 'ranks' has 2"),
        ({"pipeline": 2, "cuts": (4,)}, ShardingError, "begin with layers 4: expected"),
        ({"pipeline": 2, "cuts": (1, 2)}, ShardingError, "2 cuts make 3 stages"),
        ({"data": 2, "zero": 1}, ShardingError, "about training"),
        ({"tensor": 2, "zero": 1, "optimizer": "sgd:1"}, ShardingError, "have one"),
        ({"data": 2, "degrees": "auto"}, ShardingError, "say the same twice"),
        ({"schedule": "zigzag"}, ShardingError, "schedule 'zigzag'; there are gpipe"),
        ({"costs": "guess"}, ShardingError, "costs 'guess'; expected measure or estimate"),
        ({"colour": 1}, ShardingError, "Shard has no option colour"),
        ({"batch": 0}, ShardingError, "batch is 0"),
        ({"devices": ("gpu7",)}, ClusterError, "no device 'gpu7'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_told(
    options: dict[str, Any], error: type[HeteroPlaceError], message: str
) -> None:
    with pytest.raises(error, match=message):
        shared(**options)


def test_what_does_not_fit_is_told_with_the_numbers() -> None:
    small = rank_cluster(memory_bytes=2**11)
    with pytest.raises(InfeasibleError, match=r"none of \d+ degrees .* 2.0 KiB"):
        shared(small, degrees="auto")
    with pytest.raises(InfeasibleError, match=r"memory 'ram0' needs .* and has 2.0 KiB; take a"):
        shared(small, data=2)


def test_devices_that_are_not_connected_are_told() -> None:
    with pytest.raises(ClusterError, match=r"no links lead from the host memory to device 'cpu.1'"):
        shared(rank_cluster(num_links=1), data=2)


def test_costs_of_absent_devices_cannot_be_measured() -> None:
    cluster = rank_cluster()
    first, second = cluster.devices
    absent = replace(cluster, devices=(first, replace(second, kind="cuda", target="cuda")))
    with pytest.raises(MissingCostError, match=r"not in this machine: cpu.1"):
        shared(absent, data=2, costs="measure")


def test_inputs_of_unlike_rows_and_bound_weights_are_refused() -> None:
    x, y = var("x", (2, 4)), var("y", (4, 2))
    mod = module([x, y], relay.nn.dense(x, relay.transpose(y)))
    with pytest.raises(ShardingError, match=r"inputs x \[2, 4\], y \[4, 2\]: expected"):
        heteroplace.shard(mod, rank_cluster(), batch=2, costs="estimate")
    bound = module([x], relay.nn.relu(x))
    with pytest.raises(ShardingError, match="nothing to train"):
        heteroplace.shard(bound, rank_cluster(), batch=2, optimizer="sgd:0.1", costs="estimate")


def test_a_shared_module_is_neither_placed_nor_shared_again_nor_changed() -> None:
    found = shared(data=2)
    with pytest.raises(ShardingError, match="placed or shared already"):
        heteroplace.shard(found, rank_cluster(), batch=BATCH)
    with pytest.raises(PlanError, match="shared by devices already"):
        heteroplace.HeteroPlace(rank_cluster())(found)
    with pytest.raises(LoweringError, match="would change nothing"):
        heteroplace.build(found, time_limit=1.0)
    with pytest.raises(VerificationError):
        heteroplace.build(found, verify="on")
    with pytest.raises(ArtifactError, match="without their Relay module"):
        heteroplace.build(found).export_library("never.so", with_source=True)
    main = found["main"]
    changed = relay.Function(main.params, relay.tanh(main.body), None, [], main.attrs)
    with pytest.raises(LoweringError, match=r"tanh.* belongs to no task of the plan"):
        heteroplace.build(tvm.IRModule.from_expr(changed))
    assert int(main.params[0].checked_type.shape[1]) == WIDTH


def parted() -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """Layers that split what they read, and read only a part of it again."""
    random = np.random.default_rng(3)
    x = value = relay.var("x", shape=(1, WIDTH))
    params, variables = {}, [x]
    for layer in range(2):
        name = f"w{layer}"
        variables.append(relay.var(name, shape=(2 * WIDTH, WIDTH)))
        params[name] = tvm.nd.array(random.standard_normal((2 * WIDTH, WIDTH)).astype("float32"))
        one, other = relay.split(relay.nn.dense(value, variables[-1]), 2, axis=1)
        value = relay.tanh(relay.reshape(one, (-1, WIDTH))) * relay.sigmoid(other)
    return tvm.IRModule.from_expr(relay.Function(variables, value)), params


@pytest.mark.costly
def test_parts_of_a_split_are_computed_again() -> None:
    mod, params = parted()
    labels = np.ones((BATCH, WIDTH), "float32")
    losses = []
    for options in ({"data": 1}, {"micro_batches": 2, "pipeline": 2, "recompute": 1}):
        with tvm.transform.PassContext(opt_level=3):
            step = heteroplace.shard(
                mod,
                rank_cluster(),
                params=params,
                batch=BATCH,
                costs="estimate",
                optimizer=f"sgd:{RATE}",
                **options,
            )
        executor = built(step)
        runs = [executor.run(x=rows_of(1), labels=labels) for _ in range(3)]
        losses.append([float(loss.ravel()[0]) for (loss,) in runs])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][2] < losses[0][0]


def test_options_are_taken_as_callers_write_them() -> None:
    found = read_shard_options({"batch": 8, "degrees": (1, 1, 2), "cuts": [2]})
    assert (found.degrees, found.cuts) == (Degrees(1, 1, 2, 1), (2,))
    assert found == read_shard_options({"batch": 8, "degrees": "1,1,2", "cuts": (2,)})
    assert hash(found) == hash(replace(found))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"degrees": (2, 1)}, "expected D,T,P"),
        ({"degrees": 2}, "degrees is 2; expected"),
        ({"batch": "8"}, "batch is '8'; expected a whole number"),
        ({"batch": True}, "batch is True; expected a whole number"),
        ({"devices": "cpu.0"}, r"devices is 'cpu.0'; expected \['cpu.0'\]"),
        ({"uneven": 1}, "uneven is 1; expected True or False"),
        ({"zero": None}, "zero is None; expected a whole number"),
    ],
)
def test_options_of_a_wrong_type_are_refused_by_name(given: dict, message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        read_shard_options({"batch": 8} | given)
