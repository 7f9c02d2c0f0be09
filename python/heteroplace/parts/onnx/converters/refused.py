"""Op type -> why it cannot be compiled, for the ops that TVM's importer takes and must not."""

from __future__ import annotations

from collections.abc import Mapping

_RANDOM = (
    "it draws random numbers, and a compiled program would give the same ones at every run. Draw "
    "them outside and make them an input"
)
_FLOW = (
    "only dataflow can be placed. Unroll it when exporting the model (a number of steps that is "
    "known by then)"
)
SIZE_REASON = (
    "the size of its result depends on values at run time, and only static shapes can be placed. "
    "Cut the model before it, and compute the rest outside"
)
_BOXES = (
    "its result has one row for each box that it selects, so its size depends on values at run "
    "time, and only static shapes can be placed; a bound, as max_output_boxes_per_class, does not "
    "fix it. End the model at its operands, boxes and scores, and select boxes outside"
)
_UNIQUE = (
    "its result has as many elements as there are different values at run time, and only static "
    "shapes can be placed. End the model at its operand, and compute the rest outside"
)
_TRAINING = "it is a step of training, and only inference can be placed"

REFUSED: Mapping[str, str] = {
    "Adagrad": _TRAINING,
    "Adam": _TRAINING,
    "Bernoulli": _RANDOM,
    "Loop": _FLOW,
    "Momentum": _TRAINING,
    "Multinomial": _RANDOM,
    "NonMaxSuppression": _BOXES,
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": _RANDOM,
    "RandomUniformLike": _RANDOM,
    "Scan": _FLOW,
    "Unique": _UNIQUE,
}

RANDOM_OPS = frozenset(op_type for op_type, reason in REFUSED.items() if reason == _RANDOM)
"""Looked for before anything is rewritten: their definitions and simplified forms hide them."""
