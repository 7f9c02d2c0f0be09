"""Measurements for the tests of the store; see `tests.random_measurements` for awkward ones."""

from __future__ import annotations

from heteroplace.costs.measurement import Conditions, Measurement
from heteroplace.costs.store_values import Row
from heteroplace.files.measurements import KernelKey, Note

NOON = "2026-01-31T12:00:00+00:00"
XEON = "Xeon 2.1 GHz x2"
LLVM = "llvm -keys=cpu -mcpu=skylake-avx512"


def row(
    number: int = 0,
    wall_ns: int = 1000,
    measured_at: str = NOON,
    *,
    op: str = "nn.dense+add",
    target: str = LLVM,
    device: str = XEON,
    threads: int = 1,
    batch: int = 1,
    site: int = -1,
) -> Row:
    """The measurement of kernel `number`; in place if it has a site."""
    mode, network = ("hot", "") if site < 0 else ("in place", "d1")
    key = KernelKey(f"{number:016x}", target, device, threads, batch, mode, network, site)
    shapes = f"float32[1,{number}] int8[7,{number}] -> float32[1,7]"
    conditions = Conditions(measured_at, "0.17.dev0", 120, 0.25)
    return key, Measurement(wall_ns, 10, 990, 20, op, shapes, 14 * number, 4 * number, conditions)


def note(value: float = 812.5, measured_at: str = NOON, subject: str = "ram->gpu0") -> Note:
    """The latency of a link."""
    return Note("link", subject, XEON, "latency", value, "ns", measured_at)
