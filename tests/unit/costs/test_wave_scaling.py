"""Wave scaling: an instance worked by hand, limits, and what must hold for any figures."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.costs.device_figures import DeviceFigures, find_device
from heteroplace.costs.prediction.wave_scaling import (
    LaunchShape,
    blocks_per_sm,
    memory_share,
    scale_by_waves,
    wave_size,
)
from heteroplace.costs.work import TaskWork
from heteroplace.errors import MissingCostError

ORIGIN = DeviceFigures(
    "origin", "cuda", num_units=10, boost_clock_hz=10**9, fp32_flops_per_second=10**12,
    memory_bytes_per_second=10**11, max_threads_per_sm=1024, max_blocks_per_sm=16,
    registers_per_sm=65536, shared_bytes_per_sm=65536,
)  # fmt: skip
# Twice the bandwidth, 4 times the multiprocessors, half the clock.
DESTINATION = replace(
    ORIGIN, name="destination", num_units=40, boost_clock_hz=5 * 10**8,
    fp32_flops_per_second=4 * 10**12, memory_bytes_per_second=2 * 10**11,
)  # fmt: skip
FACTORS = st.floats(0.1, 10.0)


def test_an_instance_worked_by_hand():
    # Ridge point of the destination: 4e12 / 2e11 = 20 flops per byte. At 10 flops per byte
    # gamma = 1 - 10 / 40 = 0.75. 100 ns * (1/2)^0.75 * (40/160)^0.25 * (2)^0.25 = 50 ns.
    assert wave_size(ORIGIN) == 40  # 1024 / 256 = 4 blocks on each of 10
    assert wave_size(DESTINATION) == 160
    assert scale_by_waves(100, ORIGIN, DESTINATION, TaskWork(10_000, 1000)) == pytest.approx(50.0)


def test_bound_by_memory_only_the_bandwidth_counts():
    assert scale_by_waves(100, ORIGIN, DESTINATION, TaskWork(0, 1000)) == pytest.approx(50.0)


def test_bound_by_computing_waves_and_clock_count():
    # gamma -> 0: 100 ns * (1/4) * 2 = 50 ns as well, so take the clock away.
    same_clock = replace(DESTINATION, boost_clock_hz=10**9)
    assert scale_by_waves(100, ORIGIN, same_clock, TaskWork(10**12, 1)) == pytest.approx(
        25, rel=1e-6
    )


def test_a_known_pair_of_gpus():
    # V100 -> T4, float32, 100 flops per byte. R = 8.1e12 / 320e9 = 25.3125; gamma = R / 200 =
    # 0.1265625. Bandwidths 900 / 320, waves 80 * 8 / (40 * 4) = 4, clocks 1530 / 1590.
    v100, t4 = find_device("Tesla V100-SXM2-16GB"), find_device("T4")
    gamma = 8.1e12 / 320e9 / 200
    expected = 1000 * (900 / 320) ** gamma * (4 * 1530 / 1590) ** (1 - gamma)
    assert scale_by_waves(1000, v100, t4, TaskWork(100_000, 1000)) == pytest.approx(expected)
    assert expected == pytest.approx(3699.2, abs=0.1)


def test_occupancy_is_limited_by_each_resource():
    t4 = find_device("T4")  # 1024 threads, 16 blocks, 65536 registers, 64 KiB of shared memory
    assert blocks_per_sm(t4, LaunchShape(32, 16)) == 16
    assert blocks_per_sm(t4, LaunchShape(512, 32)) == 2
    assert blocks_per_sm(t4, LaunchShape(256, 255)) == 1  # 8 warps of 8192 registers
    assert blocks_per_sm(t4, LaunchShape(128, 32, 30_000)) == 2
    assert blocks_per_sm(t4, LaunchShape(33, 32)) == 16  # two warps each


def test_a_block_that_does_not_fit_is_refused():
    with pytest.raises(MissingCostError, match="does not fit on 'Tesla T4'"):
        blocks_per_sm(find_device("T4"), LaunchShape(256, 32, 70_000))


def test_cpus_and_unknown_figures_are_refused():
    with pytest.raises(MissingCostError, match="Xeon Gold 6132 is no GPU"):
        scale_by_waves(1, ORIGIN, find_device("Xeon Gold 6132"), TaskWork(1, 1))
    with pytest.raises(MissingCostError, match="bandwidth of origin is not known; the clock of o"):
        bare = replace(ORIGIN, memory_bytes_per_second=None, boost_clock_hz=None)
        scale_by_waves(1, bare, DESTINATION, TaskWork(1, 1))
    with pytest.raises(MissingCostError, match="peak speed of the latter is not known"):
        scale_by_waves(1, ORIGIN, replace(ORIGIN, fp32_flops_per_second=None), TaskWork(1, 1))
    with pytest.raises(MissingCostError, match="figures lack threads, blocks, registers or shared"):
        scale_by_waves(1, ORIGIN, replace(ORIGIN, max_blocks_per_sm=None), TaskWork(1, 1))


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_memory_share_is_a_share_and_falls_with_intensity(intensity, ridge):
    share = memory_share(intensity, ridge)
    assert 0 <= share <= 1
    assert memory_share(intensity * 1.5, ridge) <= share


@given(FACTORS, FACTORS, FACTORS, st.integers(0, 10**9), st.integers(1, 10**6))
def test_more_bandwidth_at_the_same_ridge_is_never_slower(bandwidth, clock, ns, flops, num_bytes):
    base = replace(
        DESTINATION,
        memory_bytes_per_second=round(bandwidth * 10**11),
        boost_clock_hz=round(clock * 10**9),
    )
    # The ridge point decides gamma, so it is held by scaling both peaks.
    better = replace(
        base,
        memory_bytes_per_second=2 * base.memory_bytes_per_second,
        fp32_flops_per_second=2 * base.fp32_flops_per_second,
    )
    work = TaskWork(flops, num_bytes)
    assert scale_by_waves(ns, ORIGIN, better, work) <= scale_by_waves(ns, ORIGIN, base, work)


@given(st.sampled_from([f for f in map(find_device, ("T4", "V100-SXM2", "H200"))]),
       st.integers(0, 10**12), st.integers(1, 10**9))  # fmt: skip
def test_scaling_to_the_same_gpu_changes_nothing(figures, flops, num_bytes):
    scaled = scale_by_waves(123.0, figures, figures, TaskWork(flops, num_bytes))
    assert scaled == pytest.approx(123.0)
