"""`bench layouts`: convolutions in several layouts, and what changes from one to another take.

Of each network the convolutions of each kind (products of matrices, of stride 1, of other strides)
that have most operations, with what is added and clipped behind them:

- "blocks": the layout that networks have here, blocks of as many channels as a vector holds;
- "double": blocks of twice as many are made;
- "rows": elements of the map are the rows of a matrix, and the convolution is a product (filters of
  one element only);
- "planes": each channel lies by itself, and the convolution is the product the other way round.

A change is from planes to the layout that is read, and from the one that is made back to planes.
All kernels run alone on one core; times are of the processor, which others at work disturb less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace import pipeline
from heteroplace.bench.models.catalogue import Model, matching_models
from heteroplace.bench.peers.stock import in_pass_context
from heteroplace.bench.row_table import row_table
from heteroplace.bench.run.comparison import compile_once
from heteroplace.machine.local import local_cluster
from heteroplace.measure.options import ProfileOptions
from heteroplace.measure.profile import profile_network
from heteroplace.model.cluster import Cluster
from heteroplace.model.hosts import with_devices
from heteroplace.relay.expressions import is_op_call, post_order, static_shape
from heteroplace.relay.targets import device_target, float_lanes
from heteroplace.stage_log import StageLog

DEFAULT_MODELS = "^(resnet50|inception_v2|mobilenet_v3_large|efficientnet_b0|densenet121)$"
MOST_OF_A_KIND = {"product": 3, "stride 1": 1, "strided": 1}
"""Of a network, how many convolutions of each kind."""
_LAYOUTS = ("blocks", "double", "rows", "planes")
_MOVES = frozenset({"layout_transform", "transpose", "reshape"})


class Convolution(NamedTuple):
    """A convolution of one group."""

    data: tuple[int, ...]
    """[1, channels, height, width]."""
    weights: tuple[int, ...]
    """[out channels, channels, rows, columns]."""
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    result: tuple[int, ...]

    @property
    def products(self) -> int:
        """How many it sums up."""
        return int(np.prod(self.result) * np.prod(self.weights[1:]))

    @property
    def is_product(self) -> bool:
        """Whether it is a product of matrices: filters of one element, no stride, no padding."""
        return self.weights[2:] == (1, 1) and self.data[2:] == self.result[2:]

    @property
    def kind(self) -> str:
        """Of MOST_OF_A_KIND."""
        if self.is_product:
            return "product"
        return "stride 1" if set(self.strides) == {1} else "strided"


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    cluster = with_devices(local_cluster(has_gpus=False), [0])
    for model, tell in matching_models(only or DEFAULT_MODELS, say):
        for convolution, count in main_convolutions(model):
            tell(f"convolution {convolution.data[1:]} by {convolution.weights}")
            yield {"model": model.name, "count": count, **measured(convolution, cluster)}


def main_convolutions(model: Model) -> list[tuple[Convolution, int]]:
    """Return the distinct convolutions of each kind with most operations, and how often each is."""
    with in_pass_context():
        network = pipeline.prepare(model.mod, model.params, StageLog(lambda line: None))
    found: Counter[Convolution] = Counter()
    for node in post_order(network.mod["main"].body):
        if not is_op_call(node, "nn.conv2d") or int(node.attrs.groups) > 1:
            continue
        data, weights = (each.checked_type for each in node.args)
        if data.dtype == "float32" and all(int(each) == 1 for each in node.attrs.dilation):
            strides, padding = (
                tuple(map(int, each)) for each in (node.attrs.strides, node.attrs.padding)
            )
            shapes = static_shape(data), static_shape(weights)
            found[Convolution(*shapes, strides, padding, static_shape(node.checked_type))] += 1
    ordered = sorted(found.items(), key=lambda item: -item[0].products * item[1])
    return [
        item
        for kind, most in MOST_OF_A_KIND.items()
        for item in [each for each in ordered if each[0].kind == kind][:most]
    ]


def measured(convolution: Convolution, cluster: Cluster) -> dict[str, object]:
    """Return what a table shows of a convolution: microseconds by layout, and those of changes on
    both sides; None where there is no such form."""
    lanes = float_lanes(device_target(cluster.devices[0]))
    forms = _forms(convolution, lanes)
    about: dict[str, object] = {
        "map": "x".join(map(str, convolution.data[1:])),
        "filters": "x".join(map(str, convolution.weights)),
        "stride": convolution.strides[0],
    }
    changes: dict[str, float | None] = {}
    for layout in _LAYOUTS:
        times = _times(convolution, forms[layout], cluster) if layout in forms else []
        moves = sum(us for op, us in times if _MOVES.issuperset(op.split("+")))
        about[layout] = round(sum(us for _, us in times) - moves, 1) if times else None
        changes[f"change_{layout}"] = round(moves, 1) if times else None
    return about | changes


def _times(convolution: Convolution, body: relay.Expr, cluster: Cluster) -> list[tuple[str, float]]:
    """(op, microseconds of the processor) of each kernel call of a form."""
    (data,) = relay.analysis.free_vars(body)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([data], body)))
    model = Model("form", mod, {}, {"data": np.zeros(convolution.data, "float32")})
    with in_pass_context():
        compiled = compile_once(model, cluster)
        found = profile_network(compiled, cluster, ProfileOptions(is_in_place=False))
    return [(each.op, each.cpu_ns / 1e3) for each in found.measurements.values()]


def _forms(convolution: Convolution, lanes: int) -> dict[str, relay.Expr]:
    """The convolution with relu and bias behind it, planes in and out, by layout."""
    random = np.random.default_rng(0)

    def constant(*shape: int) -> relay.Constant:
        return relay.const(random.standard_normal(shape).astype("float32"))

    data = relay.var("data", shape=convolution.data)
    num_out, num_in, *kernel = convolution.weights
    _, _, height, width = convolution.result
    about = {
        "strides": convolution.strides,
        "padding": convolution.padding,
        "channels": num_out,
        "kernel_size": kernel,
    }
    made = relay.nn.conv2d(data, constant(*convolution.weights), **about)
    forms = {"blocks": _finished(made, constant(num_out, 1, 1))}
    wide = 2 * lanes
    if num_in % lanes == 0 and num_out % wide == 0:
        blocks = relay.layout_transform(data, "NCHW", f"NCHW{lanes}c")
        weights = constant(num_out // wide, num_in // lanes, *kernel, lanes, wide)
        layouts = {
            "data_layout": f"NCHW{lanes}c",
            "kernel_layout": f"OIHW{lanes}i{wide}o",
            "out_layout": f"NCHW{wide}c",
        }
        made = relay.nn.contrib_conv2d_nchwc(blocks, weights, **about, **layouts)
        made = _finished(made, constant(1, num_out // wide, 1, 1, wide))
        forms["double"] = relay.layout_transform(made, f"NCHW{wide}c", "NCHW")
    if convolution.is_product:
        rows = relay.reshape(relay.transpose(data, (0, 2, 3, 1)), (height * width, num_in))
        made = relay.nn.dense(rows, constant(num_out, num_in), units=num_out)
        made = relay.reshape(_finished(made, constant(num_out)), (1, height, width, num_out))
        forms["rows"] = relay.transpose(made, (0, 3, 1, 2))
        planes = relay.reshape(data, (1, num_in, height * width))
        made = relay.nn.batch_matmul(constant(1, num_out, num_in), planes, transpose_b=False)
        made = _finished(made, constant(1, num_out, 1))
        forms["planes"] = relay.reshape(made, (1, num_out, height, width))
    return forms


def _finished(value: relay.Expr, bias: relay.Constant) -> relay.Expr:
    return relay.nn.relu(relay.add(value, bias))


def table(rows: Iterable[dict[str, object]]) -> str:
    """Return the rows as text; times in microseconds."""
    return row_table(rows, num_names=1)
