"""Processors of fast and thrifty cores: devices of unlike cores are not measured as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from heteroplace.machine.core_kinds import core_kinds
from heteroplace.machine.cpu import read_cpus
from heteroplace.machine.probe import machine_cluster
from heteroplace.measure.devices_under_test import device_class
from tests.unit.machine.machines import DESKTOP, write_machine

HYBRID = replace(DESKTOP, max_khz={0: 4_900_000, 1: 5_100_000, 2: 3_800_000, 3: 3_800_000})
"""Two fast cores, of which one may be clocked a little higher, and two thrifty ones."""


def test_a_core_that_is_clocked_a_little_higher_is_no_other_kind(tmp_path: Path) -> None:
    write_machine(tmp_path, HYBRID)
    fast, thrifty = (f"{ghz} GHz, L1d 32K, L2 1024K" for ghz in ("4.90", "3.80"))
    assert core_kinds(range(4), tmp_path) == {0: fast, 1: fast, 2: thrifty, 3: thrifty}


def test_other_caches_are_another_kind(tmp_path: Path) -> None:
    write_machine(tmp_path, DESKTOP)
    size = tmp_path / "sys/devices/system/cpu/cpu3/cache/index2/size"
    size.write_text("2048K\n")
    kinds = core_kinds(range(4), tmp_path)
    assert kinds[0] == kinds[1] == kinds[2] != kinds[3]


def test_devices_of_unlike_cores_are_measured_one_by_one(tmp_path: Path) -> None:
    cpu = read_cpus(write_machine(tmp_path, HYBRID), range(4))
    cluster = machine_cluster(cpu, (), "llvm", root=tmp_path)
    classes = [device_class(cluster, index) for index in range(4)]
    assert classes[0] == classes[1] != classes[2] == classes[3]
    models = [device.identity.model for device in cluster.devices]
    assert models[0].startswith(cpu.model) and models[0] != models[2]
    assert "3.80 GHz" in models[4] and "4.90 GHz" in models[4]


def test_where_all_cores_are_alike_the_model_is_that_of_the_box(tmp_path: Path) -> None:
    cpu = read_cpus(write_machine(tmp_path, DESKTOP), range(4))
    cluster = machine_cluster(cpu, (), "llvm", root=tmp_path)
    assert {device.model for device in cluster.devices} == {cpu.model}
