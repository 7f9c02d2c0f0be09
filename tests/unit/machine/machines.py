"""Folders like /proc and /sys of some machines, and GPUs by their data sheets, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heteroplace.machine.gpu import GpuInfo

KIB_PER_GIB = 1 << 20

X86 = """processor\t: {number}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz
stepping\t: 4
microcode\t: 0x2007006
cpu MHz\t\t: {mhz}
flags\t\t: fpu constant_tsc avx2 fma
bogomips\t: {bogomips}

"""
ARM = """processor\t: {number}
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""


@dataclass(frozen=True)
class Machine:
    """What the files say."""

    sockets: Sequence[Sequence[Sequence[int]]]
    """For each socket its cores, each as its hardware threads."""
    node_gib: Sequence[int] = ()
    """Memory of each NUMA node, one per socket; none: the system has no nodes."""
    total_gib: int = 16
    cpuinfo: str = X86
    mhz: str = "2100.000"
    bogomips: str = "4200.00"
    caches: Sequence[tuple[int, str, str]] = (
        (1, "Data", "32K"),
        (1, "Instruction", "32K"),
        (2, "Unified", "1024K"),
    )
    max_khz: Mapping[int, int] | None = None
    groups: str = "0::/\n"
    limits: Mapping[str, str] | None = None
    """Files below sys/fs/cgroup."""


def write_machine(root: Path, machine: Machine) -> Path:
    """Write the files of a machine below `root`; return `root`."""
    threads = [
        (socket, tuple(core), number)
        for socket, cores in enumerate(machine.sockets)
        for core in cores
        for number in core
    ]
    numbers = sorted(number for _, _, number in threads)
    pages = [
        machine.cpuinfo.format(number=n, mhz=machine.mhz, bogomips=machine.bogomips)
        for n in numbers
    ]
    files = {
        "proc/cpuinfo": "".join(pages),
        "proc/meminfo": f"MemTotal:       {machine.total_gib * KIB_PER_GIB} kB\n",
        "proc/self/cgroup": machine.groups,
        "sys/devices/system/cpu/online": ",".join(map(str, numbers)),
    }
    for socket, core, number in threads:
        folder = f"sys/devices/system/cpu/cpu{number}"
        files[f"{folder}/topology/thread_siblings_list"] = ",".join(map(str, core))
        files[f"{folder}/topology/physical_package_id"] = str(socket)
        for index, (level, kind, size) in enumerate(machine.caches):
            cache = f"{folder}/cache/index{index}"
            files |= {f"{cache}/level": str(level), f"{cache}/type": kind, f"{cache}/size": size}
        if machine.max_khz is not None:
            files[f"{folder}/cpufreq/cpuinfo_max_freq"] = str(machine.max_khz[number])
            files[f"{folder}/cpufreq/scaling_governor"] = "powersave"
    for node, gib in enumerate(machine.node_gib):
        own = [str(number) for socket, _, number in threads if socket == node]
        folder = f"sys/devices/system/node/node{node}"
        files[f"{folder}/cpulist"] = ",".join(own)
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal:       {gib * KIB_PER_GIB} kB\n"
    for name, text in (machine.limits or {}).items():
        files[f"sys/fs/cgroup/{name}"] = text
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


DESKTOP = Machine(sockets=[[[0], [1], [2], [3]]], node_gib=[16])
"""One socket of four cores without hardware threads."""

SERVER = Machine(
    sockets=[[[0, 8], [1, 9], [2, 10], [3, 11]], [[4, 12], [5, 13], [6, 14], [7, 15]]],
    node_gib=[64, 32],
    total_gib=96,
)
"""Two sockets, each of four cores with two hardware threads, and a memory each."""

ARM_BOARD = Machine(
    sockets=[[[0], [1], [2], [3]]],
    total_gib=4,
    cpuinfo=ARM,
    caches=(),
    max_khz={0: 1_500_000, 1: 1_500_000, 2: 2_000_000, 3: 2_000_000},
)
"""An ARM processor of two kinds of cores, whose system tells of no nodes and no caches."""

A100 = GpuInfo(
    name="NVIDIA A100-SXM4-40GB",
    index=0,
    bus_id="00000000:07:00.0",
    memory_bytes=40 << 30,
    capability=(8, 0),
    num_cores=6912,
    max_clock_mhz=1410,
    max_memory_clock_mhz=1215,
    pcie_generation=4,
    pcie_width=16,
    nvlink_peers=(1,),
    num_nvlinks=12,
    nvlink_version=5,
    driver="535.104.05",
)
DESKTOP_CARD = replace(
    A100,
    name="NVIDIA GeForce RTX 3060 Ti",
    bus_id="00000000:01:00.0",
    memory_bytes=8 << 30,
    capability=(8, 6),
    num_cores=4864,
    max_clock_mhz=2100,
    max_memory_clock_mhz=7001,
    nvlink_peers=(),
    num_nvlinks=0,
    nvlink_version=0,
)


class FakeDriver:
    """Answers as libcuda does for one device; from `failing` on with an error."""

    def __init__(self, failing: str = "") -> None:
        self._failing = failing
        self.attributes = {75: 9, 76: 0, 16: 132, 13: 1980000, 36: 2619000}

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name == self._failing:
                return 101
            if name == "cuDeviceGetName":
                arguments[0].value = b"NVIDIA X"
            elif name == "cuDeviceTotalMem_v2":
                arguments[0]._obj.value = 5 << 30
            elif name == "cuDriverGetVersion":
                arguments[0]._obj.value = 12040
            elif name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = self.attributes[arguments[1]]
            return 0

        return call
