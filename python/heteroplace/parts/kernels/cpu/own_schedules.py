"""Which of our schedules stand in for TVM's, on targets with the key `heteroplace_kernels`.

TVM asks a target's keys in order for an implementation: what is not registered here is found under
the next key, "cpu". Tuning records of a user stay in force: they go to TVM's own schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import autotvm, relay, te, topi
from tvm.autotvm.task.space import FallbackConfigEntity
from tvm.relay.op.strategy import generic
from tvm.relay.op.strategy.x86 import (
    concatenate_strategy_cpu,
    conv2d_NCHWc_strategy_cpu,
    softmax_strategy_cpu,
)
from tvm.target import get_native_generic_func
from tvm.topi import tag
from tvm.topi.x86.conv2d_int8 import is_int8_hw_support

from heteroplace.entries import load_entry
from heteroplace.parts.kernels.cpu.vector_math import VECTOR_ERF
from heteroplace.relay.targets import OWN_KERNELS, multiplies_tiles

_CPU = "heteroplace.parts.kernels.cpu"
"""What schedules an op is loaded with the first such op."""

_FOLDS = ("sum", "mean", "max", "min")


def register_schedules() -> None:
    """Register all of them; doing it again changes nothing."""
    generic.depthwise_conv2d_NCHWc_strategy.register(OWN_KERNELS, _depthwise)
    generic.conv2d_NCHWc_strategy.register(OWN_KERNELS, _conv2d)
    generic.softmax_strategy.register(OWN_KERNELS, _softmax)
    generic.concatenate_strategy.register(OWN_KERNELS, _concatenate)
    for name in _FOLDS:
        # That of each op is made of its compute and schedule when TVM is imported.
        function = get_native_generic_func(f"{name}_strategy")
        function.register(_fold_strategy(name), [OWN_KERNELS], allow_override=True)
    if VECTOR_ERF not in tvm.ir.Op.list_op_names():
        for name in ("TVectorizable", "TCallEffectKind"):
            tvm.ir.register_op_attr(VECTOR_ERF, name, tvm.ir.Op.get("tir.exp").get_attr(name))
    erf = get_native_generic_func("erf_strategy")
    erf.register(_erf, [OWN_KERNELS], allow_override=True)


def _depthwise(attrs: Any, inputs: Any, out_type: Any, target: Any) -> relay.op.OpStrategy:
    strategy = relay.op.OpStrategy()
    compute = generic.wrap_compute_conv2d(
        topi.x86.depthwise_conv2d_NCHWc, need_data_layout=True, need_out_layout=True
    )
    strategy.add_implementation(
        compute, _schedule_depthwise, name="depthwise_conv2d_NCHWc.heteroplace"
    )
    return strategy


def _conv2d(attrs: Any, inputs: Any, out_type: Any, target: Any) -> relay.op.OpStrategy:
    data, weight = inputs
    if data.dtype == weight.dtype == "float32":
        return _float_conv2d()
    if not is_int8_hw_support(data.dtype, weight.dtype):
        return conv2d_NCHWc_strategy_cpu(attrs, inputs, out_type, target)
    strategy = relay.op.OpStrategy()
    by_vnni = generic.wrap_compute_conv2d(
        topi.x86.conv2d_NCHWc_int8, need_data_layout=True, need_out_layout=True
    )

    def compute(attrs: Any, tensors: Any, out_type: Any) -> list[te.Tensor]:
        outs: list[te.Tensor] = by_vnni(attrs, tensors, out_type)
        if not multiplies_tiles(target) or is_tuned(outs, target):
            return outs
        with target:
            by_amx = load_entry(f"{_CPU}.amx.amx_conv:int8_conv")(*tensors, attrs)
        return outs if by_amx is None else [by_amx]

    strategy.add_implementation(compute, _schedule_int8, name="conv2d_NCHWc_int8.heteroplace")
    return strategy


def _float_conv2d() -> relay.op.OpStrategy:
    strategy = relay.op.OpStrategy()
    compute = generic.wrap_compute_conv2d(
        topi.x86.conv2d_NCHWc, need_data_layout=True, need_out_layout=True
    )
    strategy.add_implementation(compute, _schedule_conv2d, name="conv2d_NCHWc.heteroplace")
    return strategy


def _schedule_conv2d(attrs: Any, outs: Any, target: tvm.target.Target) -> te.Schedule:
    if is_tuned(outs, target) or not load_entry(f"{_CPU}.conv_tiles:can_schedule_conv")(outs):
        with target:
            return topi.x86.schedule_conv2d_NCHWc(outs)
    return load_entry(f"{_CPU}.conv_tiles:schedule_conv")(outs)


def _softmax(attrs: Any, inputs: Any, out_type: Any, target: Any) -> relay.op.OpStrategy:
    shape = tuple(int(extent) for extent in inputs[0].shape)
    with target:
        if not load_entry(f"{_CPU}.softmax_rows:can_be_on_vectors")(
            shape, inputs[0].dtype, int(attrs.axis)
        ):
            return softmax_strategy_cpu(attrs, inputs, out_type, target)

    def compute(_attrs: Any, tensors: Any, _type: Any) -> list[te.Tensor]:
        with target:
            return [load_entry(f"{_CPU}.softmax_rows:softmax_rows")(tensors[0])]

    strategy = relay.op.OpStrategy()
    schedule = generic.wrap_topi_schedule(load_entry(f"{_CPU}.softmax_rows:schedule_softmax_rows"))
    strategy.add_implementation(compute, schedule, name="softmax.heteroplace")
    return strategy


def _concatenate(attrs: Any, inputs: Any, out_type: Any, target: Any) -> relay.op.OpStrategy:
    axis = int(attrs.axis)
    if not load_entry(f"{_CPU}.joined_rows:can_join_vectors")(inputs, axis):
        return concatenate_strategy_cpu(attrs, inputs, out_type, target)

    def schedule(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
        return load_entry(f"{_CPU}.joined_rows:schedule_joined_rows")(outs, inputs, axis)

    strategy = relay.op.OpStrategy()
    compute = generic.wrap_compute_concat(topi.concatenate)
    strategy.add_implementation(compute, schedule, name="concatenate.heteroplace")
    return strategy


def _fold_strategy(name: str) -> Callable[..., relay.op.OpStrategy]:
    def strategy_of(attrs: Any, inputs: Any, out_type: Any, target: Any) -> relay.op.OpStrategy:
        strategy = relay.op.OpStrategy()
        compute = tvm.ir.Op.get(name).get_attr("FTVMCompute")
        strategy.add_implementation(compute, _schedule_fold, name=f"{name}.heteroplace")
        return strategy

    return strategy_of


def _erf(attrs: Any, inputs: Any, out_type: Any, target: Any) -> relay.op.OpStrategy:
    def compute(attrs: Any, tensors: Any, out_type: Any) -> list[te.Tensor]:
        (x,) = tensors
        if x.dtype != "float32":
            return list(tvm.ir.Op.get("erf").get_attr("FTVMCompute")(attrs, tensors, out_type))
        op = tvm.ir.Op.get(VECTOR_ERF)
        return [
            te.compute(x.shape, lambda *at: tvm.tir.Call(x.dtype, op, [x(*at)]), tag=tag.ELEMWISE)
        ]

    strategy = relay.op.OpStrategy()
    schedule = generic.wrap_topi_schedule(topi.x86.schedule_injective)
    strategy.add_implementation(compute, schedule, name="erf.heteroplace")
    return strategy


def _schedule_fold(attrs: Any, outs: Any, target: tvm.target.Target) -> te.Schedule:
    axes = tuple(int(axis) for axis in attrs.axis or ()) if hasattr(attrs, "axis") else ()
    with target:
        fold = (
            None
            if getattr(attrs, "exclude", False)
            else load_entry(f"{_CPU}.row_sums:row_fold")(outs, axes)
        )
        if fold is None:
            return topi.x86.schedule_reduce(outs)
        return load_entry(f"{_CPU}.row_sums:schedule_row_fold")(outs, fold)


def _schedule_int8(attrs: Any, outs: Any, target: tvm.target.Target) -> te.Schedule:
    if is_tuned(outs, target):
        with target:
            return topi.x86.schedule_conv2d_NCHWc_int8(outs)
    return load_entry(f"{_CPU}.int8_conv:schedule_int8_conv")(outs)


def _schedule_depthwise(attrs: Any, outs: Any, target: tvm.target.Target) -> te.Schedule:
    if is_tuned(outs, target):
        with target:
            return topi.x86.schedule_depthwise_conv2d_NCHWc(outs)
    return load_entry(f"{_CPU}.depthwise:schedule_depthwise")(outs)


def is_tuned(outs: Any, target: tvm.target.Target) -> bool:
    """Tell whether there is a tuning record for what makes these tensors."""
    workload = autotvm.task.get_workload(outs)
    if workload is None:
        return False
    configuration = autotvm.task.DispatchContext.current.query(target, workload)
    return not isinstance(configuration, FallbackConfigEntity)
