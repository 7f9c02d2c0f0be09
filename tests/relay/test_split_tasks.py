"""Each kernel belongs to one task, so it runs on the device of the annotations of its ops."""

from __future__ import annotations

from random import Random

import pytest
import tvm
from random_relay import random_batch
from relay_models import TARGET, module, two_branches, var
from tvm import relay

from heteroplace.lower.segment_calls import lower_segments
from heteroplace.lower.segments import Segment, cut_segments
from heteroplace.relay.expressions import is_primitive_call, post_order, tasks_in
from heteroplace.relay.tasks.extract import Extraction, extract, neutral_module
from heteroplace.relay.tasks.prepare import prepare

SINGLE_OPS = {"relay.FuseOps.max_depth": 1}


def tasks_of_single_ops(mod: tvm.IRModule) -> Extraction:
    """Tasks of one op each: FuseOps of the segment would fuse many of them."""
    with tvm.transform.PassContext(opt_level=3, config=SINGLE_OPS):
        return extract(prepare(mod), "model")


def lowered_tasks(extraction: Extraction) -> tuple[list[list[str]], set[str]]:
    """The tasks of each fused group, and the tasks that kernels belong to."""
    neutral = neutral_module(extraction)
    tasks = {task.name: 0 for task in extraction.graph.tasks}
    with tvm.transform.PassContext(opt_level=3):
        segments, outputs = cut_segments(neutral, (tvm.target.Target(TARGET),), tasks)
        calls = lower_segments(segments, neutral["main"].params, outputs)
    groups = [tasks_in(group.op) for segment in segments for group in fused_groups(segment)]
    return groups, {call.task for call in calls.calls}


def fused_groups(segment: Segment) -> list[relay.Call]:
    return [node for node in post_order(segment.main.body) if is_primitive_call(node)]


def computing_tasks(extraction: Extraction) -> set[str]:
    """The tasks that are more than a reshape."""
    return {
        task.name
        for task, call in zip(extraction.graph.tasks, extraction.calls, strict=True)
        if "relay.reshape_only" not in call.op.attrs
    }


def check_kernels(mod: tvm.IRModule) -> None:
    """No kernel has ops of two tasks, and each task that computes has a kernel."""
    extraction = tasks_of_single_ops(mod)
    groups, tasks_with_kernels = lowered_tasks(extraction)
    assert [group for group in groups if len(group) > 1] == []
    ops = {task.name: task.op for task in extraction.graph.tasks}
    missing = computing_tasks(extraction) - tasks_with_kernels
    assert {name: ops[name] for name in missing} == {}


def test_ops_that_fuse_across_tasks_get_kernels_of_their_own() -> None:
    check_kernels(two_branches())


def test_a_border_at_a_tuple_splits_a_kernel() -> None:
    x = var("x", (1, 8, 4, 4))
    halves = relay.split(relay.exp(x), 2, axis=1)
    check_kernels(module([x], relay.concatenate([halves[1], relay.tanh(halves[0])], axis=1)))


@pytest.mark.costly(2)
@pytest.mark.parametrize("seed", range(4))
def test_each_task_of_random_programs_has_kernels_of_its_own(seed: int) -> None:
    check_kernels(random_batch(Random(f"tasks {seed}"), 10).mod)
