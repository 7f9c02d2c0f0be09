"""Tree ensembles of ai.onnx.ml ==> one look-up for each level of all trees.

All rows go down all trees at once: `nodes` [rows, trees] holds the node where a row is in a tree,
and a level takes the node's feature, threshold and successors from tables of all nodes,

    nodes = where(x[feature[nodes]] <= threshold[nodes], yes[nodes], no[nodes])

so that a forest takes as many steps as its deepest tree has levels, not as it has nodes. Its
comparisons are those of onnxruntime, hence the leaves are the same; weights add up in the order of
the trees. `ml_forest.py` writes every node as such a comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import numpy_helper
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import (
    Array,
    OnnxCall,
    check_table,
    const,
    dtype_of,
    shape_of,
)
from heteroplace.parts.onnx.converters.ml.ml_forest import MODES, Branch, Forest, ForestBuilder
from heteroplace.parts.onnx.converters.ml.ml_scores import (
    TRANSFORMS,
    as_dtype,
    class_labels,
    join_scores,
    label_if,
    labels_at,
    number,
    numbers,
    rows_of,
    transform_of,
)

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""In the order of TreeEnsemble's numbers."""
_TRANSFORM_NUMBERS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_NUM_MODES_OF_TREES = 6
"""MEMBER is a mode of TreeEnsemble only."""


@dataclass(frozen=True)
class _Ensemble:
    """A forest with the weights of its leaves."""

    forest: Forest
    weights: Array
    """Of the type of the data [num_leaves, num_targets]."""
    has_weight: Array
    """Whether a leaf has a weight for a target, bool [num_leaves, num_targets]."""


def tree_ensemble_classifier(call: OnnxCall) -> relay.expr.TupleWrapper:
    """Label and scores of a forest that votes for classes."""
    labels = class_labels(call, "classlabels_int64s")
    rows = _rows(call)
    ensemble = _nodes_ensemble(call, rows, "class", len(labels))
    name = transform_of(call)
    base = _values(call, "base_values", dtype_of(rows))
    leaves = _reached_leaves(rows, ensemble.forest)
    scores = _aggregate(leaves, ensemble, "SUM")
    used = np.atleast_1d(ensemble.has_weight.any(axis=0))
    if len(labels) > 2 or used.all():
        label, scores = _many_classes(scores, ensemble, labels, base)
        return _pair(label, TRANSFORMS[name](as_dtype(scores, "float32")))
    if not used[0] or base.size > 1:
        raise FrontendError(
            "the weights of its two classes are all for one of them; expected that to be the "
            "first, with at most one of base_values, or weights for both"
        )
    return _one_of_two_classes(scores, ensemble, labels, base, name)


def tree_ensemble_regressor(call: OnnxCall) -> relay.Expr:
    """Sum, average, minimum or maximum over the trees of a forest."""
    num_targets = int(call.number("n_targets", 1))
    rows = _rows(call)
    ensemble = _nodes_ensemble(call, rows, "target", num_targets)
    aggregate, name = call.text("aggregate_function", "SUM"), transform_of(call)
    base = _values(call, "base_values", dtype_of(rows))
    return _regression(rows, ensemble, aggregate, name, base, "float32")


def tree_ensemble(call: OnnxCall) -> relay.Expr:
    """Sum, average, minimum or maximum over the trees of a forest."""
    dtype = call.dtype(0)
    rows = _rows(call)
    num_targets = int(call.number("n_targets", 1))
    aggregate = _by_number(call, "aggregate_function", 1, _AGGREGATES)
    name = _by_number(call, "post_transform", 0, _TRANSFORM_NUMBERS)
    ensemble = _leaf_ensemble(call, rows, num_targets)
    base = np.zeros(0, dtype_of(rows))
    return _regression(rows, ensemble, aggregate, name, base, dtype)


def _regression(
    rows: relay.Expr, ensemble: _Ensemble, aggregate: str, name: str, base: Array, dtype: str
) -> relay.Expr:
    if aggregate not in _AGGREGATES:
        raise FrontendError(
            f"its aggregate_function '{aggregate}' is not known; expected one of "
            f"{', '.join(_AGGREGATES)}"
        )
    num_targets = ensemble.weights.shape[1]
    if base.size not in (0, num_targets):
        raise FrontendError(f"it has {base.size} base_values for {num_targets} target(s)")
    scores = _aggregate(_reached_leaves(rows, ensemble.forest), ensemble, aggregate)
    if base.size:
        scores = relay.add(scores, const(base.reshape(1, -1), dtype_of(scores)))
    if name == "NONE" or (num_targets == 1 and name != "PROBIT"):
        return as_dtype(scores, dtype)
    return as_dtype(TRANSFORMS[name](as_dtype(scores, "float32")), dtype)


