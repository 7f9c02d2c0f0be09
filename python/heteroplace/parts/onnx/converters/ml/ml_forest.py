"""Attributes of a tree ensemble (ai.onnx.ml) -> one table of nodes of all trees.

Every node of the table asks `x[feature] <= threshold`. Other modes become this one:

    x <  t   ==>  x <= the float before t
    x >= t   ==>  x <  t with its branches exchanged; so does x > t
    x == t   ==>  x <= t, then x <= the float before t with its branches exchanged
    x in S   ==>  x == s for each s, one after the other

A NaN is not less than anything: it takes the false branch, or the true one where the node tracks
missing values. Where branches are exchanged, so is this choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import Array

MAX_DEPTH = 1000
"""Levels of a tree, each of which is a step of the compiled program."""
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
"""In the order of TreeEnsemble's numbers."""


@dataclass(frozen=True)
class Branch:
    """A node that compares a feature with a threshold."""

    mode: str
    """One of `MODES`."""
    feature: int
    threshold: float
    """Of the type of the data."""
    yes: int
    """Where the comparison holds: the number of a branch, or ~number of a leaf."""
    no: int
    """Where it does not hold."""
    nan_is_yes: bool
    """Where a NaN goes."""
    members: tuple[float, ...] = ()
    """Of the set that MEMBER compares with."""


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees: first the leaves, which lead to themselves, then the branches.

    All arrays are [num_nodes] but `roots` and `weights`.
    """

    feature: Array
    """int32."""
    threshold: Array
    """Of the type of the data."""
    yes: Array
    """Node to go to if x[feature] <= threshold, int32."""
    no: Array
    """Node to go to otherwise, int32."""
    nan_is_yes: Array
    """bool."""
    roots: Array
    """First node of each tree, int32 [num_trees]."""
    depth: int
    """Comparisons until every row is at a leaf."""


@dataclass
class ForestBuilder:
    """Collects the branches of an ensemble in any modes, and writes them in one mode."""

    dtype: str
    """Of thresholds and data: float32 or float64."""
    num_leaves: int
    branches: list[Branch] = field(default_factory=list)
    """In the numbers that `yes` and `no` refer to; what expansion adds comes after."""

    def finish(self, roots: Sequence[int], num_features: int) -> Forest:
        """Return the table.

        Parameters
        ----------
        roots
            Number of a branch, or ~number of a leaf, for each tree.
        num_features
            Of the data.

        Raises
        ------
        FrontendError
            A node reads a feature that is not there, or the nodes are no trees.
        """
        for index in range(len(self.branches)):
            self.branches[index] = self._in_one_mode(self.branches[index])
        nodes = self.branches
        feature = np.array([node.feature for node in nodes], np.int64)
        if feature.size and not 0 <= feature.min() <= feature.max() < num_features:
            raise FrontendError(
                f"its nodes read features {feature.min()} to {feature.max()}, and its operand has "
                f"{num_features}"
            )
        leaves = np.arange(self.num_leaves)
        zeros = np.zeros(self.num_leaves)
        forest = Forest(
            feature=np.concatenate([zeros, feature]).astype(np.int32),
            threshold=np.concatenate(
                [zeros, np.array([node.threshold for node in nodes], self.dtype)]
            ).astype(self.dtype),
            yes=np.concatenate([leaves, self._numbers([node.yes for node in nodes])]),
            no=np.concatenate([leaves, self._numbers([node.no for node in nodes])]),
            nan_is_yes=np.array([False] * self.num_leaves + [node.nan_is_yes for node in nodes]),
            roots=self._numbers(roots),
            depth=0,
        )
        return replace(
            forest,
            yes=forest.yes.astype(np.int32),
            no=forest.no.astype(np.int32),
            depth=_depth(forest, self.num_leaves),
        )

    def _numbers(self, targets: Sequence[int]) -> Array:
        """Numbers of nodes in the table."""
        numbers = np.array(targets, np.int64)
        return np.where(numbers < 0, ~numbers, numbers + self.num_leaves).astype(np.int32)

    def _add(self, branch: Branch) -> int:
        self.branches.append(self._in_one_mode(branch))
        return len(self.branches) - 1

    def _in_one_mode(self, node: Branch) -> Branch:
        """Return an equal node of mode LEQ; further ones are added."""
        if node.mode == "MEMBER":
            return self._member(node)
        if node.mode in ("GTE", "GT", "NEQ") and not np.isnan(node.threshold):
            opposite = {"GTE": "LT", "GT": "LEQ", "NEQ": "EQ"}[node.mode]
            # x != NaN, and a NaN that is not tracked, holds: it must not be exchanged twice.
            goes_yes = node.nan_is_yes or node.mode == "NEQ"
            node = replace(node, mode=opposite, yes=node.no, no=node.yes, nan_is_yes=not goes_yes)
        if np.isnan(node.threshold):  # equal to nothing, and nothing is less or greater
            goes_yes = node.mode == "NEQ"
            target = node.yes if goes_yes else node.no
            other = node.yes if node.nan_is_yes else target
            return replace(
                node, mode="LEQ", threshold=np.inf, yes=target, no=other, nan_is_yes=False
            )
        if node.mode == "LEQ":
            return node
        before = self._before(node.threshold)
        if node.mode == "LT":
            return replace(node, mode="LEQ", threshold=before)
        second = Branch("LEQ", node.feature, before, node.no, node.yes, False)
        return replace(node, mode="LEQ", yes=self._add(second))

    def _member(self, node: Branch) -> Branch:
        if not node.members:
            raise FrontendError("one of its nodes compares with an empty set")
        rest = node.no
        for index, member in enumerate(reversed(node.members)):
            single = replace(node, mode="EQ", threshold=member, no=rest, members=())
            if index + 1 < len(node.members):
                rest = self._add(single)
        return self._in_one_mode(single)

    def _before(self, threshold: float) -> float:
        """The largest float below a threshold; NaN, which nothing is below, below -infinity."""
        kind = np.dtype(self.dtype).type
        if threshold == -np.inf:
            return float("nan")
        return float(np.nextafter(kind(threshold), kind(-np.inf)))


def _depth(forest: Forest, num_leaves: int) -> int:
    """Return the number of comparisons until all rows are at leaves."""
    level = np.unique(forest.roots[forest.roots >= num_leaves])
    depth = 0
    while level.size:
        depth += 1
        if depth > MAX_DEPTH:
            raise FrontendError(
                f"one of its trees has more than {MAX_DEPTH} levels, or its nodes form a cycle; "
                f"train it with a smaller depth"
            )
        level = np.unique(np.concatenate([forest.yes[level], forest.no[level]]))
        level = level[level >= num_leaves]
    return depth
