"""The column *layer*: which nodes of the imported model a task came from."""

from __future__ import annotations

import pytest

from heteroplace.model.graph import Task
from heteroplace.report.layer_column import layer_label, without_empty_layers


@pytest.mark.parametrize(
    ("members", "label"),
    [
        ((), ""),
        (("nn.conv2d", "nn.relu"), ""),
        (("branch0.conv1:nn.conv2d",), "branch0.conv1"),
        (("a/conv:nn.conv2d", "a/conv:nn.bias_add", "a/relu:nn.relu"), "a/conv +1"),
    ],
)
def test_a_label_is_the_first_layer_and_the_number_of_others(
    members: tuple[str, ...], label: str
) -> None:
    assert layer_label([Task("conv2d.1", "nn.conv2d", members)]) == label


def test_the_column_is_left_out_where_no_task_has_a_layer() -> None:
    heads, rows, align = without_empty_layers(["task", "layer", "time"], [["a", "", "1"]], "<<>")
    assert (heads, rows, align) == (["task", "time"], [["a", "1"]], "<>")


def test_a_long_layer_keeps_its_end() -> None:
    layer = "model/encoder/block.7/attention/query/MatMul"
    _, rows, align = without_empty_layers(["layer", "time"], [[layer, "1"]], "<>")
    assert (rows, align) == ([["..." + layer[-25:], "1"]], "<>")
