"""Networks for NVIDIA's libraries: attention with dense layers, and a residual block."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
from convolution_programs import ConvolutionProgram
from tvm import relay

import heteroplace as hp
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.kernels.nvidia.cudnn_convolutions import Convolution
from heteroplace.parts.kernels.nvidia.libraries import LIBRARIES, Library
from tests.fake_cuda.build import CUBLAS, CUDNN
from tests.fake_cuda.case_networks import two_gpus
from tests.fake_cuda.control import FakeCuda

QUICK_NS, SLOW_NS = 1_000, 1_000_000
ROWS, WIDTH, HEADS = 6, 16, 2
CHANNELS, SIZE = 4, 6


def _random_weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype("float32") for shape in shapes]


_LAYERS = ((4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,))


def layers() -> tvm.IRModule:
    """Attention of two heads, then two dense layers, one with a relu."""
    first, first_bias, second, second_bias = map(relay.const, _random_weights(*_LAYERS))
    x = relay.var("x", shape=(ROWS, WIDTH), dtype="float32")
    heads = relay.transpose(relay.reshape(x, (ROWS, HEADS, WIDTH // HEADS)), (1, 0, 2))
    scores = relay.nn.softmax(relay.nn.batch_matmul(heads, heads))
    mixed = relay.nn.batch_matmul(scores, heads, transpose_b=False)
    y = relay.reshape(relay.transpose(mixed, (1, 0, 2)), (ROWS, WIDTH))
    hidden = relay.nn.relu(relay.nn.dense(y, first) + first_bias)
    return tvm.IRModule.from_expr(relay.nn.dense(hidden, second) + second_bias)


def layers_numbers(x: np.ndarray) -> np.ndarray:
    """What they compute, in float64."""
    weights = _random_weights(*_LAYERS)
    first, first_bias, second, second_bias = (each.astype("float64") for each in weights)
    heads = x.astype("float64").reshape(ROWS, HEADS, -1).transpose(1, 0, 2)
    scores = np.exp(heads @ heads.transpose(0, 2, 1))
    scores /= scores.sum(axis=-1, keepdims=True)
    y = (scores @ heads).transpose(1, 0, 2).reshape(ROWS, WIDTH)
    return np.asarray(np.maximum(y @ first.T + first_bias, 0) @ second.T + second_bias)


def feed_forward() -> tvm.IRModule:
    """Two dense layers of a transformer: a GELU by erf behind the first, then what was read."""
    first, first_bias, second, second_bias = map(relay.const, _random_weights(*_LAYERS))
    x = relay.var("x", shape=(1, ROWS, WIDTH), dtype="float32")
    inner = relay.nn.dense(relay.reshape(x, (ROWS, WIDTH)), first) + first_bias
    inner = relay.reshape(inner, (1, ROWS, 4 * WIDTH))
    half = relay.const(0.5) * inner
    hidden = half * (relay.const(1.0) + relay.erf(inner * relay.const(2**-0.5)))
    outer = relay.nn.dense(relay.reshape(hidden, (ROWS, 4 * WIDTH)), second) + second_bias
    return tvm.IRModule.from_expr(relay.reshape(outer, (1, ROWS, WIDTH)) + x)


def feed_forward_numbers(x: np.ndarray) -> np.ndarray:
    """What they compute, in float64."""
    weights = _random_weights(*_LAYERS)
    first, first_bias, second, second_bias = (each.astype("float64") for each in weights)
    inner = x.astype("float64") @ first.T + first_bias
    hidden = inner / 2 * (1 + np.vectorize(math.erf)(inner * 2**-0.5))
    return np.asarray(hidden @ second.T + second_bias + x)


_FILTERS = (CHANNELS, CHANNELS, 3, 3)
_BLOCK = (_FILTERS, (CHANNELS,), _FILTERS, (CHANNELS,), (5, CHANNELS))


def block() -> tvm.IRModule:
    """A residual block, average and dense layer, as in ResNet."""
    first, first_bias, second, second_bias, dense = map(relay.const, _random_weights(*_BLOCK))
    x = relay.var("x", shape=(1, CHANNELS, SIZE, SIZE), dtype="float32")
    steps = {"padding": (1, 1), "channels": CHANNELS, "kernel_size": (3, 3)}
    inner = relay.nn.relu(relay.nn.bias_add(relay.nn.conv2d(x, first, **steps), first_bias))
    outer = relay.nn.bias_add(relay.nn.conv2d(inner, second, **steps), second_bias)
    pooled = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(relay.nn.relu(outer + x)))
    return tvm.IRModule.from_expr(relay.nn.dense(pooled, dense))


def block_numbers(x: np.ndarray) -> np.ndarray:
    """What it computes, in float64."""
    first, first_bias, second, second_bias, dense = _random_weights(*_BLOCK)
    steps = ((3, 3), (1, 1), (1, 1), (1, 1), 1)
    kernel = Convolution(x.shape, CHANNELS, *steps, 0, 1, 2, None, "relu")
    inner = ConvolutionProgram(kernel, []).expected({0: x, 1: first, 2: first_bias})
    kernel = Convolution(x.shape, CHANNELS, *steps, 0, 1, 2, 3, "relu")
    outer = ConvolutionProgram(kernel, []).expected({0: inner, 1: second, 2: second_bias, 3: x})
    return np.asarray(outer.mean(axis=(2, 3)) @ dense.T.astype("float64"))


@dataclass(frozen=True)
class NetworkCase:
    """A library and a network that has kernels for it."""

    library: Library
    module: Callable[[], tvm.IRModule]
    numbers: Callable[[np.ndarray], np.ndarray]
    """What the module computes, in float64."""
    shape: tuple[int, ...]
    """Of the input."""
    num_kernels: int
    """Of the library."""
    computing: str
    """The function that computes."""
    looking: str
    """The function that offers algorithms."""
    others: str
    """Where the fakes of the other libraries are."""
    file: str
    """The library's."""

    @property
    def option(self) -> str:
        """Of a placement."""
        return self.library.option

    @property
    def twin(self) -> str:
        """The device with its kernels."""
        return f"gpu0:{self.option}"

    def build(self, *devices: str, precision: str = "float32", **options: object) -> hp.Executable:
        """Build the network; what may run on one of some devices runs there."""
        options = {self.option: precision, "store": "off", **options}
        with tvm.transform.PassContext(opt_level=3):
            costs = quick_on(*(devices or (self.twin,)))
            return hp.build(self.module(), two_gpus(), costs=costs, solver="heft", **options)

    def input(self, seed: int) -> np.ndarray:
        """A random input."""
        return np.random.default_rng(seed).standard_normal(self.shape).astype("float32")

    def error_of(self, executor: hp.Executor, fake: FakeCuda) -> float:
        """The largest difference of three runs, of the largest number."""
        errors = []
        for x in map(self.input, range(3)):
            with fake.running():
                (output,) = executor.run(x=x)
            errors.append(np.abs(output - self.numbers(x)).max() / np.abs(self.numbers(x)).max())
        return float(max(errors))


