"""Products in bfloat16 on CPUs: the kernels against numpy, and networks against float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import (
    TARGET,
    conv,
    cores,
    cpu_cluster,
    module,
    random_costs,
    random_inputs,
    var,
    weights,
)
from tvm import relay, te

import heteroplace as hp
from heteroplace.bfloat16_bits import bfloat16_bits, rounded_to_bfloat16
from heteroplace.errors import SolverError
from heteroplace.lower.executable import Executable
from heteroplace.measure.kernel_variants import with_implementations
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import BFLOAT16, maker_of
from heteroplace.model.plan import Run
from heteroplace.parts.kernels.cpu import bfloat16_conv_op
from heteroplace.parts.kernels.cpu.grouped_matmul_op import BFLOAT16_MATMUL
from heteroplace.pipeline import precision_stage, prepare
from heteroplace.pipeline.error_budget import largest_error
from heteroplace.pipeline.rounded_network import switched, with_switches
from heteroplace.relay.targets import multiplies_bfloat16
from tests.short_measuring import short_measuring

pytestmark = pytest.mark.relay

HAS_BFLOAT16 = multiplies_bfloat16(tvm.target.Target(TARGET))
on_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="the processor has no AVX512-BF16")
VECTORS = "llvm -mcpu=cooperlake"
"""A target without AMX, which `test_amx.py` is about."""
EXACT = 1e-5
"""Of the largest value: sums of the same products in another order."""


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured costs go into a store of the test."""
    monkeypatch.setenv("HETEROPLACE_COSTS", str(tmp_path / "costs.sqlite"))


@pytest.mark.parametrize(
    ("number", "bits"),
    [
        (1.0, 0x3F80),
        (1.00390625, 0x3F80),  # half of the last place: to the even neighbour, downwards
        (1.01171875, 0x3F82),  # likewise, upwards
        (1.004, 0x3F81),  # more than half
        (-1.01, 0xBF81),
        (3.4e38, 0x7F80),
        (1e-40, 0x0001),
        (-0.0, 0x8000),
        (np.inf, 0x7F80),
        (-np.inf, 0xFF80),
    ],
)
def test_numbers_are_rounded_to_the_nearest(number: float, bits: int) -> None:
    assert bfloat16_bits(np.array([number], np.float32)).tolist() == [bits]


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001])
def test_a_nan_stays_one(bits: int) -> None:
    nan = np.array([bits], np.uint32).view(np.float32)
    assert np.isnan(rounded_to_bfloat16(nan)).all()


def run_kernel(
    tensors: Sequence[te.Tensor], schedule: te.Schedule, arrays: Sequence[np.ndarray]
) -> np.ndarray:
    kernel = tvm.build(schedule, list(tensors), tvm.target.Target(VECTORS))
    result = np.zeros([int(extent) for extent in tensors[-1].shape], np.float32)
    given = [tvm.nd.array(each) for each in (*arrays, result)]
    kernel(*given)
    stored: np.ndarray = given[-1].numpy()
    return stored


@on_bfloat16
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(2, 48, 4), (5, 70, 64), (17, 49, 34), (40, 100, 1024)]
)
def test_products_are_those_of_rounded_numbers(rows: int, columns: int, depth: int) -> None:
    random = np.random.default_rng(0)
    a, b = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((rows, depth), (columns, depth))
    )
    with tvm.target.Target(VECTORS):
        assert BFLOAT16_MATMUL.can_multiply(rows, columns, depth)
        panels = BFLOAT16_MATMUL.panels(b)
        left = te.placeholder(a.shape, "uint16", "a")
        right = te.placeholder(panels.shape, "uint16", "b")
        (product,) = BFLOAT16_MATMUL.compute({"columns": columns}, [left, right], None)
        schedule = BFLOAT16_MATMUL.schedule_grouped_matmul(None, [product], None)
        output = run_kernel((left, right, product), schedule, (bfloat16_bits(a), panels))
    wide_a, wide_b = (rounded_to_bfloat16(each).astype(np.float64) for each in (a, b))
    assert largest_error([output], [(wide_a @ wide_b.T).astype(np.float32)]) < EXACT


