"""only_rows: a part of the kernel calls that runs alone."""

from __future__ import annotations

import numpy as np
import pytest

from heteroplace.codegen.kernels import Row, Rows, Value
from heteroplace.measure.kernel_calls import only_rows

pytestmark = pytest.mark.relay

SHAPE = (4,)


def network() -> Rows:
    """Two calls in a row, the second one on a reshape of the result and of a weight."""
    values = (
        Value(SHAPE, "float32", input_name="x"),
        Value(SHAPE, "float32", constant=np.ones(SHAPE, "float32")),
        Value(SHAPE, "float32"),
        Value((2, 2), "float32", alias_of=2),
        Value((2, 2), "float32", alias_of=1),
        Value((2, 2), "float32"),
    )
    calls = (Row("first", 0, "a", (0, 1), (2,)), Row("second", 0, "b", (3, 4), (5,)))
    return Rows(values, calls, (5,), {})


def inputs(rows: Rows) -> set[int]:
    return {index for index, value in enumerate(rows.values) if value.input_name is not None}


def test_what_others_write_is_an_input_in_the_shape_in_which_it_is_read() -> None:
    whole = network()
    part = only_rows(whole, whole.rows[1:])
    assert part.rows == whole.rows[1:]
    assert inputs(part) == {3}
    assert (part.values[3].shape, part.values[3].alias_of) == ((2, 2), None)


def test_a_reshaped_weight_stays_a_weight() -> None:
    part = only_rows(network(), network().rows[1:])
    assert part.values[4].alias_of == 1
    assert part.values[1].constant is not None


def test_all_rows_read_what_the_model_reads_and_have_no_results() -> None:
    whole = network()
    part = only_rows(whole, whole.rows)
    assert inputs(part) == inputs(whole)
    assert part.outputs == ()
