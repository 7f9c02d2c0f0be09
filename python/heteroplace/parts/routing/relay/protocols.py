"""Scores, labels or a function of the user -> a decision, of ordinary ops of Relay.

Scores are float32[C, B], or the layout of the cells followed by B. Of equal scores the first branch
is taken; a cell with a score that is no number takes some branch. Where k is above 1, what becomes
of both is as TVM's `topk` has it.

Sources: Fedus et al., "Switch Transformers" (JMLR 2022), 2.2: capacity factor; Riquelme et al.,
NeurIPS 2021, 4 (arXiv:2106.05974): batch-prioritised routing; Cui et al., "Optimizing Dynamic
Neural Networks with Brainstorm" (OSDI 2023), 3.2: routers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

import numpy as np
from numpy.typing import ArrayLike
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay.cells import name_of, shape_of, type_of
from heteroplace.parts.routing.relay.decision_ops import Decision
from heteroplace.parts.routing.relay.host import call_host

_HASH = 2654435761
"""Knuth's multiplicative hash: 2^32 over the golden ratio."""


def top_k(scores: relay.Expr, k: int = 1) -> Decision:
    """Return the decision for the k branches of highest score; gates are the scores.

    Raises
    ------
    RoutingError
        k is below 1 or above the number of branches, or scores are no float32[.., B].
    """
    scores, num_branches = _rows_of_scores(scores)
    if not 1 <= k <= num_branches:
        raise RoutingError(f"top_k of {k} branches; expected 1 to {num_branches}, all")
    if k == 1:
        mask = _one_hot(_first_best(scores, num_branches), num_branches)
    else:
        chosen = relay.topk(scores, k, axis=1, ret_type="indices", dtype="int32")
        mask = relay.sum(_one_hot(chosen, num_branches), axis=1)
    return Decision(mask, k, _gates(scores, mask))


def threshold(scores: relay.Expr, tau: float, fallback: int | None = None) -> Decision:
    """Return the decision for all branches of a score above tau; gates are the scores.

    Parameters
    ----------
    fallback
        The branch of cells that have no such score; None: they take none.
    """
    scores, num_branches = _rows_of_scores(scores)
    mask = relay.cast(relay.greater(scores, relay.const(tau, "float32")), "int32")
    if fallback is not None:
        _check_branch("fallback", fallback, num_branches)
        is_lost = relay.equal(relay.sum(mask, axis=1, keepdims=True), relay.const(0, "int32"))
        column = np.eye(num_branches, dtype="int32")[fallback : fallback + 1]
        mask = relay.add(mask, relay.multiply(relay.cast(is_lost, "int32"), relay.const(column)))
    return Decision(mask, num_branches, _gates(scores, mask))


def label(ids: relay.Expr, num_branches: int) -> Decision:
    """Return the decision for the branch that each cell names: a route, -1 for none.

    A run in which a cell names something else fails.
    """
    return _of_routes(_flat(ids), num_branches)


def hashed(ids: relay.Expr, num_branches: int) -> Decision:
    """Return the decision for a branch by the hash of an integer of each cell."""
    wide = relay.cast(_flat(ids), "int64")
    low = relay.bitwise_and(wide, relay.const(0xFFFFFFFF, "int64"))
    # Of the product only 32 bits count, so that it may overflow.
    product = relay.bitwise_and(
        relay.multiply(low, relay.const(_HASH, "int64")), relay.const(0xFFFFFFFF, "int64")
    )
    high = relay.right_shift(product, relay.const(16, "int64"))
    branch = relay.mod(high, relay.const(num_branches, "int64"))
    return _of_routes(relay.cast(branch, "int32"), num_branches)


def capacity_factor(scores: relay.Expr, k: int, factor: float) -> Decision:
    """Return the decision of top-k whose branches hold k * floor(factor * ceil(C / B)) cells.

    Cells behind that are dropped, as the model means it. A factor of 0 or less drops none.

    Raises
    ------
    RoutingError
        The branches would hold no cell; else as `top_k`.
    """
    decision = top_k(scores, k)
    if factor <= 0:
        return decision
    num_cells, num_branches = shape_of(decision.mask)
    capacity = k * floor(factor * ceil(num_cells / num_branches))
    if capacity < 1:
        raise RoutingError(
            f"a capacity factor of {factor} for {num_cells} cells and {num_branches} branches "
            f"leaves room for no cell"
        )
    return Decision(decision.mask, k, decision.gates, None, capacity)


def batch_prioritised(scores: relay.Expr, k: int, factor: float) -> Decision:
    """Return that of `capacity_factor` which drops the cells of lowest best score first."""
    decision = capacity_factor(scores, k, factor)
    best = relay.max(_rows_of_scores(scores)[0], axis=1)
    return Decision(decision.mask, k, decision.gates, best, decision.capacity)


def early_exit(confidence: relay.Expr, tau: float) -> Decision:
    """Return the decision between branch 0, exit, above tau, and branch 1, go on.

    Raises
    ------
    RoutingError
        The confidence is not of floating point.
    """
    dtype, sure = type_of(confidence).dtype, _flat(confidence)
    if not dtype.startswith(("float", "bfloat")):
        raise RoutingError(f"a confidence is floating point; {name_of(confidence)} is {dtype}")
    if dtype == "bfloat16":  # there are no constants of it
        dtype, sure = "float32", relay.cast(sure, "float32")
    is_sure = relay.greater(sure, relay.const(tau, dtype))
    go_on = relay.cast(relay.logical_not(is_sure), "int32")
    return Decision(relay.stack([relay.cast(is_sure, "int32"), go_on], axis=1), 1)