@on_bfloat16
@pytest.mark.parametrize("sizes", [(1, 48, 64), (5, 48, 7)])
def test_products_of_a_row_or_of_an_odd_depth_are_others(sizes: tuple[int, int, int]) -> None:
    with tvm.target.Target(VECTORS):
        assert not BFLOAT16_MATMUL.can_multiply(*sizes)


@on_bfloat16
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [16, 32])
@pytest.mark.parametrize("extent", [7, 41])
def test_convolutions_are_those_of_rounded_numbers(
    size: int, stride: int, channels: int, extent: int
) -> None:
    random = np.random.default_rng(1)
    data = random.standard_normal((1, 1, extent, extent, 16)).astype(np.float32)
    filters = random.standard_normal((channels // 16, 1, size, size, 16, 16)).astype(np.float32)
    pad = size // 2
    attrs = {"strides": [stride] * 2, "padding": [pad] * 4, "dilation": [1, 1]}
    with tvm.target.Target(VECTORS):
        pairs = bfloat16_conv_op.paired_filters(filters)
        left = te.placeholder(data.shape, "uint16", "data")
        right = te.placeholder(pairs.shape, "uint16", "filters")
        (result,) = bfloat16_conv_op._compute(attrs, [left, right], None)
        schedule = bfloat16_conv_op.schedule_bfloat16_conv(None, [result], None)
        output = run_kernel((left, right, result), schedule, (bfloat16_bits(data), pairs))
    expected = convolved(rounded_to_bfloat16(data), rounded_to_bfloat16(filters), stride, pad)
    assert largest_error([output], [expected]) < EXACT


def convolved(data: np.ndarray, filters: np.ndarray, stride: int, pad: int) -> np.ndarray:
    """By numpy, in 64 bits; one block of channels of the data."""
    size = filters.shape[2]
    padded = np.pad(data[0, 0].astype(np.float64), ((pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (0, 1))
    windows = windows[::stride, ::stride]
    sums = np.einsum("yxcij,oijcl->oyxl", windows, filters[:, 0].astype(np.float64))
    return sums[None].astype(np.float32)


def network() -> tvm.IRModule:
    """A convolution with what is fused behind it, a second one of the sum, and a dense layer."""
    x = var("x", (1, 3, 10, 10))
    first = relay.nn.relu(conv(x, 32, 3))
    second = relay.nn.relu(conv(first, 32, 32, kernel=1) + first)
    rows = relay.reshape(relay.transpose(second, (0, 2, 3, 1)), (100, 32))
    return module([x], relay.nn.dense(rows, weights(160, 32)))


def built(mod: tvm.IRModule, costs: object = random_costs, **options: object) -> Executable:
    with tvm.transform.PassContext(opt_level=3):
        return hp.build(mod, cpu_cluster(), costs=costs, solver="heft", **options)


def outputs(executable: Executable, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    with hp.Executor(executable) as executor:
        return [each.copy() for each in executor.run(inputs)]


@on_bfloat16
@pytest.mark.costly
def test_a_network_in_bfloat16_is_near_and_holds_smaller_weights() -> None:
    mod = network()
    inputs = random_inputs(mod)
    exact, low = (built(mod, precision=each) for each in ("float32", "bf16"))
    expected, rounded = outputs(exact, inputs), outputs(low, inputs)
    assert 1e-4 < largest_error(rounded, expected) < 2e-2
    assert rounded[0].dtype == np.float32
    assert outputs(low, inputs)[0].tobytes() == rounded[0].tobytes()
    weights_of = [
        sum(task.weight_bytes for task in each.solution.graph.tasks) for each in (exact, low)
    ]
    few_channels, others = 4 * 3 * 32 * 9, 4 * (32 * 32 + 32 * 160)
    assert weights_of == [few_channels + others, few_channels + others // 2]
    symbols = [str(kernel) for kernel in low.lowered.program.kernels]
    assert sum("bfloat16_conv2d" in symbol for symbol in symbols) == 2
    assert sum("bfloat16_matmul" in symbol for symbol in symbols) == 1


@on_bfloat16
@pytest.mark.costly
@pytest.mark.parametrize("places", ["0110", "1001", "0101"])
def test_values_between_memories_have_the_same_bits(places: str) -> None:
    mod, ids = network(), (*cores(), *cores())[:2]
    devices = tuple(Device(f"cpu.{n}", "cpu", TARGET, 0, n, (core,)) for n, core in enumerate(ids))
    memories = Memory("ram0", 2**33), Memory("ram1", 2**33)
    links = tuple(
        Link(f"{src}{dst}", src, dst, 10**9, 1_000, "bus") for src, dst in ((0, 1), (1, 0))
    )
    cluster = Cluster("two memories", memories, devices, links, 0)
    inputs, names = random_inputs(mod), [task.name for task in prepare(mod).graph.tasks]
    assert len(names) == len(places)

    def result(where: str) -> bytes:
        pin = {name: f"cpu.{place}" for name, place in zip(names, where, strict=True)}
        with tvm.transform.PassContext(opt_level=3):
            executable = hp.build(mod, cluster, costs=random_costs, precision="bf16", pin=pin)
        (output,) = outputs(executable, inputs)
        return output.tobytes()

    assert result(places) == result("0000")


def quick_in_bfloat16(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Costs by which the twins with bfloat16 kernels are quicker."""
    allowed = allowed_devices(graph, cluster)

    def cost(task: int, device: int) -> Cost:
        if device not in allowed[task]:
            return Cost.excluded("by the graph")
        is_low = maker_of(cluster.devices[device].name) == BFLOAT16
        return Cost.given(1_000 if is_low else 10_000)

    return build_table(graph, cluster, cost)


def low_tasks(executable: Executable) -> set[str]:
    """The ops of the tasks that run in bfloat16."""
    solution = executable.solution
    devices = solution.cluster.devices
    return {
        solution.graph.tasks[step.task].op
        for step in solution.plan.steps
        if isinstance(step, Run) and maker_of(devices[step.device].name) == BFLOAT16
    }


@on_bfloat16
@pytest.mark.costly
def test_layers_have_the_precision_that_the_last_pattern_gives() -> None:
    mod = network()
    inputs = random_inputs(mod)
    expected = outputs(built(mod), inputs)
    only = built(mod, quick_in_bfloat16, precision={"nn.conv2d": "bf16"})
    assert low_tasks(only) and all("conv2d" in op for op in low_tasks(only))
    assert 1e-4 < largest_error(outputs(only, inputs), expected) < 2e-2
    none = built(mod, quick_in_bfloat16, precision={"nn.*": "bf16", "*": "float32"})
    assert not low_tasks(none)
    assert outputs(none, inputs)[0].tobytes() == expected[0].tobytes()


@on_bfloat16
@pytest.mark.costly
def test_auto_takes_what_stays_within_the_error() -> None:
    mod = network()
    inputs = random_inputs(mod, seed=7)
    expected = outputs(built(mod), inputs)
    loose = built(mod, quick_in_bfloat16, precision="auto", max_error=0.1)
    assert len(low_tasks(loose)) > 1
    assert 1e-4 < largest_error(outputs(loose, inputs), expected) < 0.1
    tight = built(mod, quick_in_bfloat16, precision="auto", max_error=1e-6)
    assert not low_tasks(tight)
    assert outputs(tight, inputs)[0].tobytes() == expected[0].tobytes()


@on_bfloat16
@pytest.mark.costly(8)
@pytest.mark.usefixtures("own_store")
def test_layers_return_to_float32_where_costs_were_measured() -> None:
    # The first layer loses nothing in bfloat16, the second one does.
    x, exact_weights = var("x", (256, 512)), rounded_to_bfloat16(weights(512, 512).data.numpy())
    signs = relay.nn.dense(relay.sign(x), relay.const(exact_weights))
    mod = module([x], relay.nn.dense(relay.nn.relu(signs), weights(512, 512, seed=1)))
    inputs = random_inputs(mod)
    with short_measuring():
        exact, auto, loose = (
            built(mod, "measure", precision=precision, max_error=error)
            for precision, error in (("float32", 1.0), ("auto", 1e-4), ("auto", 0.1))
        )
    assert len(low_tasks(auto)) < 2
    assert largest_error(outputs(auto, inputs), outputs(exact, inputs)) < EXACT
    assert largest_error(outputs(loose, inputs), outputs(exact, inputs)) < 0.1


class FasterTogether:
    """Turns in which the plan with all bfloat16 kernels is the faster one."""

    def median_ns(self, name: str) -> int:
        return {"widest": 1, "solved": 2}[name]


@on_bfloat16
@pytest.mark.costly(8)
@pytest.mark.usefixtures("own_store")
def test_all_layers_that_may_are_in_bfloat16_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision_stage, "time_in_turns", lambda calls: FasterTogether())
    with short_measuring():
        auto = built(network(), "measure", precision="auto", max_error=0.1)
    whole = built(network(), quick_in_bfloat16, precision="auto", max_error=0.1)
    assert low_tasks(auto) == low_tasks(whole)


@pytest.mark.costly
def test_switches_round_the_products_of_their_tasks_alone() -> None:
    x, (first, second) = var("x", (8, 16)), (weights(16, 16), weights(4, 16, seed=1))
    mod = module([x], relay.nn.dense(relay.nn.softmax(relay.nn.dense(x, first)), second))
    network = prepare(mod)
    tasks = [task.name for task in network.graph.tasks if "dense" in task.op]
    assert len(tasks) == 2
    inputs = random_inputs(mod)
    executable = built(with_switches(network.mod, tasks))
    for switches in ([0, 0], [1, 0], [0, 1], [1, 1]):
        (output,) = outputs(executable, switched(inputs, switches))
        rounding = [rounded_to_bfloat16 if on else np.asarray for on in switches]
        products = rounding[0](inputs["x"]) @ rounding[0](first.data.numpy()).T
        middle = np.exp(products - products.max(-1, keepdims=True))
        middle = (middle / middle.sum(-1, keepdims=True)).astype(np.float32)
        expected = rounding[1](middle) @ rounding[1](second.data.numpy()).T
        assert largest_error([output], [expected]) < 1e-4


@on_bfloat16
def test_filters_times_a_gate_are_rounded_before_it() -> None:
    x, filters = var("x", (1, 32, 14, 14)), weights(48, 32)
    gate = relay.sigmoid(relay.nn.global_avg_pool2d(x))
    square = relay.reshape(filters, (48, 32, 1, 1))
    gated = relay.nn.conv2d(relay.multiply(x, gate), square, channels=48, kernel_size=(1, 1))
    mod = module([x], relay.nn.relu(relay.multiply(gated, relay.const(2.0))))
    with tvm.transform.PassContext(opt_level=3):
        network = prepare(mod)
        both, _ = with_implementations(network, cpu_cluster(), 1, ["bf16"])
    (task,) = (task for task in both.graph.tasks if "conv2d" in task.op)
    assert "cpu.0:bf16" in (task.devices or ())
    inputs = random_inputs(mod)
    (output,) = outputs(built(with_switches(network.mod, [task.name])), switched(inputs, [True]))
    gates = 1 / (1 + np.exp(-inputs["x"].mean((2, 3), keepdims=True)))
    data = rounded_to_bfloat16(inputs["x"]) * gates
    products = np.einsum("oc,nchw->nohw", rounded_to_bfloat16(filters.data.numpy()), data)
    assert largest_error([output], [np.maximum(2 * products, 0)]) < 1e-4


def test_a_cluster_without_the_instruction_is_refused() -> None:
    cluster = cpu_cluster()
    old = replace(
        cluster,
        devices=tuple(replace(each, target="llvm -mcpu=haswell") for each in cluster.devices),
    )
    for precision in ("bf16", {"nn.dense": "bf16"}):
        with pytest.raises(SolverError, match=r"AVX512-BF16.*found 'llvm -mcpu=haswell'"):
            hp.place(network(), old, costs=random_costs, precision=precision)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"precision": "bf8"}, r"'bf8'; expected one of float32, bf16, int8, auto"),
        ({"precision": {"a": "auto"}}, r"'auto' for 'a'; expected one of float32, bf16$"),
        ({"precision": "bf16", "max_error": 0}, "a ratio above 0"),
        ({"precision": "bf16", "kernels": "tvm"}, "exclude each other"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(SolverError, match=match):
        hp.place(network(), cpu_cluster(), costs=random_costs, **options)


@on_bfloat16
def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(SolverError, match="precision: no task matches encoder"):
        hp.place(network(), cpu_cluster(), costs=random_costs, precision={"encoder.*": "bf16"})