NETWORKS = [
    NetworkCase(
        LIBRARIES["cublas"],
        layers,
        layers_numbers,
        (ROWS, WIDTH),
        4,
        "cublasLtMatmul",
        "cublasLtMatmulAlgoGetHeuristic",
        str(CUDNN),
        "libcublasLt.so.12",
    ),
    NetworkCase(
        LIBRARIES["cudnn"],
        block,
        block_numbers,
        (1, CHANNELS, SIZE, SIZE),
        2,
        "cudnnConvolutionBiasActivationForward",
        "cudnnGetConvolutionForwardAlgorithm_v7",
        str(CUBLAS),
        "libcudnn.so.9",
    ),
]

FEED_FORWARD = replace(
    NETWORKS[0],
    module=feed_forward,
    numbers=feed_forward_numbers,
    shape=(1, ROWS, WIDTH),
    num_kernels=2,
)
"""Of whose first layer the library computes what is before the GELU."""

all_networks = pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.option)
"""Gives a test each network as `case`."""
one_network = pytest.mark.parametrize("case", NETWORKS[:1], ids=lambda case: case.option)
"""For what no library has a part in."""


def quick_on(*names: str) -> Callable[[TaskGraph, Cluster], CostTable]:
    """Costs by which all that may run on some devices is quick there, and next quick on gpu0."""

    def costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
        allowed = allowed_devices(graph, cluster)

        def cost(task: int, index: int) -> Cost:
            if index not in allowed[task]:
                return Cost.excluded("by the graph")
            name = cluster.devices[index].name
            quick = QUICK_NS if name in names else SLOW_NS if name == "gpu0" else 4 * SLOW_NS
            return Cost.given(quick)

        return build_table(graph, cluster, cost)

    return costs
