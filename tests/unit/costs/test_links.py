"""Fits of latency and bandwidth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.costs.link_fit import link_from_samples, undisturbed_ns
from heteroplace.errors import ClusterError
from tests.strategies import exact_cases

SIZES = [4 * 2**10, 64 * 2**10, 2**20, 16 * 2**20]


@given(st.integers(100, 10**6), st.integers(10**8, 10**11))
def test_exact_samples_are_recovered(latency_ns, bytes_per_second):
    samples = [(size, latency_ns + size * 10**9 // bytes_per_second) for size in SIZES]
    fitted_ns, fitted_bandwidth = link_from_samples(samples)
    # Samples are whole nanoseconds, so they carry an error of up to 1 ns each.
    assert fitted_ns == pytest.approx(latency_ns, abs=2, rel=0.02)
    assert fitted_bandwidth == pytest.approx(bytes_per_second, rel=0.02)


def test_one_slow_large_copy_does_not_decide_the_latency():
    samples = [(size, 10_000 + size // 10) for size in SIZES for _ in range(5)]
    samples.append((SIZES[-1], 2 * (10_000 + SIZES[-1] // 10)))
    latency_ns, bytes_per_second = link_from_samples(samples)
    assert latency_ns == pytest.approx(10_000, rel=0.05)
    assert bytes_per_second == pytest.approx(10**10, rel=0.1)


def test_negative_latency_becomes_zero():
    assert link_from_samples([(1000, 100), (2000, 300), (3000, 500)])[0] == 0


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([(10, 5), (10, 6)], "copies of two sizes or more"),
        ([], "copies of two sizes or more"),
        ([(10, 5), (20, 0)], "durations > 0 ns"),
        ([(10, 50), (2000, 50)], "do not grow with their sizes"),
        ([(10, 50), (2000, 40)], "do not grow with their sizes"),
    ],
)
def test_useless_samples_are_refused(samples, message):
    with pytest.raises(ClusterError, match=message):
        link_from_samples(samples)


def test_a_size_takes_no_longer_than_a_larger_one():
    times_ns = {4: [9000, 7000], 4096: [6000, 5000], 16_384: [8000, 5500]}
    assert undisturbed_ns(times_ns, share=0) == {4: 5000, 4096: 5000, 16_384: 5500}


def test_a_disturbed_quarter_of_the_samples_does_not_count():
    samples = [100, 101, 102, 103, 10**6, 10**6]
    assert undisturbed_ns({4: samples}, share=0.25) == {4: 101}


@exact_cases(50)
@given(
    st.dictionaries(
        st.integers(0, 10**8), st.lists(st.integers(1, 10**9), min_size=1, max_size=5), min_size=2
    ),
    st.sampled_from([0.0, 0.25]),
)
def test_undisturbed_times_are_bounds_that_never_fall(times_ns, share):
    found = undisturbed_ns(times_ns, share)
    assert list(found) == sorted(times_ns)
    assert list(found.values()) == sorted(found.values())
    assert all(ns <= max(times_ns[size]) for size, ns in found.items())
    if len(set(found.values())) > 1:
        latency_ns, bytes_per_second = link_from_samples(list(found.items()))
        assert latency_ns >= 0
        assert bytes_per_second > 0
