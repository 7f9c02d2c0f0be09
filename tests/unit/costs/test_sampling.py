"""The stop rule and the handling of outliers, on made-up streams of samples."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice

import pytest

from heteroplace.costs.sampling import (
    KernelSample,
    Sampling,
    SamplingOptions,
    Summary,
    undisturbed,
)
from heteroplace.errors import MissingCostError
from heteroplace.stats import quantile


def steady(true_ns: int = 10_000, seed: int = 0, noise: float = 0.01) -> Iterator[KernelSample]:
    """A kernel that nothing disturbs: its processor time is its wall time."""
    stream = random.Random(seed)
    while True:
        wall_ns = round(true_ns * (1 + noise * abs(stream.gauss())))
        yield KernelSample(wall_ns, wall_ns)


def preempted(share: float, true_ns: int = 10_000, seed: int = 0) -> Iterator[KernelSample]:
    """As `steady`, but in a share of the samples another program had the core for a while."""
    stream = random.Random(seed + 1)
    for sample in steady(true_ns, seed):
        lost_ns = round(stream.uniform(0.3, 5.0) * true_ns) if stream.random() < share else 0
        yield KernelSample(sample.wall_ns + lost_ns, sample.cpu_ns)


def sample_all(
    stream: Iterable[KernelSample], options: SamplingOptions | None = None, num_calls: int = 1
) -> Summary:
    """Samples, one by one until the rule ends it."""
    sampling = Sampling(num_calls, options or SamplingOptions())
    iterator = iter(stream)
    while sampling.ended_by() is None:
        sampling.add([next(iterator)])
    return sampling.summary()


def test_a_steady_kernel_needs_the_least_number_of_samples() -> None:
    result = sample_all(steady(noise=0.001))
    assert result.num_samples == SamplingOptions().min_samples
    assert result.ended_by == "precision"
    assert abs(result.wall_ns - 10_000) <= 20
    assert result.low_ns <= result.wall_ns <= result.high_ns


def test_a_noisy_kernel_is_sampled_until_the_interval_is_narrow() -> None:
    noisy = sample_all(steady(noise=0.1))
    assert noisy.ended_by == "precision"
    assert noisy.num_samples > SamplingOptions().min_samples
    assert (noisy.high_ns - noisy.low_ns) / 2 <= 0.02 * noisy.wall_ns + 1


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45])
def test_samples_that_lost_their_core_do_not_count(share: float) -> None:
    result = sample_all(preempted(share), SamplingOptions(precision_ratio=0.0, max_samples=100))
    assert result.num_dropped > 0
    assert result.num_samples + result.num_dropped == 100
    assert abs(result.wall_ns - 10_000) <= 200


def test_without_dropping_the_same_stream_would_be_slower() -> None:
    samples = list(islice(preempted(0.45), 100))
    kept = undisturbed(samples, 0.1)
    spread = quantile(sorted(s.wall_ns for s in samples), 0.75)
    assert spread > 1.2 * quantile(sorted(s.wall_ns for s in kept), 0.75)


def test_half_of_the_samples_count_even_if_all_were_disturbed() -> None:
    samples = [KernelSample(10_000 + 1_000 * lost, 10_000) for lost in range(21)]
    kept = undisturbed(samples, 0.0)
    assert kept == samples[:11]


def test_a_kernel_of_several_threads_is_judged_by_its_own_share() -> None:
    both = [KernelSample(10_000, 19_000)] * 10
    one_was_away = [KernelSample(15_000, 19_500)] * 3
    assert undisturbed(both + one_was_away, 0.1) == both


def test_work_elsewhere_has_no_processor_time_and_is_kept_whole() -> None:
    samples = [KernelSample(100, 0), KernelSample(300, 0), KernelSample(200, 0)]
    assert undisturbed(samples, 0.1) == samples


def test_two_speeds_are_told_by_spread_and_interval() -> None:
    stream = (
        KernelSample(10_000 + 10_000 * (i % 2), 10_000 + 10_000 * (i % 2)) for i in range(10**6)
    )
    result = sample_all(stream, SamplingOptions(max_samples=60))
    assert result.ended_by == "samples"
    assert result.spread_ns == 5_000
    assert (result.low_ns, result.high_ns) == (10_000, 20_000)


def test_a_drift_widens_the_interval_until_a_limit() -> None:
    stream = (KernelSample(10_000 + 200 * i, 10_000 + 200 * i) for i in range(10**6))
    result = sample_all(stream, SamplingOptions(max_samples=50))
    assert result.ended_by == "samples"
    assert result.wall_ns == 10_000 + 200 * 49 // 2
    assert result.high_ns - result.low_ns > 0.04 * result.wall_ns


def test_long_kernels_end_by_time_but_not_before_the_least_number() -> None:
    result = sample_all(
        (KernelSample(10**9 * (1 + i % 3), 10**9 * (1 + i % 3)) for i in range(10**6)),
        SamplingOptions(max_ns=1),
    )
    assert result.ended_by == "time"
    assert result.num_samples == SamplingOptions().min_samples


def test_times_are_of_one_call() -> None:
    result = sample_all((KernelSample(1_000, 900) for _ in range(100)), num_calls=10)
    assert (result.wall_ns, result.cpu_ns, result.spread_ns) == (100, 90, 0)


def test_a_kernel_without_samples_has_no_summary() -> None:
    with pytest.raises(MissingCostError, match="never sampled"):
        Sampling(1).summary()
