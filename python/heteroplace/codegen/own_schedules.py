"""Which of our schedules stand in for TVM's, on targets with the key `heteroplace_kernels`.

TVM asks a target's keys in order for an implementation: what is not registered here is found under
the next key, "cpu". Tuning records of a user stay in force: they go to TVM's own schedules.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import autotvm, relay, te, topi
from tvm.autotvm.task.space import FallbackConfigEntity
from tvm.relay.op.strategy import generic

from heteroplace.codegen.depthwise import schedule_depthwise
from heteroplace.codegen.targets import OWN_KERNELS


def register_schedules() -> None:
    """Register all of them; doing it again changes nothing."""
    generic.depthwise_conv2d_NCHWc_strategy.register(OWN_KERNELS, _depthwise)


def _depthwise(attrs: Any, inputs: Any, out_type: Any, target: Any) -> relay.op.OpStrategy:
    strategy = relay.op.OpStrategy()
    compute = generic.wrap_compute_conv2d(
        topi.x86.depthwise_conv2d_NCHWc, need_data_layout=True, need_out_layout=True
    )
    strategy.add_implementation(
        compute, _schedule_depthwise, name="depthwise_conv2d_NCHWc.heteroplace"
    )
    return strategy


def _schedule_depthwise(attrs: Any, outs: Any, target: tvm.target.Target) -> te.Schedule:
    if is_tuned(outs, target):
        with target:
            return topi.x86.schedule_depthwise_conv2d_NCHWc(outs)
    return schedule_depthwise(outs)


def is_tuned(outs: Any, target: tvm.target.Target) -> bool:
    """Tell whether there is a tuning record for what makes these tensors."""
    workload = autotvm.task.get_workload(outs)
    if workload is None:
        return False
    found = autotvm.task.DispatchContext.current.query(target, workload)
    return not isinstance(found, FallbackConfigEntity)
