"""A CPU target -> our schedules, Relay rewrites and rewrites of lowered code for its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.lower.kernel_provider import SegmentPasses
from heteroplace.model.cluster import Cluster
from heteroplace.parts.kernels.cpu.filters_ahead import ask_for_filters
from heteroplace.parts.kernels.cpu.global_mean_op import GlobalMeans
from heteroplace.parts.kernels.cpu.own_schedules import register_schedules
from heteroplace.parts.kernels.cpu.padded_rows import padded_rows
from heteroplace.parts.kernels.cpu.vector_math import vector_math
from heteroplace.parts.kernels.cpu.whole_vectors import whole_vectors
from heteroplace.parts.kernels.rewrites.denormal_weights import DenormalWeights
from heteroplace.parts.kernels.rewrites.gates import ComputeOnce, ScaleMaps
from heteroplace.parts.kernels.rewrites.held_weights import with_held_weights
from heteroplace.parts.kernels.rewrites.matrix_convolutions import MatrixConvolutions
from heteroplace.parts.kernels.rewrites.phases import ConvolvePhases
from heteroplace.parts.kernels.rewrites.powers import Powers
from heteroplace.parts.kernels.rewrites.unpacked import ReadWeightsInPlace
from heteroplace.parts.kernels.rewrites.whole_blocks import WholeBlocks
from heteroplace.parts.kernels.rewrites.winograd import PlainFilters, Winograd, with_plain_sums
from heteroplace.relay.expressions import function_pass, is_op_call, op_name, post_order
from heteroplace.relay.targets import (
    OWN_KERNELS,
    float_lanes,
    has_bfloat16_kernels,
    multiplies_integers,
)
from heteroplace.relay.tasks.network import Network
from heteroplace.tir.lowered_functions import is_kernel_of

_CPU, _REWRITES = "heteroplace.parts.kernels.cpu", "heteroplace.parts.kernels.rewrites"
_BFLOAT16_PRODUCTS = f"{_REWRITES}.bfloat16_products:Bfloat16Products"
_BFLOAT16_CONVOLUTIONS = f"{_REWRITES}.bfloat16_products:Bfloat16Convolutions"
"""Loaded for targets that multiply in bfloat16."""
_FINISHES = {
    "heteroplace_bounded_byte": f"{_CPU}.bounded_bytes:packed_bytes",
    "heteroplace_quantised_matmul": f"{_CPU}.words_ahead:words_ahead",
}
"""Rewrites of lowered kernels that have one of our ops, by its name."""
_AMX_OPS = (
    "heteroplace_bfloat16",
    "heteroplace_int8_matmul",
    "heteroplace_quantised_matmul",
    "heteroplace_cached_attention",
    "contrib_conv2d_NCHWc",
)
"""Parts of the names of kernels that AMX may compute."""
_SOFTMAX_OPS = ("nn.softmax", "heteroplace_cached_attention")
_BOUNDED_STEPS = f"{_REWRITES}.bounded_steps:with_bounded_steps"
_CONV1D = f"{_REWRITES}.conv1d:without_conv1d"
_INT8_PRODUCTS = f"{_REWRITES}.int8_products:with_int8_products"


class CpuProvider:
    """Our kernels for CPUs; see `KernelProvider` for the methods."""

    def register(self) -> None:
        """Register our schedules."""
        register_schedules()

    def segment_passes(
        self,
        target: tvm.target.Target,
        shared: dict[Any, Any] | None,
        own_targets: Mapping[str, tvm.target.Target],
    ) -> SegmentPasses:
        """Return the passes; those for TVM's own kernels only read weights in place."""
        if target.kind.name != "llvm":
            return SegmentPasses()
        in_place = (ReadWeightsInPlace(target, shared),)
        if OWN_KERNELS not in target.keys:
            return SegmentPasses(before_layouts=in_place)
        plain: PlainFilters = {}

        def is_bfloat16(task: str | None) -> bool:
            return has_bfloat16_kernels(own_targets.get(task or "", target))

        def lowered(entry: str) -> tuple[tvm.transform.Pass, ...]:
            is_used = any(map(has_bfloat16_kernels, (target, *own_targets.values())))
            return (load_entry(entry)(is_bfloat16),) if is_used else ()

        conv1d = _loaded_pass("Conv1d", _CONV1D, "nn.conv1d")
        first = (DenormalWeights(), ScaleMaps(), conv1d, MatrixConvolutions(), ConvolvePhases())
        bounded: tuple[tvm.transform.Pass, ...] = ()
        products: tuple[tvm.transform.Pass, ...] = ()
        if multiplies_integers(target):
            bounded = (_loaded_pass("BoundedSteps", _BOUNDED_STEPS, "cast"),)
            products = (_loaded_pass("Int8Products", _INT8_PRODUCTS, "nn.dense", _reads_bytes),)
        return SegmentPasses(
            (*first, WholeBlocks(float_lanes(target)), Powers()),
            (*products, *lowered(_BFLOAT16_PRODUCTS), *in_place),
            (
                GlobalMeans(),
                *lowered(_BFLOAT16_CONVOLUTIONS),
                Winograd(plain),
                ComputeOnce(),
                *bounded,
            ),
            partial(with_plain_sums, plain=plain),
        )

    def finish(self, functions: tvm.IRModule, function: relay.Function) -> tvm.IRModule:
        """Add vector functions, whole vectors, packed bytes, padding at ends, and prefetches."""
        is_softmax = any(op_name(node) in _SOFTMAX_OPS for node in post_order(function.body))
        if is_kernel_of(functions, _AMX_OPS):
            functions = load_entry(f"{_CPU}.amx.amx_products:with_amx")(functions)
        functions = whole_vectors(vector_math(functions, is_softmax=is_softmax))
        for name, finish in _FINISHES.items():
            if any(is_op_call(node, name) for node in post_order(function.body)):
                functions = load_entry(finish)(functions)
        return ask_for_filters(padded_rows(functions))

    def with_held_weights(self, network: Network, cluster: Cluster) -> Network:
        """Count weights in fewer bits where kernels read them so."""
        return with_held_weights(network, cluster)


def _loaded_pass(
    name: str,
    entry: str,
    op: str,
    is_meant: Callable[[relay.Call], bool] | None = None,
) -> tvm.transform.Pass:
    """Return a pass that is loaded with the first function that has such a call of an op."""

    def run(function: relay.Function) -> relay.Function:
        calls = (node for node in post_order(function.body) if is_op_call(node, op))
        if is_meant is not None and not any(map(is_meant, calls)):
            return function
        rewritten: relay.Function = load_entry(entry)(function)
        return rewritten

    return function_pass(name, run, opt_level=3, ops=(op,))


def _reads_bytes(call: relay.Call) -> bool:
    return str(call.args[0].checked_type.dtype) == "uint8"


CPU = CpuProvider()
