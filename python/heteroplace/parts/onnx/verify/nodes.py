"""A network whose outputs are wrong -> the first node of its model that makes a difference.

The model is imported and compiled once more with the values of all its nodes as outputs, for each
kind of device that the plan uses. Among the nodes whose values differ from the reference's, one is
wrong if the reference, given our values of its inputs, does not give ours of its outputs: one that
only hands a difference on, or makes rounding larger, is not. Neither is one that onnxruntime itself
computes otherwise than the standard (`disputes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.numpy_helper import from_array, to_array

from heteroplace.errors import FrontendError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.plan_program import serial_program
from heteroplace.model.cluster import Cluster
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare.onnx_load import true_inputs
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node
from heteroplace.parts.onnx.prepare.onnx_source import MAX_BYTES, OnnxSource
from heteroplace.parts.onnx.prepare.onnx_tensors import serialised
from heteroplace.parts.onnx.verify.disputes import NodeRun, outputs_with, why_right
from heteroplace.parts.onnx.verify.reference import Values, run_each, run_model
from heteroplace.parts.onnx.verify.tolerances import Difference, Tolerance, compare
from heteroplace.relay.tasks.network import cut_network

_STATIC_OPS = frozenset({"Shape", "Size"})
"""Ops whose values are known without the values of their inputs, so nothing computes them."""
_SAME_VALUE_OPS = frozenset({"Dropout", "Identity"})

_NUM_ROUNDED_RUNS = 4
"""Runs of the reference with inputs moved otherwise, to see what rounding does."""
_MAX_ROUNDINGS = 32
"""Roundings by which inputs are moved: so many add up in sums, exp and tanh."""
_MAX_ROUNDINGS_OF_HALF = 4
"""Likewise of float16, whose sums are in float32."""

_SCALED = "Linear"
"""In the names of ops that read scales: `QuantizeLinear`, `QLinearConv` and others."""

_RUN_TOGETHER = 32
"""Nodes that the reference runs in one process."""


@dataclass(frozen=True)
class ComparedNodes:
    """What was found."""

    wrong: str | None
    """The first wrong node and how far it is off, in words; None: there is none."""
    moved: Difference
    """How far the reference's own outputs move when its inputs and scales move by some roundings:
    the largest of several runs. 0 where that is not looked at, since the rest decides."""
    disputes: Mapping[str, str]
    """Node -> why it is right though onnxruntime's outputs differ."""
    settled: Sequence[np.ndarray] | None
    """onnxruntime's outputs with ours in place of those nodes'; None: there are no such nodes."""


def compare_nodes(
    source: OnnxSource,
    cluster: Cluster,
    devices: Sequence[str],
    inputs: Values,
    tolerance: Tolerance,
    flops: int,
) -> ComparedNodes:
    """Compare the value of every node with the reference's.

    Parameters
    ----------
    devices
        Names of the devices of the plan.
    inputs
        Of the model.
    flops
        Of one run of it.

    Raises
    ------
    FrontendError
        The model cannot be imported with all values kept.
    VerificationError
        The reference does not take it.
    """
    model = source.load()
    if serialised(model, MAX_BYTES) is None:
        raise FrontendError("the model is too large to be passed to onnxruntime with other outputs")
    nodes = list(_computing_nodes(model))
    outputs = [output.name for output in model.graph.output]
    expected = run_model(_with_outputs(model, outputs, model.graph.node), inputs, flops)
    computing = [
        node for node in nodes if all(name in expected for name in filter(None, node.output))
    ]
    with_outputs = _with_outputs(model, outputs, computing)
    names = [output.name for output in with_outputs.graph.output]
    verdict = _Verdict()
    for device, values in _run_keeping_all(source, with_outputs, cluster, devices, inputs):
        ours = dict(zip(names, values, strict=True))
        compiled = values[: len(outputs)]
        all_values = {**expected, **inputs, **ours}
        verdict = _judge(model, nodes, ours, expected, all_values, tolerance, device)
        if verdict.wrong is not None:
            break
    settled, still = None, Difference(0.0, 0.0, True)
    disputes = {describe_node(node): reason for node, reason in verdict.right}
    if verdict.wrong is not None:
        return ComparedNodes(verdict.wrong, still, disputes, settled)
    if disputes:
        replaced = [node for node, _ in verdict.right]
        values_of = {name: ours[name] for node in replaced for name in node.output if name in ours}
        settled = outputs_with(model, values_of, replaced, inputs, flops)
        if compare(compiled, settled, tolerance).is_within:
            return ComparedNodes(None, still, disputes, settled)
    moved = _amplified_rounding(model, outputs, inputs, expected, tolerance, flops)
    return ComparedNodes(None, moved, disputes, settled)


