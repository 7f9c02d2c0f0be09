"""Sums of rows on vectors: those of numpy, whatever is computed before and behind."""

from __future__ import annotations

import pytest
import tvm
from own_kernels import check_schedules
from relay_models import module, random_inputs, var
from tvm import relay, topi

from heteroplace.parts.kernels.cpu.row_sums import row_fold

pytestmark = pytest.mark.relay


def test_only_rows_of_whole_vectors_are_folded_on_them() -> None:
    x = tvm.te.placeholder((2, 8, 64), name="x")
    uneven = tvm.te.placeholder((2, 8, 60), name="uneven")
    flags = tvm.te.placeholder((2, 8, 64), "bool", name="flags")  # an element has less than a byte
    with tvm.target.Target("llvm -mcpu=skylake-avx512"):
        assert row_fold(topi.exp(topi.sum(topi.tanh(x), -1)), (-1,)) is not None
        assert row_fold(topi.sum(x, 2, keepdims=True), (2,)) is not None
        assert row_fold(topi.sum(x, 1), (1,)) is None
        assert row_fold(topi.sum(x, (1, 2)), (1, 2)) is None
        assert row_fold(topi.sum(uneven, -1), (-1,)) is None
        assert row_fold(topi.sum(topi.sum(x, 0), -1), (-1,)) is None
        assert row_fold(topi.argmax(x, -1), (-1,)) is None
        assert row_fold(topi.sum(flags, -1), (-1,)) is None


@pytest.mark.costly
def test_sums_are_those_of_numpy_and_the_same_in_every_run() -> None:
    x = var("x", (3, 5, 96))
    centred = relay.subtract(x, relay.mean(x, -1, keepdims=True))
    variance = relay.mean(relay.multiply(centred, centred), [2], keepdims=True)
    normed = relay.multiply(centred, relay.rsqrt(relay.add(variance, relay.const(1e-5))))
    sums = [relay.sum(normed, -1), relay.sum(x, [0, 1]), relay.sum(x, 2, exclude=True)]
    mod = module([x], relay.Tuple([normed, relay.exp(relay.mean(relay.tanh(x), 2)), *sums]))
    inputs = random_inputs(mod)
    check_schedules(mod, inputs, least_scale=1.0)
