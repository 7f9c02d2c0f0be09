"""Cores -> of which kind each is: a processor may have fast and thrifty ones.

Their kernels have one target, and take longer on one kind than on the other: devices of unlike
cores have unlike models, so that each is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heteroplace.control_groups import first_fields, read_text
from heteroplace.model.cluster import Device

_CLOCK_STEP_HZ = 50_000_000
"""A clock that the kernel has measured (of a virtual machine, say) is rounded to this: it differs
by some kHz from one start of the machine to the next."""
_SPREAD = 1.15
"""Of largest clocks of one kind, some of whose cores may be clocked higher than others."""


def with_core_kinds(devices: Sequence[Device], root: Path = Path("/")) -> tuple[Device, ...]:
    """Return CPU devices of this machine; of several kinds of cores, models say which ones they
    have."""
    kinds = core_kinds(sorted({core for device in devices for core in device.cores}), root)
    if len(set(kinds.values())) < 2:
        return tuple(devices)

    def model(device: Device) -> str:
        own = " and ".join(sorted({kinds[core] for core in device.cores}))
        return f"{device.model} ({own})".strip()

    return tuple(replace(device, model=model(device)) for device in devices)


def core_kinds(cores: Sequence[int], root: Path = Path("/")) -> dict[int, str]:
    """Return for each core the `kind_of_core` of the first one that it is like.

    Alike are cores of equal caches whose clocks differ by less than _SPREAD.
    """
    firsts: list[tuple[list[str], float, str]] = []
    kinds = {}
    fields = first_fields(read_text(root / "proc/cpuinfo"))
    for core in cores:
        folder = root / f"sys/devices/system/cpu/cpu{core}"
        caches, hertz = _caches(folder / "cache"), _clock_hz(folder / "cpufreq", fields) or 1.0
        alike = [
            kind
            for other, clock, kind in firsts
            if other == caches and max(hertz, clock) <= _SPREAD * min(hertz, clock)
        ]
        if not alike:
            firsts.append((caches, hertz, kind_of_core(core, fields, root)))
            alike = [firsts[-1][2]]
        kinds[core] = alike[0]
    return kinds


def kind_of_core(core: int, fields: dict[str, str], root: Path = Path("/")) -> str:
    """Return clock and caches of a core, e.g. "3.70 GHz, L1d 48K, L2 1024K, L3 32768K"; "" if the
    system tells of neither.

    Parameters
    ----------
    fields
        `first_fields` of /proc/cpuinfo, which is slow to read where there are many cores.
    """
    folder = root / f"sys/devices/system/cpu/cpu{core}"
    hertz = _clock_hz(folder / "cpufreq", fields)
    clock = "" if hertz is None else f"{hertz / 1e9:.2f} GHz"
    return ", ".join(filter(None, (clock, *_caches(folder / "cache"))))


def _clock_hz(folder: Path, fields: dict[str, str]) -> float | None:
    """The largest clock that the system allows, else the base clock, else that of the counter."""
    for name in ("cpuinfo_max_freq", "base_frequency"):
        text = read_text(folder / name)
        if text:
            return int(text) * 1e3
    # The time stamp counter of x86 ticks at the base clock, and BogoMIPS is twice that. On other
    # processors BogoMIPS is the clock of a timer, which says nothing.
    if "constant_tsc" not in fields.get("flags", "").split() or "bogomips" not in fields:
        return None
    hertz = float(fields["bogomips"]) * 1e6 / 2
    return round(hertz / _CLOCK_STEP_HZ) * float(_CLOCK_STEP_HZ)


def _caches(folder: Path) -> list[str]:
    caches = []
    for index in sorted(folder.glob("index[0-9]*")):
        level, kind, size = (read_text(index / name) for name in ("level", "type", "size"))
        if size and kind != "Instruction":
            caches.append(f"L{level}{'d' if kind == 'Data' else ''} {size}")
    return caches