def _many_classes(
    scores: relay.Expr, ensemble: _Ensemble, labels: Array, base: Array
) -> tuple[relay.Expr, relay.Expr]:
    """Label and scores where every class has a score of its own.

    Of two such classes the larger score wins, as in ONNX's reference; onnxruntime gives the labels
    0 and 1 there, whatever the labels of the node are.
    """
    if base.size not in (0, len(labels)):
        raise FrontendError(f"it has {base.size} base_values for {len(labels)} classes")
    dtype = dtype_of(scores)
    if base.size:
        scores = relay.add(scores, const(base.reshape(1, -1), dtype))
    candidates = scores
    if not base.size and not ensemble.has_weight.all():
        used = np.atleast_1d(ensemble.has_weight.any(axis=0))
        # A class without a score never wins.
        candidates = relay.where(const(used[None], "bool"), scores, const(-np.inf, dtype))
    return labels_at(relay.argmax(candidates, axis=1), labels), scores


def _one_of_two_classes(
    scores: relay.Expr, ensemble: _Ensemble, labels: Array, base: Array, name: str
) -> relay.expr.TupleWrapper:
    """Label and scores where one score stands for the second of two classes."""
    dtype = dtype_of(scores)
    score = relay.strided_slice(scores, [0], [1], axes=[1])
    if base.size:
        score = relay.add(score, const(base.reshape(1, 1), dtype))
    is_positive = bool((ensemble.weights >= 0).all())
    limit = 0.5 if is_positive else 0.0
    label = label_if(relay.greater(score, const(limit, dtype)), labels)
    if name == "PROBIT":
        raise FrontendError("PROBIT of one score is not defined for two classes")
    score = as_dtype(score, "float32")
    if name == "LOGISTIC":
        return _pair(label, relay.sigmoid(join_scores(relay.negative(score), score)))
    first = relay.subtract(number(1), score) if is_positive else relay.negative(score)
    return _pair(label, join_scores(first, score))


def _pair(label: relay.Expr, scores: relay.Expr) -> relay.expr.TupleWrapper:
    return relay.expr.TupleWrapper(relay.Tuple([label, scores]), 2)


def _reached_leaves(rows: relay.Expr, forest: Forest) -> relay.Expr:
    """Return the leaf where each row ends in each tree, int32 [rows, trees]."""
    dtype = dtype_of(rows)
    roots = forest.roots
    at_roots = relay.take(rows, const(forest.feature[roots], "int32"), axis=1)

    def step(values: relay.Expr, table: Callable[[Array, str], relay.Expr]) -> relay.Expr:
        is_yes = relay.less_equal(values, table(forest.threshold, dtype))
        following = relay.where(is_yes, table(forest.yes, "int32"), table(forest.no, "int32"))
        if not forest.nan_is_yes.any():
            return following
        of_nan = np.where(forest.nan_is_yes, forest.yes, forest.no)
        return relay.where(relay.isnan(values), table(of_nan, "int32"), following)

    nodes = step(at_roots, lambda array, kind: const(array[roots][None], kind))
    for _ in range(1, forest.depth):
        # One kernel for each level: fused, each level would repeat the one before it. Our own
        # passes see to that (`SharedPlacesApart`), stock TVM's would not.
        nodes = relay.annotation.stop_fusion(nodes)
        feature = relay.take(const(forest.feature, "int32"), nodes)
        nodes = step(relay.gather(rows, 1, feature), partial(_look_up, nodes))
    return nodes


def _look_up(nodes: relay.Expr, array: np.ndarray, kind: str) -> relay.Expr:
    """Return the values of a table at the nodes that rows have reached."""
    return relay.take(const(array, kind), nodes)


