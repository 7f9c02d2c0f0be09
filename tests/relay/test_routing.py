"""Routed networks: the ops, what they are made of, and their dense form."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from numpy_relay import run_by_numpy
from random_routed import RoutedCase, random_routed, routed_networks
from tvm import relay

from heteroplace import routing
from tests.strategies import exact_cases


def check_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(one, other)


@given(routed_networks())
@exact_cases(8)
def test_routed_networks_equal_their_dense_form(case: RoutedCase) -> None:
    dense = routing.dense_masked(case.mod)
    for seed in range(3):
        inputs = case.inputs(seed)
        with np.errstate(all="ignore"):  # rows that nothing may read are no numbers
            check_equal(run_by_numpy(case.mod, inputs), run_by_numpy(dense, inputs))
