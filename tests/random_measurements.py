"""Random measurements of every awkward kind, for the tests of the store.

Apart from the plain ones, which processes import that are to start quickly.
"""

from __future__ import annotations

from hypothesis import strategies as st

from heteroplace.costs.measurement import Conditions, Measurement
from heteroplace.costs.store_values import Row
from heteroplace.files.measurements import MAX_INTEGER, KernelKey, Note, date_text
from tests.measurements import NOON

_YEAR_9999 = 253_402_300_799

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
