"""The record of one op, or of several ops that answer every question alike.

A record names rules, which are functions of the modules that ask: `bounds="first"` is the rule
`first` of `relay/ranges/bounds.py`. So a record needs neither TVM nor numpy. `None` is the answer
for an op without a record: the module knows nothing about the op, and takes the careful way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

WRITE_ROWS_OP = "heteroplace_write_rows"
"""The op whose result may lie where its operand is; then its kernel writes some rows alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """What the package says about one op, or about several ops alike."""

    ops: tuple[str, ...] = ()
    """Names of the ops."""
    kind: str | None = None
    """view, flatten, permute, layout: the result is the operand in another shape or order.
    unary, leaky, arithmetic, division, power, rounding: elementwise; unary ones are finite at 0.
    product, pool, index, update: products of matrices, pools of fixed windows, places of extremes,
    and writes into a tensor.
    recurrent: a layer over all steps of a sequence, with kernels for CPUs alone.
    cache: rows of a cache, and attention over it, with kernels for CPUs alone."""
    is_relay: bool = True
    """False: an op of graphs that are written without Relay (`graph_ops.py`)."""

    # Cost
    cost: str | None = None
    """view, launch or compute: the cost function of `costs/prediction/op_costs.py`."""
    flops: str | None = None
    """none, product, recurrent or attention: how `relay/tasks/flops.py` counts; None: one for each
    element."""
    reads: tuple[int, ...] | None = None
    """How often the TE expression reads each operand, if it reads one several times. Operands of
    conditions count for more, as TVM's simplifier takes 6 to 10 times as long for each level of
    conditions (measured on an x86-64 CPU)."""

    # Values
    bounds: str | None = None
    """Interval of the result, from those of the operands (`relay/ranges/bounds.py`)."""
    needs: str | None = None
    """Interval of the operands, from that of the result (`relay/ranges/legal.py`)."""
    indices: str | None = None
    """Which operand holds indices, and their limit (`relay/ranges/legal.py`)."""
    positive: str | None = None
    """When the result is above 0 (`parts/routing/find/find_positive.py`)."""
    nonnegative: str | None = None
    """When the result is not below 0 (`parts/routing/find/find_positive.py`)."""
    zero: str | None = None
    """When the result is 0 everywhere (`parts/routing/find/find_support.py`)."""
    empty: int | None = None
    """What each element of a result is that is computed from no elements."""
    fold: str | None = None
    """max or min, if the kernel folds elements so."""

    # Axes
    parts: str | None = None
    """Where parts of an axis, such as items, stay apart (`relay/axes/rules.py`).
    shape: a mix shows in the shape of the result, or the call does not type-check.
    axis: along all axes but those that the attribute `axis` names.
    place: along all axes but the last two; what becomes of an element depends on its place.
    items: along axis 0 (batch norm, with its learnt statistics, mixes nothing along it).
    layout: along the axis "N" of the layout."""
    has_single_channels: bool = False
    """With `parts="layout"`: the op treats each channel alone as well."""
    cells: str | None = None
    """Which cells reach which elements of the result
    (`parts/routing/cell_analysis/cell_rules.py`)."""
    support: str | None = None
    """Where the result may be other than 0 (`parts/routing/find/find_support.py`)."""
    labels: str | None = None
    """Which axes are cut together (`parts/parallel/shard/labels.py`)."""
    cut: str | None = None
    """How a cut of the operand cuts the result of an op that moves data
    (`parts/parallel/shard/carry.py`)."""

    # Rewrites
    linear_operands: int = 0
    """Operands that may be a sum of parts, which passes through the op."""
    passes_scale: bool = False
    """TVM's FoldScaleAxis moves a scale through the op."""
    divisors: tuple[str, ...] = ()
    """Attributes that TVM divides by: at 0 the process ends."""
    reads_places: bool = False
    """The op reads its first operand at places that the other operands decide."""
    is_safe_on_cuda: bool = True
    """False: TVM's CUDA kernel calls `__syncthreads` in branches that not all threads of a block
    take, or calls such a kernel. CUDA leaves the result undefined; on an H100 it never ends."""

    def of(self, ops: str, **changes: Any) -> OpTraits:
        """Return the record of other ops, separated by spaces, with some traits changed."""
        return replace(self, ops=tuple(ops.split()), **changes)
