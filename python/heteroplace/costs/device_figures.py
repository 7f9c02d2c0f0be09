"""What is printed on the box -> peak speeds, bandwidths and limits, each with its source.

The figures are in `device_figures.json`, grouped by the vendor's document that states them; what no
document states is None. Speeds are peaks at the boost clock for GPUs, as their vendors give them,
and at the base clock for CPUs, which all cores hold together. Sizes are decimal, as printed.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from heteroplace.entries import load_entry
from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Device

_FILE = Path(__file__).with_name("device_figures.json")
# What drivers and systems write around the name proper.
_NOISE = re.compile(
    r"\(r\)|\(tm\)|@.*$|"
    r"\b(?:nvidia|geforce|tesla|intel|amd|cpu|processor|gpu|tensor core|\d+-core)\b"
)
_MAX_NEAR = 5


@dataclass(frozen=True)
class DeviceFigures:
    """The figures of one model of device. None: no document states it."""

    name: str
    kind: str
    """"cuda" or "cpu"."""
    num_units: int | None = None
    """Streaming multiprocessors of a GPU, cores of one CPU."""
    compute_capability: str | None = None
    """Of a GPU, e.g. "7.5"."""
    base_clock_hz: int | None = None
    boost_clock_hz: int | None = None
    fp32_flops_per_second: int | None = None
    """Peak in float32 without tensor cores."""
    fp16_flops_per_second: int | None = None
    """Peak in float16 without tensor cores."""
    tensor_flops_per_second: int | None = None
    """Peak of the tensor cores: float16 products, float32 sums, dense matrices."""
    flops_per_cycle: int | None = None
    """Of one CPU core in float32."""
    memory_bytes_per_second: int | None = None
    memory_bytes: int | None = None
    """Of a GPU's own memory; None for CPUs, whose memory is the machine's."""
    last_cache_bytes: int | None = None
    """L2 of a GPU, L3 of a CPU."""
    pcie_generation: int | None = None
    max_threads_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    registers_per_sm: int | None = None
    """32-bit registers."""
    shared_bytes_per_sm: int | None = None
    sources: tuple[tuple[str, str], ...] = ()
    """(field, title of the document that states it) of every figure that is not None."""

    @property
    def clock_hz(self) -> int | None:
        """The clock that the peak speeds belong to."""
        return self.boost_clock_hz if self.kind == "cuda" else self.base_clock_hz

    def peak_flops_per_second(self, dtype: str = "float32", num_cores: int | None = None) -> int:
        """Return the peak speed in `dtype`; 0: not known.

        Parameters
        ----------
        dtype
            "float32" or "float16"; for float16 the tensor cores count where there are any.
        num_cores
            Of a CPU: how many cores, also of several CPUs; None: those of one CPU.
        """
        if self.kind == "cuda":
            half = self.tensor_flops_per_second or self.fp16_flops_per_second
            return (dtype == "float16" and half) or self.fp32_flops_per_second or 0
        cores = self.num_units if num_cores is None else num_cores
        return (cores or 0) * (self.flops_per_cycle or 0) * (self.base_clock_hz or 0)


def find_device(name: str) -> DeviceFigures:
    """Return the figures of a device by its name, as a vendor, a driver or a system writes it.

    Raises
    ------
    ClusterError
        No such device is known; the nearest names are listed.

    >>> find_device("NVIDIA A100-SXM4-40GB").num_units
    108
    >>> find_device("Intel(R) Xeon(R) Gold 6132 CPU @ 2.60GHz").num_units
    14
    """
    exact = _by_name().get(_plain(name))
    if exact is not None:
        return exact
    names = {figures.name: _plain(figures.name) for figures in known_devices()}
    requested = _plain(name)
    near = [candidate for candidate, plain in names.items() if requested and requested in plain]
    if not near:
        closest = difflib.get_close_matches(requested, list(names.values()), _MAX_NEAR, 0.5)
        near = [candidate for candidate, plain in names.items() if plain in closest]
    listed = f"near it: {', '.join(near)}" if near else f"known: {', '.join(names)}"
    raise ClusterError(
        f"there are no figures of a device called {name!r}; {listed}. Give flops_per_second and "
        f"memory_bandwidth of the device in the cluster instead"
    )


def known_devices() -> tuple[DeviceFigures, ...]:
    """Return the figures of all known devices, in the order of the file."""
    return tuple(dict.fromkeys(_by_name().values()))


def figures_of(device: Device) -> DeviceFigures | None:
    """Return the figures that `device.model` names; None: it names no known device."""
    return _by_name().get(_plain(device.model)) if device.model else None


def fill_device(device: Device, dtype: str = "float32") -> Device:
    """Return `device` with the peak speeds of its model where it gives none of its own.

    A CPU device has the share of its cores in the speed, and the bandwidth of all the CPUs that so
    many cores make. Where the model is not known nothing is filled in.
    """
    figures = figures_of(device)
    if figures is None:
        return device
    num_cores = len(device.cores) or None
    flops, bandwidth = device.flops_per_second, device.memory_bytes_per_second
    if flops is None:
        flops = figures.peak_flops_per_second(dtype, num_cores) or None
    if bandwidth is None and figures.memory_bytes_per_second is not None:
        num_cpus = -(-(num_cores or 1) // figures.num_units) if figures.num_units else 1
        bandwidth = figures.memory_bytes_per_second * (num_cpus if figures.kind == "cpu" else 1)
    return replace(device, flops_per_second=flops, memory_bytes_per_second=bandwidth)


def device_figures_table() -> str:
    """Return the known devices with their main figures and sources, as text."""
    headers = ["device", "units", "clock", "fp32", "fp16", "memory", "bandwidth", "sources"]
    rows = []
    for each in known_devices():
        titles = dict.fromkeys(title for _, title in each.sources)
        rows.append(
            [
                each.name,
                str(each.num_units or "-"),
                _scaled(each.clock_hz, 10**6, "MHz"),
                _scaled(each.peak_flops_per_second(), 10**12, "TFLOP/s"),
                _scaled(each.peak_flops_per_second("float16"), 10**12, "TFLOP/s"),
                _scaled(each.memory_bytes, 10**9, "GB"),
                _scaled(each.memory_bytes_per_second, 10**9, "GB/s"),
                "; ".join(titles),
            ]
        )
    table: str = load_entry("heteroplace.report.tables:format_table")(headers, rows, "<>>>>>><")
    return table


def _scaled(value: int | None, unit: int, name: str) -> str:
    return f"{value / unit:.4g} {name}" if value else "-"


def _plain(name: str) -> str:
    """A name without makers' marks, blanks and signs, in small letters."""
    return re.sub(r"[^a-z0-9+]", "", _NOISE.sub(" ", name.casefold()))


@cache
def _by_name() -> dict[str, DeviceFigures]:
    """All devices by plain name and by plain alias."""
    content = json.loads(_FILE.read_text(encoding="utf-8"))
    numbers = {field.name for field in fields(DeviceFigures)} - {"compute_capability"}
    figures_by_name: dict[str, DeviceFigures] = {}
    for entry in content["devices"]:
        values: dict[str, int | str] = {}
        sources: list[tuple[str, str]] = []
        groups = list(entry["figures"])
        capability = next(
            (g["compute_capability"] for g in groups if "compute_capability" in g), ""
        )
        if capability:
            groups.append(
                {"document": content["capabilities"]["document"]}
                | content["capabilities"][capability]
            )
        for group in groups:
            for key, value in group.items():
                if key != "document":
                    values[key] = round(value) if key in numbers else value
                    sources.append((key, group["document"]))
        figures = DeviceFigures(
            entry["name"],
            entry["kind"],
            sources=tuple(sources),
            **values,  # type: ignore[arg-type]
        )
        for name in (entry["name"], *entry["aliases"]):
            figures_by_name[_plain(name)] = figures
    return figures_by_name
