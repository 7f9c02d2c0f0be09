"""Measurements for the tests of the store: plain ones, and random ones of every awkward kind."""

from __future__ import annotations

from hypothesis import strategies as st

from heteroplace.costs.measurement import Conditions, Measurement
from heteroplace.costs.store_values import Row
from heteroplace.files.measurements import MAX_INTEGER, KernelKey, Note, date_text

NOON = "2026-01-31T12:00:00+00:00"
XEON = "Xeon 2.1 GHz x2"
LLVM = "llvm -keys=cpu -mcpu=skylake-avx512"
_YEAR_9999 = 253_402_300_799


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


# Few and short, so that rows share them; and awkward in SQL, in patterns and in JSON.
_names = st.sampled_from(["a", "A", "a b", "it's", "*", "[a]", '"\\', "%_", "é漢", "?"])
_labels = _names | st.just("")
_sizes = st.sampled_from([0, 1, 2**31, MAX_INTEGER]) | st.integers(0, MAX_INTEGER)
_counts = st.sampled_from([1, 2, MAX_INTEGER])
_dates = st.sampled_from([date_text(0), NOON, NOON.replace("+00:00", "Z"), date_text(_YEAR_9999)])
_sites = st.sampled_from([("hot", "", -1), ("cold", "", -1), ("in place", "d", 0)])


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """One row."""
    mode, network, site = draw(_sites)
    key = KernelKey(draw(_names), draw(_names), draw(_names), draw(_counts), 1, mode, network, site)
    wall_ns, flops = draw(_sizes), draw(_sizes)
    conditions = Conditions(
        draw(_dates), draw(_names), draw(st.none() | _sizes), draw(st.floats(0, 1e299))
    )
    work = (draw(_names), draw(_labels), flops, draw(_counts))
    return key, Measurement(wall_ns, flops, wall_ns, draw(_counts), *work, conditions)


unique_rows = st.lists(rows(), max_size=3, unique_by=lambda row: row[0])
notes = st.builds(Note, _names, _names, _names, _names, st.floats(-1e299, 1e299), _labels, _dates)