def _aggregate(leaves: relay.Expr, ensemble: _Ensemble, aggregate: str) -> relay.Expr:
    """Return the scores [rows, targets] of the trees together."""
    weights, has_weight = ensemble.weights, ensemble.has_weight
    dtype = str(weights.dtype)
    if weights.shape[1] > 1 or not has_weight.all():
        leaves = relay.annotation.stop_fusion(leaves)  # read more than once, as in a level
    if aggregate in ("SUM", "AVERAGE"):
        taken = relay.take(const(weights, dtype), leaves, axis=0)
        total = relay.sum(taken, axis=1)
        if aggregate == "SUM":
            return total
        return relay.divide(total, const(len(ensemble.forest.roots), dtype))
    worst, reduce = (np.inf, relay.min) if aggregate == "MIN" else (-np.inf, relay.max)
    candidates = np.where(has_weight, weights, np.array(worst, dtype))
    best = reduce(relay.take(const(candidates, dtype), leaves, axis=0), axis=1)
    if has_weight.all():
        return best
    taken = relay.take(const(has_weight.astype("int32"), "int32"), leaves, axis=0)
    is_there = relay.greater(relay.max(taken, axis=1), const(0, "int32"))
    return relay.where(is_there, best, const(0, dtype))


def _rows(call: OnnxCall) -> relay.Expr:
    """The data as floats [rows, features], of the type in which the nodes compare."""
    return as_dtype(rows_of(call), "float64" if call.dtype(0) == "float64" else "float32")


def _values(call: OnnxCall, name: str, dtype: str) -> Array:
    """A list attribute, or its form as a tensor, in the type of the data."""
    tensor = call.attributes.get(f"{name}_as_tensor", call.attributes.get(name, ()))
    if hasattr(tensor, "data_type"):
        return numpy_helper.to_array(tensor).reshape(-1).astype(dtype)
    return np.asarray(tensor, np.float32).astype(dtype).reshape(-1)


def _nodes_ensemble(call: OnnxCall, rows: relay.Expr, kind: str, num_targets: int) -> _Ensemble:
    """Read the ensemble of a TreeEnsembleClassifier or TreeEnsembleRegressor."""
    dtype = dtype_of(rows)
    trees, ids = (numbers(call, f"nodes_{name}", np.int64) for name in ("treeids", "nodeids"))
    keys = list(zip(trees.tolist(), ids.tolist(), strict=True))
    modes = [mode.decode() for mode in call.attributes.get("nodes_modes", ())]
    targets: dict[tuple[int, int], int] = {}
    builder = ForestBuilder(dtype, modes.count("LEAF"))
    counts = [0, 0]
    for key, mode in zip(keys, modes, strict=True):
        is_leaf = mode == "LEAF"
        number_ = counts[is_leaf]
        counts[is_leaf] += 1
        if key in targets:
            raise FrontendError(f"it has two nodes {key[1]} of tree {key[0]}")
        targets[key] = ~number_ if is_leaf else number_
    features = numbers(call, "nodes_featureids", np.int64)
    thresholds = _values(call, "nodes_values", dtype)
    yes, no = (numbers(call, f"nodes_{n}nodeids", np.int64) for n in ("true", "false"))
    tracks = _flags(call, len(keys))
    children = set()
    for index, (key, mode) in enumerate(zip(keys, modes, strict=True)):
        if mode == "LEAF":
            continue
        if mode.removeprefix("BRANCH_") not in MODES[:_NUM_MODES_OF_TREES]:
            raise FrontendError(f"its node mode '{mode}' is not known")
        ends = [(key[0], int(side[index])) for side in (yes, no)]
        missing = [end for end in ends if end not in targets]
        if missing:
            raise FrontendError(f"node {key[1]} of tree {key[0]} leads to no node: {missing[0][1]}")
        children.update(ends)
        builder.branches.append(
            Branch(
                mode.removeprefix("BRANCH_"), int(features[index]), float(thresholds[index]),
                targets[ends[0]], targets[ends[1]], bool(tracks[index]),
            )
        )  # fmt: skip
    roots = [targets[key] for key in keys if key not in children]
    if not roots:
        raise FrontendError("it has no tree whose root is not the child of another node")
    forest = builder.finish(roots, shape_of(rows)[1])
    return _Ensemble(forest, *_weights(call, kind, targets, builder.num_leaves, num_targets, dtype))


def _weights(
    call: OnnxCall,
    kind: str,
    targets: dict[tuple[int, int], int],
    num_leaves: int,
    num_targets: int,
    dtype: str,
) -> tuple[Array, Array]:
    """The weights of the leaves [num_leaves, num_targets], and which are there."""
    trees, ids, columns = (
        numbers(call, f"{kind}_{name}", np.int64) for name in ("treeids", "nodeids", "ids")
    )
    given = _values(call, f"{kind}_weights", dtype)
    _check_columns(columns, num_targets)
    keys = zip(trees.tolist(), ids.tolist(), strict=True)
    leaves = np.array([~targets.get(key, 0) for key in keys], np.int64)
    is_leaf = leaves >= 0  # the weights of a branch count for nothing
    return _table(leaves[is_leaf], columns[is_leaf], given[is_leaf], (num_leaves, num_targets))


