"""Figures of known devices: that they agree with each other, are sourced, and are found."""

import pytest

from heteroplace.costs.device_figures import (
    device_figures_table,
    fill_device,
    find_device,
    known_devices,
)
from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Device

# float32 lanes of a multiprocessor, from the CUDA C++ Programming Guide, Arithmetic Instructions.
LANES = {"6.0": 64, "6.1": 128, "7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "9.0": 128}
GPUS = [figures for figures in known_devices() if figures.kind == "cuda"]
CPUS = [figures for figures in known_devices() if figures.kind == "cpu"]


@pytest.mark.parametrize("figures", GPUS, ids=lambda figures: figures.name)
def test_peak_of_a_gpu_is_two_flops_per_lane_and_clock(figures):
    peak = figures.num_units * LANES[figures.compute_capability] * 2 * figures.boost_clock_hz
    assert figures.peak_flops_per_second() == pytest.approx(peak, rel=0.012)  # printed rounded


@pytest.mark.parametrize("figures", known_devices(), ids=lambda figures: figures.name)
def test_every_figure_has_a_source(figures):
    sourced = dict(figures.sources)
    for field, value in vars(figures).items():
        if field not in ("name", "kind", "sources"):
            assert (value is not None) == (field in sourced)
    assert all(len(title) > 10 for title in sourced.values())


@pytest.mark.parametrize("figures", GPUS, ids=lambda figures: figures.name)
def test_blocks_of_256_threads_fill_every_gpu(figures):
    assert figures.max_threads_per_sm % 256 == 0
    assert figures.max_threads_per_sm // 256 <= figures.max_blocks_per_sm
    assert figures.registers_per_sm >= 32 * figures.max_threads_per_sm


def test_the_asked_for_devices_are_known():
    assert len(GPUS) >= 12
    assert len(CPUS) >= 7
    for figures in known_devices():
        assert find_device(figures.name) is figures
        assert figures.memory_bytes_per_second > 0
        assert figures.peak_flops_per_second() > 0


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
        ("rtx 3060 ti", "GeForce RTX 3060 Ti"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16GB"),
        ("Tesla P100-PCIE-16GB", "Tesla P100 PCIe 16GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("T4", "Tesla T4"),
        ("Intel(R) Xeon(R) Gold 5220 CPU @ 2.20GHz", "Xeon Gold 5220"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Xeon Platinum 8480+"),
        ("AMD EPYC 7763 64-Core Processor", "EPYC 7763"),
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "Core i7-8700K"),
    ],
)
def test_names_of_drivers_and_systems_are_understood(written, name):
    assert find_device(written).name == name


def test_an_ambiguous_name_lists_what_it_may_mean():
    with pytest.raises(ClusterError, match="'A100'; near it: A100 SXM4 40GB, A100 SXM4 80GB, A100"):
        find_device("A100")


def test_an_unknown_name_lists_all():
    with pytest.raises(ClusterError, match="'abacus'; known: GeForce RTX 2080 Ti, Tesla T4"):
        find_device("abacus")


def test_a_device_is_filled_in_without_overwriting():
    t4 = Device("gpu0", "cuda", "cuda", 0, 0, model="Tesla T4", memory_bytes_per_second=7)
    filled = fill_device(t4)
    assert (filled.flops_per_second, filled.memory_bytes_per_second) == (8_100_000_000_000, 7)
    assert fill_device(t4, "float16").flops_per_second == 65_000_000_000_000


def test_a_cpu_device_has_the_share_of_its_cores():
    one, all_of_two = (
        Device("cpu", "cpu", "llvm", 0, 0, tuple(range(count)), model="Intel Xeon Gold 6132")
        for count in (1, 28)
    )
    alone = fill_device(one)
    assert alone.flops_per_second == 64 * 2_600_000_000
    assert alone.memory_bytes_per_second == 128_000_000_000
    both = fill_device(all_of_two)
    assert both.flops_per_second == 28 * 64 * 2_600_000_000
    assert both.memory_bytes_per_second == 256_000_000_000


def test_unknown_models_stay_as_they_are():
    device = Device("x", "npu", "", 0, 0, model="mine")
    assert fill_device(device) == device
    assert fill_device(Device("x", "npu", "", 0, 0)) == Device("x", "npu", "", 0, 0)


def test_the_table_names_devices_and_sources():
    text = device_figures_table()
    assert len(text.splitlines()) == len(known_devices()) + 1
    row = next(line for line in text.splitlines() if line.startswith("A100 SXM4 80GB"))
    columns = " ".join(row.split())
    assert "80GB 108 1410 MHz 19.5 TFLOP/s 312 TFLOP/s 80 GB 2039 GB/s NVIDIA A100" in columns
    assert row.endswith("Technical Specifications per Compute Capability (NVIDIA)")
