"""Regression per op: known laws come back, and guesses far away are refused."""

import math
import random

import pytest

from heteroplace.costs.prediction.op_regression import (
    MAX_EXTRAPOLATION,
    LinearCost,
    fit_op_regression,
)
from heteroplace.costs.work import TaskWork
from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Link

# DistIR's machine as MECHANISMS gives it: 1.25e14 flop/s, 9e11 B/s, 10 us to launch; float16.
FLOPS_PER_SECOND, BYTES_PER_SECOND, LAUNCH_NS = 1.25e14, 9e11, 1e4
LAW = LinearCost(1e9 / FLOPS_PER_SECOND, 1e9 / BYTES_PER_SECOND, LAUNCH_NS)


def product(m: int, k: int, n: int) -> TaskWork:
    """A product of float16 matrices, as DistIR counts it: the result's bytes are not moved."""
    return TaskWork(2 * m * k * n, 2 * (m * k + k * n))


def test_product_of_matrices_as_in_distir():
    assert LAW.ns(product(4096, 8192, 8192)) == pytest.approx(4.631743e6, abs=1)


def test_element_wise_op_as_in_distir():
    num_elements = 4096 * 8192
    assert LAW.ns(TaskWork(num_elements, 2 * num_elements)) == pytest.approx(8.483384e4, abs=0.1)


def test_send_as_in_distir():
    link = Link("ab", 0, 1, 25 * 10**9, 0, "ab")
    assert link.payload_ns(64 * 2**20) == pytest.approx(2.684355e6, abs=1)


def test_exact_samples_give_back_their_law():
    sizes = [product(m, 256, n) for m in (1, 64, 512) for n in (256, 4096)]
    fit = fit_op_regression([(work, LAW.ns(work)) for work in sizes])
    assert fit.line.ns_per_flop == pytest.approx(LAW.ns_per_flop, rel=1e-6)
    assert fit.line.ns_per_byte == pytest.approx(LAW.ns_per_byte, rel=1e-6)
    assert fit.line.launch_ns == pytest.approx(LAW.launch_ns, rel=1e-6)
    assert fit.r_squared == pytest.approx(1.0)
    assert fit.max_error < 1e-6
    assert fit.num_samples == 6


def test_noisy_samples_of_a_good_design_identify_all_three():
    """Tiny and memory-bound shapes among them, and relative errors: all within 5 %."""
    noise = random.Random(0)
    sizes = [
        product(m, k, n)
        for m in (1, 16, 256, 4096)
        for k in (256, 4096, 8192)
        for n in (256, 4096, 8192)
    ]
    for _ in range(20):
        samples = [(work, LAW.ns(work) * noise.gauss(1, 0.02)) for work in sizes]
        fit = fit_op_regression(samples)
        assert fit.line.ns_per_flop == pytest.approx(LAW.ns_per_flop, rel=0.05)
        assert fit.line.ns_per_byte == pytest.approx(LAW.ns_per_byte, rel=0.05)
        assert fit.line.launch_ns == pytest.approx(LAW.launch_ns, rel=0.05)
        assert fit.max_error < 0.1


def test_coefficients_are_never_negative():
    falling = [(TaskWork(flops, 1000), 5000 - flops) for flops in (1000, 2000, 3000)]
    line = fit_op_regression(falling).line
    assert line.ns_per_flop == 0
    assert min(line.ns_per_byte, line.launch_ns) >= 0


def test_extrapolation_is_measured_against_both_ends():
    samples = [(TaskWork(100 * i, 10 * i), 7.0 * i) for i in (1, 2, 4)]
    fit = fit_op_regression(samples)
    assert fit.extrapolation(TaskWork(100, 10)) == 1.0
    assert fit.extrapolation(TaskWork(300, 25)) == 1.0
    assert fit.extrapolation(TaskWork(1600, 40)) == MAX_EXTRAPOLATION
    assert fit.extrapolation(TaskWork(400, 400)) == 10.0
    assert fit.extrapolation(TaskWork(20, 10)) == 5.0
    assert fit.extrapolation(TaskWork(0, 10)) == math.inf


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [(TaskWork(1, 1), 5.0), (TaskWork(2, 1), 6.0)],
        [(TaskWork(1, 1), 5.0)] * 5,
    ],
)
def test_too_few_sizes_are_refused(samples):
    with pytest.raises(MissingCostError, match="times above 0 of 3 different sizes"):
        fit_op_regression(samples)