def _table(
    leaves: Array, columns: Array, given: Array, shape: tuple[int, int]
) -> tuple[Array, Array]:
    check_table(shape[0] * shape[1], "the table of the weights of its leaves")
    weights = np.zeros(shape, given.dtype)
    has_weight = np.zeros(shape, bool)
    np.add.at(weights, (leaves, columns), given)
    has_weight[leaves, columns] = True
    return weights, has_weight


def _check_columns(columns: Array, num_targets: int) -> None:
    if not columns.size or not 0 <= columns.min() <= columns.max() < num_targets:
        raise FrontendError(
            f"its weights are for targets {sorted(set(columns.tolist()))[:5]}; expected numbers "
            f"below {num_targets}"
        )


def _leaf_ensemble(call: OnnxCall, rows: relay.Expr, num_targets: int) -> _Ensemble:
    """Read the ensemble of a TreeEnsemble (opset 5)."""
    dtype = dtype_of(rows)
    columns = numbers(call, "leaf_targetids", np.int64)
    given = _tensor(call, "leaf_weights").astype(dtype)
    _check_columns(columns, num_targets)
    modes = _tensor(call, "nodes_modes")
    sets = iter(_member_sets(call))
    sides = [
        (numbers(call, f"nodes_{n}nodeids", np.int64), numbers(call, f"nodes_{n}leafs", np.int64))
        for n in ("true", "false")
    ]
    splits = _tensor(call, "nodes_splits").astype(dtype)
    features = numbers(call, "nodes_featureids", np.int64)
    tracks = _flags(call, len(modes))
    builder = ForestBuilder(dtype, len(columns))
    for index, mode_number in enumerate(modes.tolist()):
        if mode_number >= len(MODES):
            raise FrontendError(f"its node mode {mode_number} is not known")
        yes, no = (int(~end[index] if is_leaf[index] else end[index]) for end, is_leaf in sides)
        mode = MODES[mode_number]
        members = next(sets, ()) if mode == "MEMBER" else ()
        builder.branches.append(
            Branch(mode, int(features[index]), float(splits[index]), yes, no,
                   bool(tracks[index]), members)
        )  # fmt: skip
    count = len(builder.branches)
    for node in builder.branches:
        if any(end >= count or ~end >= len(columns) for end in (node.yes, node.no)):
            raise FrontendError("one of its nodes leads to a node or leaf that is not there")
    roots = numbers(call, "tree_roots", np.int64).tolist()
    if not roots or not all(0 <= root < count for root in roots):
        raise FrontendError(f"its tree_roots {roots[:5]} are no numbers of its {count} nodes")
    forest = builder.finish(roots, shape_of(rows)[1])
    leaves = np.arange(len(columns))
    return _Ensemble(forest, *_table(leaves, columns, given, (len(columns), num_targets)))


def _member_sets(call: OnnxCall) -> list[tuple[float, ...]]:
    """The sets of the nodes of mode MEMBER, each of which ends with a NaN."""
    if "membership_values" not in call.attributes:
        return []
    values = _tensor(call, "membership_values")
    ends = np.flatnonzero(np.isnan(values))
    return [
        tuple(float(v) for v in part if not np.isnan(v)) for part in np.split(values, ends)[:-1]
    ]


def _tensor(call: OnnxCall, name: str) -> Array:
    if name not in call.attributes:
        raise FrontendError(f"it has no {name}")
    return numpy_helper.to_array(call.attributes[name]).reshape(-1)


def _flags(call: OnnxCall, count: int) -> Array:
    """Whether each node sends a missing value to its true branch."""
    flags = numbers(call, "nodes_missing_value_tracks_true", np.int64)
    return flags if flags.size else np.zeros(count, np.int64)


def _by_number(call: OnnxCall, name: str, default: int, valid: tuple[str, ...]) -> str:
    value = int(call.number(name, default))
    if not 0 <= value < len(valid):
        raise FrontendError(f"its {name} {value} is not known; expected 0 to {len(valid) - 1}")
    return valid[value]