def from_mask(
    mask: relay.Expr | ArrayLike, gates: relay.Expr | None = None, top_k: int | None = None
) -> Decision:
    """Return the decision that a mask int32[C, B] says; one of numpy is the same in every run.

    Parameters
    ----------
    top_k
        Branches that a cell takes at most; None: as many as the mask of numpy says, or all.
    """
    if not isinstance(mask, relay.Expr):
        array = np.asarray(mask)
        if array.ndim != 2 or not np.isin(array, (0, 1)).all():
            raise RoutingError(f"a mask is of 0 and 1, [cells, branches]; got {array!r}")
        most = max(1, int(array.sum(axis=1).max(initial=0)))
        return Decision(relay.const(array.astype("int32")), top_k or most, gates)
    return Decision(mask, top_k or shape_of(mask)[1], gates)


def from_routes(routes: relay.Expr | ArrayLike, num_branches: int) -> Decision:
    """Return the decision that routes int32[layout..] say: a branch for each cell, -1 for none.

    Raises
    ------
    RoutingError
        Routes of numpy that are below -1 or name no branch; those of Relay fail in the run. Routes
        that are no integers.
    """
    if isinstance(routes, relay.Expr):
        return label(routes, num_branches)
    array = np.asarray(routes).reshape(-1)
    if array.dtype.kind not in "iu":
        raise RoutingError(
            f"routes are integers: -1 (none) or a branch from 0 to {num_branches - 1}; got "
            f"{array.dtype}"
        )
    wrong = np.flatnonzero((array < -1) | (array >= num_branches))
    if wrong.size:
        raise RoutingError(
            f"the route of cell {wrong[0]} is {array[wrong[0]]}; expected -1 (none) or a branch "
            f"from 0 to {num_branches - 1}"
        )
    columns = np.arange(num_branches)
    return Decision(relay.const((array[:, None] == columns).astype("int32")), 1)


def host(
    function: str,
    inputs: Sequence[relay.Expr],
    num_cells: int,
    num_branches: int,
    top_k: int | None = None,
) -> Decision:
    """Return the decision of a function on the host, a PackedFunc that is registered with TVM.

    It is called as function(*inputs, mask) with `tvm.nd.NDArray`s, and fills `mask`,
    int32[C, B], in place. What it raises ends the run. It cannot decide about rows of a branch, of
    which it would see those that hold no cell too.

    Parameters
    ----------
    function
        Its global name.
    top_k
        Branches that a cell takes at most; None: all.
    """
    return Decision(call_host(function, inputs, (num_cells, num_branches)), top_k or num_branches)


def _rows_of_scores(scores: relay.Expr) -> tuple[relay.Expr, int]:
    """Scores as [C, B], and B."""
    type_, shape = type_of(scores), shape_of(scores)
    if len(shape) < 2 or type_.dtype != "float32":
        raise RoutingError(
            f"scores are float32[cells, branches]; {name_of(scores)} is {type_.dtype}{shape}"
        )
    num_branches = shape[-1]
    rows = scores if len(shape) == 2 else relay.reshape(scores, [-1, num_branches])
    return rows, num_branches


def _flat(x: relay.Expr) -> relay.Expr:
    return x if len(shape_of(x)) == 1 else relay.reshape(x, [-1])


def _first_best(scores: relay.Expr, num_branches: int) -> relay.Expr:
    """int32[C]: the first branch of the highest score; the last if no score equals the maximum."""
    is_best = relay.equal(scores, relay.max(scores, axis=1, keepdims=True))
    places = relay.const(np.arange(num_branches, dtype="int32")[None, :])
    last = relay.const(num_branches - 1, "int32")
    return relay.min(relay.where(is_best, places, last), axis=1)


def _one_hot(ids: relay.Expr, num_branches: int) -> relay.Expr:
    one, zero = relay.const(1, "int32"), relay.const(0, "int32")
    return relay.one_hot(ids, one, zero, num_branches, -1, "int32")


def _of_routes(ids: relay.Expr, num_branches: int) -> Decision:
    """The mask of routes; the row of one that is none is below 0, which the router refuses."""
    type_ = type_of(ids)
    if not type_.dtype.startswith("int"):
        raise RoutingError(f"routes are integers; {name_of(ids)} is {type_.dtype}")
    low, end = relay.const(-1, type_.dtype), relay.const(num_branches, type_.dtype)
    is_wrong = relay.logical_or(relay.less(ids, low), relay.greater_equal(ids, end))
    wrong = relay.expand_dims(relay.cast(is_wrong, "int32"), 1)
    return Decision(relay.subtract(_one_hot(ids, num_branches), wrong), 1)


def _gates(scores: relay.Expr, mask: relay.Expr) -> relay.Expr:
    """The scores where the mask is not 0, else 0."""
    is_in = relay.not_equal(mask, relay.const(0, "int32"))
    return relay.where(is_in, scores, relay.const(0.0, "float32"))


def _check_branch(what: str, branch: int, num_branches: int) -> None:
    if not 0 <= branch < num_branches:
        raise RoutingError(f"{what} is branch {branch}; expected 0 to {num_branches - 1}")
