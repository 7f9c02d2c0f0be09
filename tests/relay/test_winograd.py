"""Convolutions by Winograd's algorithm: near the sums of float64, whatever divides their sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from numpy_relay import run_by_numpy
from relay_models import TARGET, conv, cpu_cluster, module, random_inputs, var, weights
from tvm import autotvm, relay
from tvm.contrib import graph_executor

import heteroplace as hp
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.kernels.cpu.own_schedules import register_schedules
from heteroplace.parts.kernels.cpu.winograd_forms import FORMS
from heteroplace.parts.kernels.cpu.winograd_op import WINOGRAD_OP, spread_filters, winograd
from heteroplace.parts.kernels.rewrites.winograd import Winograd
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.targets import kernel_target
from tests.strategies import exact_cases

pytestmark = pytest.mark.relay

Array = np.ndarray


def by_winograd(
    data: Array, filters: Array, tile: int, padding: tuple[int, ...], lanes: int, beside: Array
) -> Array:
    """relu(convolution + beside) by the op, of arrays that are not in blocks of channels."""
    n, channels, height, width = data.shape
    blocks, num_out = channels // lanes, len(filters)
    blocked = filters.reshape(num_out // lanes, lanes, blocks, lanes, 3, 3)
    blocked = np.ascontiguousarray(blocked.transpose(0, 2, 4, 5, 3, 1))
    with tvm.target.Target(TARGET):
        spread = spread_filters(blocked, tile, *beside.shape[2:])
    x, y = var("x", (n, blocks, height, width, lanes)), var("y", _in_blocks(beside, lanes).shape)
    made = winograd(x, relay.const(spread), tile, padding)
    mod = module([x, y], relay.nn.relu(relay.add(made, y)))
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=TARGET)
    running = graph_executor.GraphModule(library["default"](tvm.cpu()))
    running.run(x=_in_blocks(data, lanes), y=_in_blocks(beside, lanes))
    found = running.get_output(0).numpy()
    return found.transpose(0, 1, 4, 2, 3).reshape(beside.shape)


def _in_blocks(array: Array, lanes: int) -> Array:
    n, _, *size = array.shape
    return np.ascontiguousarray(array.reshape(n, -1, lanes, *size).transpose(0, 1, 3, 4, 2))


def expected_of(data: Array, filters: Array, padding: tuple[int, ...], beside: Array) -> Array:
    """The same in 64 bits."""
    above, left, below, right = padding
    padded = np.pad(data.astype("float64"), ((0, 0), (0, 0), (above, below), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.maximum(np.einsum("nchwij,ocij->nohw", windows, filters) + beside, 0)


@pytest.mark.costly
@given(
    seed=st.integers(0, 2**16),
    tile=st.sampled_from(sorted(FORMS)),
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    blocks=st.tuples(*[st.integers(1, 6)] * 2),
    batch=st.integers(1, 2),
    lanes=st.sampled_from([8, 16]),
)
@exact_cases(6)
def test_convolutions_of_any_shape_are_those_of_numpy(
    seed: int,
    tile: int,
    size: tuple[int, int],
    padding: tuple[int, ...],
    blocks: tuple[int, int],
    batch: int,
    lanes: int,
) -> None:
    random = np.random.default_rng(seed)
    channels, num_out = (lanes * each for each in blocks)
    height, width = (max(each, 3) for each in size)
    made = height + padding[0] + padding[2] - 2, width + padding[1] + padding[3] - 2
    data = random.standard_normal((batch, channels, height, width)).astype("float32")
    filters = random.standard_normal((num_out, channels, 3, 3)).astype("float32")
    beside = random.standard_normal((batch, num_out, *made)).astype("float32")
    found = by_winograd(data, filters, tile, padding, lanes, beside)
    expected = expected_of(data, filters, padding, beside)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.costly
@pytest.mark.parametrize("tile", sorted(FORMS))
def test_an_item_is_the_same_in_each_batch(tile: int) -> None:
    random = np.random.default_rng(tile)
    data = random.standard_normal((3, 32, 11, 14)).astype("float32")
    filters = random.standard_normal((48, 32, 3, 3)).astype("float32")
    beside = random.standard_normal((3, 48, 11, 14)).astype("float32")
    whole = by_winograd(data, filters, tile, (1, 1, 1, 1), 16, beside)
    alone = by_winograd(data[1:2], filters, tile, (1, 1, 1, 1), 16, beside[1:2])
    assert alone.tobytes() == whole[1:2].tobytes()


@pytest.mark.costly
def test_an_infinity_reaches_the_tiles_that_see_it_and_nothing_else() -> None:
    random, tile = np.random.default_rng(0), 4
    data = np.repeat(random.standard_normal((1, 32, 16, 16)).astype("float32"), 2, axis=0)
    data[0, 3, 7, 8] = np.inf
    filters = random.standard_normal((32, 32, 3, 3)).astype("float32")
    beside = np.zeros((2, 32, 16, 16), "float32")
    with_it, without = by_winograd(data, filters, tile, (1, 1, 1, 1), 16, beside)
    seeing = np.zeros((16, 16), bool)
    seeing[4:12, 4:12] = True  # row 7 is seen from row 8 too, column 8 from column 7
    assert (with_it[:, seeing] != without[:, seeing]).any()
    assert with_it[:, ~seeing].tobytes() == without[:, ~seeing].tobytes()


@pytest.mark.parametrize("tile", sorted(FORMS))
def test_transforms_make_sums_of_three_products(tile: int) -> None:
    form, random = FORMS[tile], np.random.default_rng(tile)
    line, factors = random.standard_normal(form.seen), random.standard_normal(3)
    matrix = form.filters(np.multiply.outer(factors, [0.0, 0.0, 1.0]))[:, -1]
    found = form.gathered(np.multiply(matrix, form.spread(line)))
    expected = np.convolve(line, factors[::-1], "valid")
    np.testing.assert_allclose([float(each) for each in found], expected, atol=1e-5)


def two_convolutions() -> tvm.IRModule:
    """With a bias, a sum and relus behind them, of a map that has two readers."""
    x = var("x", (1, 32, 20, 22))
    first = relay.nn.relu(relay.add(conv(x, 32, 32), weights(32, 1, 1)))
    return module([x], relay.nn.relu(relay.add(conv(first, 32, 32), first)))


def test_the_pass_takes_what_is_known_ahead_and_large_enough() -> None:
    register_schedules()
    x, filters = var("x", (1, 32, 20, 22)), var("w", (32, 32, 3, 3))
    sizes = {"channels": 32, "kernel_size": (3, 3)}
    bodies = {
        4: conv(x, 32, 32),
        2: conv(relay.nn.max_pool2d(x, (2, 2), strides=(2, 2)), 32, 32),
        0: conv(conv(x, 16, 32), 16, 16),
        -1: relay.nn.conv2d(x, weights(32, 32, 3, 3), strides=(2, 2), **sizes),
        -2: relay.nn.conv2d(x, filters, **sizes),
    }
    found = {tile: tiles_of(body) for tile, body in bodies.items()}
    assert found == {4: [4], 2: [2], 0: [], -1: [], -2: []}


def tiles_of(body: relay.Expr) -> list[int]:
    """Of the convolutions for which the pass takes the algorithm."""
    with kernel_target(tvm.target.Target(TARGET)), tvm.transform.PassContext(opt_level=3):
        passes = [relay.transform.AlterOpLayout(), relay.transform.FoldConstant()]
        passes += [relay.transform.InferType(), Winograd({}), relay.transform.InferType()]
        mod = tvm.transform.Sequential(passes)(module(relay.analysis.free_vars(body), body))
    calls = [node for node in post_order(mod["main"].body) if is_op_call(node, WINOGRAD_OP)]
    return [int(call.attrs["tile"]) for call in calls]


def test_what_a_user_tuned_stays() -> None:
    register_schedules()
    body = conv(var("x", (1, 32, 20, 20)), 32, 32)
    splits = {"tile_ic": 16, "tile_oc": 16, "tile_ow": 4}
    entity = [[name, "sp", [-1, size]] for name, size in splits.items()]
    entity.append(["unroll_kw", "ot", True])
    record = {"index": 0, "code_hash": None, "entity": entity}
    assert tiles_of(body) == [4]
    with autotvm.task.ApplyConfig(autotvm.task.space.ConfigEntity.from_json_dict(record)):
        assert tiles_of(body) == []


@pytest.mark.costly
def test_networks_are_the_same_on_one_core_and_on_two_and_near_float64() -> None:
    mod = two_convolutions()
    inputs = random_inputs(mod)
    (expected,) = run_by_numpy(
        mod, {name: array.astype("float64") for name, array in inputs.items()}
    )
    found = []
    for device in cpu_cluster().devices[::2]:
        cluster = replace(cpu_cluster(), devices=(device,))
        with tvm.transform.PassContext(opt_level=3):
            built = hp.build(mod, cluster, costs=equal_costs, solver="heft")
        (output,) = hp.Executor(built).run(**inputs)
        assert np.abs(output - expected).max() <= 1e-5 * np.abs(expected).max()
        found.append(output.tobytes())
    assert found[0] == found[1]


def equal_costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
    return build_table(graph, cluster, lambda _task, _device: Cost.given(1000))
