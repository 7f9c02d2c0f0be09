"""A compiled network -> its `Verification`: seeded and given runs, beside the model's reference.

What is compared is the executable itself, run by our executor on the devices of its plan, with
the original ONNX file, run by onnxruntime. Where their outputs differ by more than rounding, the
node that makes the difference is looked for (`nodes.py`), and there is no executable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import tvm
from onnx import TensorProto

from heteroplace.errors import HeteroPlaceError, VerificationError
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster
from heteroplace.model.verification import InputDifference, Verification
from heteroplace.parts.onnx.prepare.onnx_load import all_nodes, true_inputs
from heteroplace.parts.onnx.prepare.onnx_source import OnnxSource
from heteroplace.parts.onnx.verify.nodes import compare_nodes
from heteroplace.parts.onnx.verify.reference import is_installed, reference_name, run_source
from heteroplace.parts.onnx.verify.tolerances import (
    Difference,
    Tolerance,
    choose_tolerance,
    compare,
    furthest_off,
)
from heteroplace.pipeline.low_precision import low_precision_text
from heteroplace.relay.expressions import element_types
from heteroplace.relay.module_source import InputSet
from heteroplace.relay.ranges.array_intervals import legal_arrays
from heteroplace.run.executor import Executor
from heteroplace.run.missing_devices import missing_devices

NO_SOURCE = (
    "the module does not say which ONNX model it came from: only what frontend.from_onnx imports "
    "can be compared, and not after verify='off'"
)

_MAX_COMPARED = 8
"""Items, or parts of a batch, that are compared; each is a run of onnxruntime."""
_QUANTISED_TYPES = frozenset({"int8", "uint8"})


def check_can_verify(
    verify: str, source: OnnxSource | None, cluster: Cluster, exclude: Sequence[str] = ()
) -> None:
    """Raise VerificationError if `verify="on"` is certain to fail, whatever the plan will be.

    Parameters
    ----------
    verify
        The option.
    source
        Where the module came from; None: it does not say.
    cluster
        Where it will be placed.
    exclude
        Devices that no plan uses.
    """
    if verify != "on":
        return
    reason = _missing(source)
    devices = [device.name for device in cluster.devices if device.name not in exclude]
    absent = missing_devices(cluster, devices)
    reason = reason or ("" if absent else _hosts_fault(cluster))
    if not reason and absent:
        reason = (
            f"devices of cluster {cluster.name!r} are not in this machine: {'; '.join(absent)}; "
            f"exclude them"
        )
    if reason:
        raise VerificationError(f"verify='on' cannot be done: {reason}; or give verify='auto'")


def verify_executable(
    executable: Executable,
    mod: tvm.IRModule,
    source: OnnxSource,
    verify: str,
    max_error: float,
    input_sets: Sequence[InputSet] = (),
) -> Verification:
    """Run an executable and compare its outputs with those of its ONNX model.

    Parameters
    ----------
    mod
        The neutral module that was compiled; its ops say what inputs are legal.
    source
        The model.
    verify
        "auto": where it cannot be done, the outcome says why; "on": that is an error.
    max_error
        The tolerance, relative to the largest value of an output, where the plan multiplies in less
        than float32.
    input_sets
        Inputs of other runs beside the seeded one.

    Raises
    ------
    VerificationError
        The outputs differ by more than the tolerance; the message names the first node that makes
        the difference. Or it was asked for, and cannot be done.
    """
    reason = _missing(source) or _absent(executable)
    if not reason:
        try:
            return _compared(executable, mod, source, max_error, input_sets)
        except _CannotCompare as fault:
            reason = str(fault)
    if verify == "on":
        raise VerificationError(f"verify='on' cannot be done: {reason}; or give verify='auto'")
    return Verification(note=reason)


class _CannotCompare(Exception):
    """There is no reference to compare with; the text says why."""


def _missing(source: OnnxSource | None) -> str:
    if source is None:
        return NO_SOURCE
    if not source.is_known:
        return "the model was in memory and has over 2 GiB; import it by the path of its file"
    return "" if is_installed() else "onnxruntime is not installed"


def _absent(executable: Executable) -> str:
    solution = executable.solution
    absent = missing_devices(solution.cluster, solution.devices_used)
    if not absent:
        return _hosts_fault(solution.cluster)
    return f"the plan needs devices that are not in this machine: {'; '.join(absent)}"


def _hosts_fault(cluster: Cluster) -> str:
    if len(cluster.hosts) == 1:
        return ""
    return (
        f"cluster {cluster.name!r} has {len(cluster.hosts)} hosts, and outputs are compared in one "
        f"process"
    )


def _compared(
    executable: Executable,
    mod: tvm.IRModule,
    source: OnnxSource,
    max_error: float,
    input_sets: Sequence[InputSet],
) -> Verification:
    num_items = executable.solution.plan.items
    seeded = [legal_arrays(mod["main"], seed) for seed in range(num_items)]
    outcomes = []
    # Meanwhile a process of its own computes the first reference.
    with ExitStack() as loaded, ThreadPoolExecutor(1) as pool:
        executor = pool.submit(_load, executable, source, loaded)
        comparison = _Comparison(executor, executable, mod, source, max_error)
        outcomes.append(comparison.outcome("", seeded))
        # Each item of a plan for several gets the same inputs.
        outcomes += [
            comparison.outcome(name, [dict(arrays)] * num_items) for name, arrays in input_sets
        ]
    names = [each.name for each in input_sets]
    worst = max(outcomes, key=lambda each: each.max_relative_difference)
    pairs = zip(names, outcomes[1:], strict=True)
    given = tuple(InputDifference(name, each.max_relative_difference) for name, each in pairs)
    return replace(worst, given_inputs=given)


def _load(executable: Executable, source: OnnxSource, loaded: ExitStack) -> Executor:
    """Load an executable whose model is as it was imported."""
    changed = source.changed_files()
    if changed:
        raise _CannotCompare(f"{', '.join(changed)} changed since it was imported; import it again")
    return loaded.enter_context(Executor(executable))


@dataclass(frozen=True)
class _Comparison:
    """An executable beside its model."""

    executor: Future[Executor]
    """Raises `_CannotCompare` where the model has changed."""
    executable: Executable
    mod: tvm.IRModule
    source: OnnxSource
    max_error: float

    def outcome(self, name: str, inputs: Sequence[dict[str, np.ndarray]]) -> Verification:
        """Compare one run on the inputs of its items; `name`: of the input set, "" if seeded."""
        source, executable = self.source, self.executable
        items = _parts_of_model(inputs, source)
        parts, references = self._outputs(items)
        tolerance = _tolerance(executable, self.mod, source)
        note = low = low_precision_text(executable.solution)
        if low:
            tolerance = replace(tolerance, relative=self.max_error)
        difference, index = furthest_off(parts, references, tolerance)
        if not difference.is_within and not low and _half_types(source):
            # The importer may have dropped casts to 16 bits that the reference makes.
            relative = choose_tolerance(_half_types(source), ()).relative
            tolerance = replace(tolerance, relative=relative)
            difference, index = furthest_off(parts, references, tolerance)
        where = f"model {source.path or 'in memory'}" + (f", on {name}" if name else "")
        if low and not difference.is_within:
            raise VerificationError(_too_coarse(where, difference, low, self.max_error))
        if not difference.is_within:
            note, difference = _explain(
                executable, source, where, items[index], parts[index], difference, tolerance
            )
        if not math.isfinite(difference.absolute):  # no figure says how far from infinity that is
            raise _CannotCompare(
                f"where one of the compiled network and {reference_name()} has infinities or NaN "
                f"the other has numbers{name and f' on {name}'}, and {note}"
            )
        return Verification(
            reference_name(),
            difference.absolute,
            difference.relative,
            tolerance.relative,
            note,
        )

    def _outputs(
        self, items: Sequence[dict[str, np.ndarray]]
    ) -> tuple[dict[int, list[np.ndarray]], dict[int, list[np.ndarray]]]:
        """The outputs of some items, by index, and those of the model."""
        flops = _flops(self.executable)
        compared = _spread(len(items), _MAX_COMPARED)
        try:
            references = {
                index: list(run_source(self.source, items[index], flops).values())
                for index in compared
            }
        except VerificationError as fault:
            self.executor.result()  # where the model has changed, that is the reason
            raise _CannotCompare(str(fault)) from fault
        together = items[0]  # a single number of one item is no axis of several
        if len(items) > 1:
            together = {name: np.concatenate([item[name] for item in items]) for name in items[0]}
        outputs = self.executor.result().run(together)
        parts = {
            index: [
                _item(output, reference, index, len(items))
                for output, reference in zip(outputs, references_of_item, strict=True)
            ]
            for index, references_of_item in references.items()
        }
        return parts, references


def _too_coarse(where: str, difference: Difference, low: str, max_error: float) -> str:
    return (
        f"{where}: {low}, and an output differs from "
        f"{reference_name()} by {difference.relative:.2g} of its largest value; "
        f"max_error={max_error:g} allows less. Give precision='auto', which keeps layers in "
        f"float32 where that is needed, or precision='float32', or a larger max_error"
    )


def _parts_of_model(
    items: Sequence[dict[str, np.ndarray]], source: OnnxSource
) -> list[dict[str, np.ndarray]]:
    """The inputs of items, cut into as many rows as the model takes, where it says how many."""
    rows = next((shape[0] for shape in _fixed_shapes(source) if shape and shape[0]), 0)
    parts = []
    for item in items:
        counts = {array.shape[0] if array.ndim else 0 for array in item.values()}
        count = counts.pop() // rows if rows and len(counts) == 1 else 1
        if count <= 1:
            parts.append(item)
            continue
        parts += [
            {name: array[part * rows : (part + 1) * rows] for name, array in item.items()}
            for part in range(count)
        ]
    return parts


def _fixed_shapes(source: OnnxSource) -> list[list[int]]:
    """The shapes of the model's inputs, 0 for what they leave open."""
    return [
        [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in true_inputs(source.graph_only().graph)
        if value.type.HasField("tensor_type")
    ]


def _spread(count: int, most: int) -> list[int]:
    """So many of `count` numbers at most, from the first to the last."""
    if count <= most:
        return list(range(count))
    return [number * (count - 1) // (most - 1) for number in range(most)]


def _item(output: np.ndarray, reference: np.ndarray, index: int, num_items: int) -> np.ndarray:
    """The part of an output of several items that is one item's, which has that reference."""
    if num_items == 1:  # another size is a difference
        return output
    pairs = enumerate(zip(output.shape, reference.shape, strict=False))
    axis = next((axis for axis, (many, one) in pairs if many != one), None)
    if axis is None or output.ndim != reference.ndim:
        return output
    size = reference.shape[axis]
    if output.shape[axis] != size * num_items:
        return output
    return output.take(range(index * size, (index + 1) * size), axis)


def _flops(executable: Executable) -> int:
    return sum(task.flops for task in executable.solution.graph.tasks)


def _half_types(source: OnnxSource) -> set[str]:
    """Return the types of 16-bit floating point among the weights of the model."""
    halves = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
    weights = source.graph_only().graph.initializer
    return {halves[tensor.data_type] for tensor in weights if tensor.data_type in halves}


def _tolerance(executable: Executable, mod: tvm.IRModule, source: OnnxSource) -> Tolerance:
    """The tolerance for all types of the network; a value that is rounded to 16 bits within a
    kernel is no tensor of the program."""
    dtypes = {tensor.dtype for tensor in executable.lowered.program.tensors}
    dtypes |= element_types(mod)
    if not dtypes & _QUANTISED_TYPES:  # then the model need not be read once more
        return choose_tolerance(dtypes, ())
    return choose_tolerance(dtypes, {node.op_type for node in all_nodes(source.graph_only().graph)})


def _explain(
    executable: Executable,
    source: OnnxSource,
    where: str,
    inputs: dict[str, np.ndarray],
    actual: Sequence[np.ndarray],
    difference: Difference,
    tolerance: Tolerance,
) -> tuple[str, Difference]:
    """Find the node that makes the difference, and raise; or say why there is no such node.

    Also return what then counts as the difference.
    """
    solution = executable.solution
    head = (
        f"{where}: the compiled network differs from {reference_name()} by "
        f"{difference.absolute:.2g}, {difference.relative:.2g} of the largest output (allowed "
        f"{tolerance.relative:.2g})"
    )
    try:
        nodes = compare_nodes(
            source,
            solution.cluster,
            solution.devices_used,
            inputs,
            tolerance,
            _flops(executable),
        )
    except HeteroPlaceError as fault:
        raise VerificationError(
            f"{head}; which node is wrong could not be found: {fault}"
        ) from fault
    if nodes.wrong is not None:
        raise VerificationError(
            f"{head}. The first node whose output differs is {nodes.wrong}. Express it by other "
            f"ops; or give verify='off', if the module or its weights were changed on purpose"
        )
    if nodes.settled is not None:
        settled = compare(actual, nodes.settled, tolerance)
        if settled.is_within:
            (node, reason), *_ = nodes.disputes.items()
            return f"{node} and what follows it excepted: {reason}", settled
    if difference.relative > nodes.moved.relative or difference.mean > nodes.moved.mean:
        raise VerificationError(
            f"{head}. Each node by itself agrees, and roundings of inputs and scales move "
            f"{reference_name()} by {nodes.moved.relative:.2g} only, so the "
            f"network as a whole was compiled wrongly, or it was changed after its import; in the "
            f"latter case give verify='off'"
        )
    return (
        f"each node agrees on equal inputs: the network makes rounding errors larger (roundings of "
        f"inputs and scales move {reference_name()} by {nodes.moved.relative:.2g})",
        difference,
    )
