"""Static cell flow: exact for the examples of its source, sound and exact by perturbation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from numpy_relay import executor_by_numpy
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.cell_analysis.cell_flow import CellLayout, Relation, cell_flow

pytestmark = pytest.mark.relay

ROWS = CellLayout((0,), (1,))
_RNG = np.random.default_rng(5)
Make = Callable[[relay.Var], relay.Expr]


def weight(*shape: int) -> relay.Constant:
    """A constant without zeros."""
    return relay.const(_RNG.uniform(0.5, 1.5, shape).astype("float32"))


def network(make: Make, shape: Sequence[int], dtype: str = "float32") -> tvm.IRModule:
    """One input x of a shape."""
    x = relay.var("x", shape=shape, dtype=dtype)
    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], make(x))))


def flow(mod: tvm.IRModule, cells: CellLayout, result: CellLayout) -> Relation:
    main = mod["main"]
    return cell_flow(main.body, {main.params[0]: cells}, result)


@pytest.mark.parametrize(
    ("matrix", "reached", "kind"),
    [
        ([[2, 0], [0, 3]], (0b01, 0b10), "keep"),
        ([[0, 1], [1, 0]], (0b10, 0b01), "reorder"),
        ([[1, 1], [1, -1]], (0b11, 0b11), "mix"),
    ],
)
def test_a_constant_matrix_keeps_reorders_or_mixes_by_its_zeros(
    matrix: list[list[int]], reached: tuple[int, ...], kind: str
) -> None:
    constant = relay.const(np.array(matrix, "float32"))
    found = flow(network(lambda x: relay.nn.matmul(constant, x), (2, 3)), ROWS, ROWS)
    assert found == Relation(reached, 2)
    assert found.kind == kind


def attention(x: relay.Expr) -> relay.Expr:
    """Softmax of the products of all rows, by itself."""
    scores = relay.nn.softmax(relay.nn.dense(relay.nn.dense(x, weight(4, 4)), x))
    return relay.nn.dense(scores, relay.transpose(x))


def test_attention_brings_all_tokens_together() -> None:
    found = flow(network(attention, (5, 4)), ROWS, ROWS)
    assert found.kind == "mix"
    assert found.groups() == ((0, 1, 2, 3, 4),)


def test_a_window_wider_than_its_stride_reaches_the_neighbours_and_no_further() -> None:
    patches = CellLayout((2, 3), (4, 4))  # 1 x 4 of them
    network_ = network(
        lambda x: relay.nn.conv2d(x, weight(2, 3, 3, 3), padding=(1, 1), kernel_size=(3, 3)),
        (1, 3, 4, 16),
    )
    assert flow(network_, patches, patches).reached == (0b0011, 0b0111, 0b1110, 0b1100)


def test_zeros_of_a_kernel_have_no_halo() -> None:
    kernel = np.zeros((2, 3, 3, 3), "float32")
    kernel[:, :, 1, :2] = 1  # the middle and its left
    patches = CellLayout((2, 3), (4, 4))
    network_ = network(
        lambda x: relay.nn.conv2d(x, relay.const(kernel), padding=(1, 1), kernel_size=(3, 3)),
        (1, 3, 4, 12),
    )
    assert flow(network_, patches, patches).reached == (0b001, 0b011, 0b110)


def test_what_only_some_channels_read_reaches_only_these() -> None:
    channels = CellLayout((1,), (1,))
    grouped = network(
        lambda x: relay.nn.conv2d(x, weight(4, 2, 1, 1), groups=2, kernel_size=(1, 1)),
        (1, 4, 3, 3),
    )
    assert flow(grouped, channels, channels).reached == (0b0011, 0b0011, 0b1100, 0b1100)
    depthwise = network(
        lambda x: relay.nn.conv2d(x, weight(4, 1, 3, 3), groups=4, kernel_size=(3, 3)),
        (1, 4, 5, 5),
    )
    assert flow(depthwise, channels, channels).kind == "keep"


def test_an_op_without_a_rule_mixes() -> None:
    found = flow(network(lambda x: relay.nn.lrn(x), (1, 4, 3, 3)), CellLayout((1,), (1,)),
                 CellLayout((1,), (1,)))  # fmt: skip
    assert found.reached == (0b1111,) * 4


def test_two_sources_count_their_cells_together_and_must_have_equally_many() -> None:
    x, y = relay.var("x", shape=(3, 2)), relay.var("y", shape=(3, 2))
    function = relay.Function([x, y], relay.add(x, relay.reverse(y, 0)))
    main = relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]
    sources = dict.fromkeys(main.params, ROWS)
    assert cell_flow(main.body, sources, ROWS).reached == (0b101, 0b010, 0b101)
    sources[main.params[1]] = CellLayout((1,), (1,))
    with pytest.raises(RoutingError, match=r"\[2, 3\] cells"):
        cell_flow(main.body, sources, ROWS)


OPS: dict[str, tuple[Make, tuple[int, ...], str]] = {
    "relu": (relay.nn.relu, (4, 6), "keep"),
    "dense": (lambda x: relay.nn.dense(x, weight(3, 6)), (4, 6), "keep"),
    "row softmax": (lambda x: relay.nn.softmax(x, axis=1), (4, 6), "keep"),
    "softmax of columns": (lambda x: relay.nn.softmax(x, axis=0), (4, 6), "mix"),
    "sum of columns": (lambda x: relay.sum(x, 0, keepdims=True), (4, 6), "mix"),
    "mean of rows": (lambda x: relay.mean(x, 1, keepdims=True), (4, 6), "keep"),
    "reverse": (lambda x: relay.reverse(x, 0), (4, 6), "reorder"),
    "take": (lambda x: relay.take(x, relay.const([2, 0, 0]), axis=0), (4, 6), "reorder"),
    "slice": (lambda x: relay.strided_slice(x, [1], [3], axes=[0]), (4, 6), "reorder"),
    "concatenate": (
        lambda x: relay.concatenate([relay.reverse(x, 0), x], 1),
        (4, 6),
        "mix",
    ),
    "joined rows": (lambda x: relay.reshape(x, (2, 12)), (4, 6), "mix"),
    "cumsum": (lambda x: relay.cumsum(x, axis=0), (4, 6), "mix"),
    "layer norm": (lambda x: relay.nn.layer_norm(x, weight(6), weight(6)), (4, 6), "keep"),
    "bias": (lambda x: relay.nn.bias_add(x, weight(6)), (4, 6), "keep"),
    "heads": (
        lambda x: relay.nn.batch_matmul(relay.reshape(x, (4, 2, 3)), weight(1, 5, 3)),
        (4, 6),
        "keep",
    ),
    "pool": (lambda x: relay.nn.max_pool2d(x, (2, 2), (2, 2)), (4, 1, 4, 4), "keep"),
    "pad": (lambda x: relay.nn.pad(x, ((1, 0), (0, 0))), (4, 6), "reorder"),
    "triangle": (lambda x: relay.trilu(x, relay.const(0), upper=False), (4, 6), "keep"),
    "transpose": (lambda x: relay.transpose(x), (4, 4), "mix"),
}


def changed_cells(mod: tvm.IRModule, shape: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """For each row of the result the rows of x that change it when they are changed."""
    run, rng = executor_by_numpy(mod), np.random.default_rng(seed)
    x = rng.uniform(0.1, 1, shape).astype("float32")
    (before,) = run({"x": x})
    found = [0] * len(before)
    for row in range(shape[0]):
        other = x.copy()
        other[row] = rng.uniform(1.1, 2, shape[1:])
        (after,) = run({"x": other})
        for place in range(len(before)):
            found[place] |= int((before[place] != after[place]).any()) << row
    return tuple(found)


@pytest.mark.parametrize("name", OPS)
def test_what_a_change_of_a_cell_reaches_is_the_relation(name: str) -> None:
    make, shape, kind = OPS[name]
    mod = network(make, shape)
    found = flow(mod, ROWS, ROWS)
    assert found.kind == kind
    for seed in range(3):
        changed = changed_cells(mod, shape, seed)
        assert all(
            seen & ~reached == 0 for seen, reached in zip(changed, found.reached, strict=True)
        )
        if kind != "mix":
            assert changed == found.reached


@pytest.mark.parametrize("first", ["reverse", "cumsum", "row softmax"])
@pytest.mark.parametrize("second", ["softmax of columns", "reverse", "layer norm", "cumsum"])
def test_composed_relations_are_that_of_the_composed_network(first: str, second: str) -> None:
    shape = (4, 6)
    one = network(OPS[first][0], shape)
    two = network(OPS[second][0], shape)
    both = network(lambda x: OPS[second][0](OPS[first][0](x)), shape)
    composed = flow(two, ROWS, ROWS).after(flow(one, ROWS, ROWS))
    assert composed == flow(both, ROWS, ROWS)


def test_relations_of_other_sizes_are_not_composed() -> None:
    with pytest.raises(ValueError, match="of 2 source cells comes after one of 3 result cells"):
        Relation((1, 2), 2).after(Relation((1, 2, 4), 3))


@pytest.mark.parametrize(
    ("shape", "layout", "text"),
    [
        ((4, 6), CellLayout((2,), (1,)), "axes \\(2,\\); expected one or more different axes"),
        ((4, 6), CellLayout((0,), (3,)), "axis 0 has 4, which cells of 3 do not fill"),
        ((4, 6), CellLayout((0,), (1, 5)), "axis 1 has 6 and cells have 5"),
        ((4, 6, 2), CellLayout((0,), (1, 6)), "a cell has 2 extents"),
    ],
)
def test_cells_that_do_not_fill_a_tensor_are_refused(
    shape: tuple[int, ...], layout: CellLayout, text: str
) -> None:
    with pytest.raises(RoutingError, match=text):
        layout.ids(shape)
