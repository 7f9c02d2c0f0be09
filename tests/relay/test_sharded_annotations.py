"""Devices in a sharded module: what tools read is what runs, and nothing else is built."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from relay_models import TARGET, stock_outputs
from shard_models import BATCH, forward, layer_weights, perceptron, rank_cluster, rows_of
from test_annotate import copies_in, devices_planned
from tvm import relay

import heteroplace
from heteroplace.errors import LoweringError
from heteroplace.model.plan import Collective, Run
from heteroplace.relay.annotate.annotation_reader import strip_annotations
from heteroplace.relay.annotate.devices import is_barrier, read_devices
from heteroplace.relay.annotate.sharded_attribute import read_sharded
from heteroplace.relay.annotate.sharded_devices import with_task_devices
from heteroplace.relay.expressions import is_op_call, post_order, rebuilt, task_of_span

TRAINING = {"optimizer": "momentum:0.1,0.9"}
CASES = [
    {"pipeline": 2, "micro_batches": 4},
    {"tensor": 2},
    {"data": 2},
    {"tensor": 2} | TRAINING,
    {"pipeline": 2, "micro_batches": 2} | TRAINING,
    {"data": 2, "zero": 1} | TRAINING,
]


def shared(**options: Any) -> tvm.IRModule:
    mod, params = perceptron()
    given = {"batch": BATCH, "costs": "estimate", "params": params} | options
    with tvm.transform.PassContext(opt_level=3):
        return heteroplace.shard(mod, rank_cluster(), **given)


def moved(mod: tvm.IRModule, device: int) -> tvm.IRModule:
    """The module with the first `on_device` of another CPU on `device` instead."""
    target = tvm.target.VirtualDevice(tvm.cpu(device))
    done = []

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        is_op = is_op_call(old, "on_device") and not is_barrier(old.args[0])
        if done or not is_op or not isinstance(old.args[0], relay.Call):
            return new
        if old.attrs.virtual_device.virtual_device_id == device:
            return new
        done.append(old)
        return relay.annotation.on_device(new.args[0], target, True, True)

    main = rebuilt(mod["main"], rewrite)
    assert done
    return relay.transform.InferType()(tvm.IRModule.from_expr(main))


@pytest.mark.parametrize("options", CASES, ids=str)
def test_ops_are_annotated_with_the_device_that_runs_the_first_item(
    options: dict[str, Any],
) -> None:
    mod = shared(**options)
    record, state = read_sharded(mod) or pytest.fail("no plan")
    solution = record.solution
    expected: dict[str, tuple[int, ...]] = {}
    for step in sorted(
        (step for step in solution.plan.steps if isinstance(step, (Run, Collective))),
        key=lambda step: step.items,
    ):
        devices = step.devices if isinstance(step, Collective) else (step.device,)
        expected.setdefault(solution.graph.tasks[step.task].name, devices)
    found = read_devices(mod["main"], solution.cluster)
    assert found
    for op, device in found.items():
        assert device == expected[task_of_span(op) or ""][0]
    planned = devices_planned(mod, [TARGET])
    assert len(copies_in(planned)) == len(copies_in(mod))
    neutral = strip_annotations(mod)
    assert not any(is_barrier(node) for node in post_order(neutral["main"].body))
    again = with_task_devices(neutral, solution, state)
    plain = relay.Function(mod["main"].params, mod["main"].body)
    assert tvm.ir.structural_equal(again["main"], plain, map_free_vars=True)


def test_stages_on_two_devices_are_seen_in_the_text() -> None:
    text = str(shared(pipeline=2)["main"])
    assert set(re.findall(r"on_device.*?virtual_device_id=(\d)", text)) == {"0", "1"}
    assert text.count("device_copy") == 2


@pytest.mark.parametrize("options", [{"pipeline": 2}, {"data": 2}], ids=str)
def test_a_moved_annotation_is_refused_with_what_to_do(options: dict[str, Any]) -> None:
    mod = shared(**options)
    with pytest.raises(LoweringError, match=r"task 'dense.* to cpu.1 from cpu.0.*by devices="):
        heteroplace.build(moved(mod, 1))
    with pytest.raises(LoweringError, match=r"cpu:7.*does not have"):
        heteroplace.build(moved(mod, 7))


@pytest.mark.costly
@pytest.mark.parametrize("options", [{"pipeline": 2}, {"tensor": 2}], ids=str)
def test_stock_tvm_computes_the_same_on_the_annotated_devices(options: dict[str, Any]) -> None:
    disabled = {"disabled_pass": ["AlterOpLayout"]}
    (output,) = stock_outputs(shared(**options), {"x": rows_of(1)}, **disabled)
    expected = forward(layer_weights(), rows_of(1))[-1]
    np.testing.assert_allclose(output, expected, atol=1e-5)
