"""A sharded module <-> the same with its plan: what `heteroplace.build` takes.

`on_device` says where the first replica runs each op (`sharded_devices`). What replicas and
microbatches run, and when, it cannot say: the plan, which names tasks by the spans of their calls,
travels as an attribute of `main`, and so do the first values of what a step of training replaces.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.files.sharding import ShardingRecord, sharding_from_json, sharding_to_json
from heteroplace.relay.annotate.annotation_reader import is_sharded
from heteroplace.relay.annotate.devices import distinct, is_barrier, op_name
from heteroplace.relay.annotate.sharded_devices import check_devices, with_task_devices
from heteroplace.relay.annotate.writer import SHARDING_ATTRIBUTE
from heteroplace.relay.expressions import post_order, task_of_span

_NAMES = "heteroplace_state"
"""Attribute of `main`: names of the state, one a line."""


def annotate_sharded(
    mod: tvm.IRModule, record: ShardingRecord, state: Mapping[str, np.ndarray]
) -> tvm.IRModule:
    """Return a neutral module that carries how it is shared, and the device of each op.

    Parameters
    ----------
    state
        Of inputs that a run replaces, what they are at first; others are to be set.

    Raises
    ------
    PlanError
        As `with_task_devices`.
    """
    mod = with_task_devices(mod, record.solution, state)
    text = sharding_to_json(record)
    data = [np.frombuffer(text.encode(), dtype="uint8").copy(), *state.values()]
    carried = relay.Tuple([relay.const(array, array.dtype.name) for array in data])
    main = mod["main"].with_attr(SHARDING_ATTRIBUTE, carried)
    mod = tvm.IRModule.from_expr(main.with_attr(_NAMES, "\n".join(state)))
    return relay.transform.InferType()(mod)


def read_sharded(mod: tvm.IRModule) -> tuple[ShardingRecord, dict[str, np.ndarray]] | None:
    """Return what a module carries, with the state; None: it is not shared.

    Raises
    ------
    PlanError
        The attribute is there, but was not written by this version.
    LoweringError
        The module was changed since, or its annotations were.
    """
    if not is_sharded(mod):
        return None
    attributes = mod["main"].attrs
    data, *values = (field.data.numpy() for field in attributes[SHARDING_ATTRIBUTE].fields)
    record = sharding_from_json(data.tobytes().decode(), "attribute of main")
    _check_tasks(mod, record)
    check_devices(mod, record.solution)
    names = str(attributes[_NAMES]).splitlines()
    return record, dict(zip(names, values, strict=True))


def _check_tasks(mod: tvm.IRModule, record: ShardingRecord) -> None:
    """Raise LoweringError if calls belong to none of the plan's tasks."""
    task_names = {task.name for task in record.solution.graph.tasks}
    calls = (node for node in post_order(mod["main"].body) if isinstance(node, relay.Call))
    ops = (call for call in calls if not is_barrier(call))
    strangers = [op_name(op) for op in ops if task_of_span(op) not in task_names]
    if strangers:
        raise LoweringError(
            f"{distinct(strangers)} belongs to no task of the plan: the module was changed after "
            f"it was shared; let Shard be the last pass"
        )
