"""only_calls: a part of the kernel calls that runs alone."""

from __future__ import annotations

import numpy as np
import pytest

from heteroplace.lower.kernels import KernelCall, KernelCalls, Value
from heteroplace.measure.kernels.kernel_calls import only_calls

pytestmark = pytest.mark.relay

SHAPE = (4,)


def network() -> KernelCalls:
    """Two calls in a call, the second one on a reshape of the result and of a weight."""
    values = (
        Value(SHAPE, "float32", input_name="x"),
        Value(SHAPE, "float32", constant=np.ones(SHAPE, "float32")),
        Value(SHAPE, "float32"),
        Value((2, 2), "float32", alias_of=2),
        Value((2, 2), "float32", alias_of=1),
        Value((2, 2), "float32"),
    )
    calls = (KernelCall("first", 0, "a", (0, 1), (2,)), KernelCall("second", 0, "b", (3, 4), (5,)))
    return KernelCalls(values, calls, (5,), {})


def inputs(calls: KernelCalls) -> set[int]:
    return {index for index, value in enumerate(calls.values) if value.input_name is not None}


def test_what_others_write_is_an_input_in_the_shape_in_which_it_is_read() -> None:
    whole = network()
    part = only_calls(whole, whole.calls[1:])
    assert part.calls == whole.calls[1:]
    assert inputs(part) == {3}
    assert (part.values[3].shape, part.values[3].alias_of) == ((2, 2), None)


def test_a_reshaped_weight_stays_a_weight() -> None:
    part = only_calls(network(), network().calls[1:])
    assert part.values[4].alias_of == 1
    assert part.values[1].constant is not None


def test_all_rows_read_what_the_model_reads_and_have_no_results() -> None:
    whole = network()
    part = only_calls(whole, whole.calls)
    assert inputs(part) == inputs(whole)
    assert part.outputs == ()
