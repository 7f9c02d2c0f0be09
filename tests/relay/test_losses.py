"""Losses: what they take for a prediction, and numbers at the ends of their range."""

from __future__ import annotations

import numpy as np
import pytest
from numpy_relay import run_by_numpy
from relay_models import module, var
from tvm import relay

from heteroplace.errors import TrainingError
from heteroplace.parts.parallel.training import LOSSES, training_step

pytestmark = pytest.mark.relay


def test_cross_entropy_of_a_class_that_cannot_be_is_a_number() -> None:
    """A logit of minus infinity, as masks make it, of another class than the label."""
    loss = LOSSES["cross_entropy"]
    given = var("p", (2, 3), "float64")
    logits = module([given], given)["main"].body
    labels = relay.Var("labels", loss.labels_type(logits.checked_type))
    outputs = [loss.value(logits, labels, 2), loss.gradient(logits, labels, 2)]
    mod = module([logits, labels], relay.Tuple(outputs))
    values = np.array([[0.0, -np.inf, 0.0], [-np.inf, 2.0, -np.inf]])
    with np.errstate(divide="ignore"):  # the logarithm of what cannot be
        found, gradient = run_by_numpy(mod, {"p": values, "labels": np.array([2, 1])})
    assert found == pytest.approx(np.log(2) / 2, rel=1e-12)
    np.testing.assert_allclose(gradient, [[0.25, 0, -0.25], [0, 0, 0]], atol=1e-15)


def test_cross_entropy_of_one_axis_is_refused() -> None:
    x, w = var("x", (4,)), var("w", (4,))
    with pytest.raises(TrainingError, match=r"prediction of shape \[4\]; expected the items along"):
        training_step(module([x, w], x * w), ["w"], loss="cross_entropy")