def _amplified_rounding(
    model: ModelProto,
    outputs: Sequence[str],
    inputs: Values,
    expected: Values,
    tolerance: Tolerance,
    flops: int,
) -> Difference:
    """Return the furthest that roundings of inputs move the reference's outputs."""
    references = [expected[name] for name in outputs]
    runs = [
        compare(_rounded_outputs(model, outputs, inputs, seed, flops), references, tolerance)
        for seed in range(_NUM_ROUNDED_RUNS)
    ]
    return Difference(
        max(run.absolute for run in runs),
        max(run.relative for run in runs),
        all(run.is_within for run in runs),
        max(run.mean for run in runs),
    )


def _rounded_outputs(
    model: ModelProto, outputs: Sequence[str], inputs: Values, seed: int, flops: int
) -> list[np.ndarray]:
    """The reference's outputs with every floating-point input moved by some roundings, up or down.

    Scales move too, since they decide how values between two layers are rounded to integers. If no
    input is a float, weights move, but not constants: where all numbers of a tensor are equal they
    may be a pair that cancels, as in (x + c) - c.
    """
    random = np.random.default_rng(seed)

    def rounded(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        is_half = array.dtype == np.float16
        steps = random.choice([-1.0, 1.0], array.shape)
        steps *= _MAX_ROUNDINGS_OF_HALF if is_half else _MAX_ROUNDINGS
        with np.errstate(invalid="ignore", over="ignore"):
            moved = (array + steps * np.spacing(array)).astype(array.dtype)
        nearest: np.ndarray = np.where(np.isfinite(moved), moved, array)
        return nearest

    near = ModelProto()
    near.CopyFrom(model)
    moves_weights = all(value.dtype.kind != "f" for value in inputs.values())
    scales = {name for node in near.graph.node if _SCALED in node.op_type for name in node.input}
    for tensor in near.graph.initializer:
        if not moves_weights and tensor.name not in scales:
            continue
        weight = to_array(tensor)
        is_moved = tensor.name in scales or (weight.size and np.ptp(weight))
        if weight.dtype.kind == "f" and is_moved:
            tensor.CopyFrom(from_array(rounded(weight), tensor.name))
    given = {name: rounded(value) for name, value in inputs.items()}
    return list(run_model(near, given, flops, outputs).values())


def _with_outputs(
    model: ModelProto, outputs: Sequence[str], nodes: Sequence[NodeProto]
) -> ModelProto:
    """A model that also returns what some of its nodes compute."""
    result = ModelProto()
    result.CopyFrom(model)
    names = dict.fromkeys(name for node in nodes for name in node.output)
    more = [name for name in names if name and name not in outputs]
    result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    return result


def _computing_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """The nodes whose values depend on those of the inputs, in order."""
    computed = {value.name for value in true_inputs(model.graph)}
    for node in model.graph.node:
        if node.op_type in _STATIC_OPS or not computed & set(node.input):
            continue
        computed |= set(node.output)
        if node.op_type not in _SAME_VALUE_OPS:
            yield node


def _run_keeping_all(
    source: OnnxSource,
    model: ModelProto,
    cluster: Cluster,
    devices: Sequence[str],
    inputs: Values,
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The first device of each target, and the outputs of a model that runs on it alone."""
    shapes = dict(source.input_shapes)
    imported = from_onnx(model, input_shapes=shapes, simplify=source.simplify)
    network = cut_network(imported.mod, imported.params)
    compiled = CompiledNetwork.of(network)
    targets = set()
    for device in map(cluster.device_id, devices):
        if cluster.devices[device].target in targets:
            continue
        targets.add(cluster.devices[device].target)
        placement = [device] * len(network.graph.tasks)
        kernels = compiled.kernels(cluster, placement)
        executor = serial_program(kernels, network.graph, cluster, placement).executor
        for name, value in inputs.items():
            executor.set_input(name, value)
        executor.run()
        yield (
            cluster.devices[device].name,
            [executor.get_output(port.name) for port in executor.outputs],
        )


@dataclass
class _Verdict:
    """Which of the nodes that differ are wrong."""

    wrong: str | None = None
    """The first wrong one, in words."""
    right: list[tuple[NodeProto, str]] = field(default_factory=list)
    """Those that are right though onnxruntime's outputs differ, and why."""


def _judge(
    model: ModelProto,
    nodes: Sequence[NodeProto],
    ours: Values,
    expected: Values,
    all_values: Values,
    tolerance: Tolerance,
    device: str,
) -> _Verdict:
    """Look for the first node that gives wrong outputs for our values of its inputs."""
    differing = []
    for node in nodes:
        names = [name for name in node.output if name in ours]
        references = [expected[name] for name in names]
        difference = compare([ours[name] for name in names], references, tolerance)
        if not difference.is_within:
            differing.append((node, {name: ours[name] for name in names}, difference))
    verdict = _Verdict()
    for start in range(0, len(differing), _RUN_TOGETHER):
        group = differing[start : start + _RUN_TOGETHER]
        runs = _run_alone(model, [(node, actual) for node, actual, _ in group], all_values)
        for (node, actual, difference), run in zip(group, runs, strict=True):
            if run is not None and run.expected is not None:
                reference = [run.expected[name] for name in actual]
                difference = compare(list(actual.values()), reference, tolerance)
            if difference.is_within:
                continue
            reason = "" if run is None else why_right(run, tolerance)
            if not reason:
                verdict.wrong = (
                    f"{describe_node(node)}, on {device}: it is off by {difference.absolute:.2g}, "
                    f"{difference.relative:.2g} of its largest value"
                )
                return verdict
            verdict.right.append((node, reason))
    return verdict


def _run_alone(
    model: ModelProto, nodes: Sequence[tuple[NodeProto, Values]], all_values: Values
) -> list[NodeRun | None]:
    """What onnxruntime makes of our values of each node's inputs; None: they are not known."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    runs_of_nodes: list[NodeRun | None] = [None] * len(nodes)
    runs = []
    for index, (node, actual) in enumerate(nodes):
        read = [name for name in dict.fromkeys(node.input) if name]
        if all(name in all_values or name in constants for name in read):
            given = {name: all_values[name] for name in read if name in all_values}
            weights = [constants[name] for name in read if name not in all_values]
            runs.append((index, _alone(model, node, given, weights, list(actual)), given))
    outputs = run_each([(alone, given, list(nodes[index][1])) for index, alone, given in runs])
    for (index, alone, given), values in zip(runs, outputs, strict=True):
        node, actual = nodes[index]
        runs_of_nodes[index] = NodeRun(node, alone, given, actual, values)
    return runs_of_nodes


def _alone(
    model: ModelProto,
    node: NodeProto,
    given: Values,
    weights: Sequence[TensorProto],
    names: Sequence[str],
) -> ModelProto:
    """A model of one node."""
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in given.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph([node], "alone", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
