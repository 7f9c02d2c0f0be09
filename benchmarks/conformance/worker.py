"""A case -> equal, refused or wrong: imported, placed, built, run and compared with its outputs.

Two devices with a memory each share the tasks turn by turn, so that tensors are copied between
them. A process of its own does this for many cases; one that dies takes only its case with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from benchmarks.conformance.cases import Case
from heteroplace import HeteroPlace, build
from heteroplace.errors import HeteroPlaceError
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.onnx.imported_model import ImportedModel
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare.onnx_load import free_sizes, true_inputs
from heteroplace.parts.onnx.prepare.onnx_operands import inputs_read_at_import
from heteroplace.run.executor import Executor
from heteroplace.tvm_bridge import llvm_cpu_target

EQUAL, REFUSED, WRONG, CRASH, TOO_SLOW = "equal", "refused", "wrong", "crash", "too slow"
RESULTS = (EQUAL, REFUSED, WRONG, CRASH, TOO_SLOW)

Result = tuple[str, str]
"""One of RESULTS, and why or how."""

_MEMORY_BYTES = 2**32
_FAST_NS, _SLOW_NS = 1_000, 1_000_000
_SOLVER = "heft"
_WIDE = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}
"""How integers of 4 and 2 bits go into a compiled program and come out of it."""


def serve(connection: Connection, errors: str) -> None:
    """Answer each case that comes through `connection` by its result, until None comes.

    What goes to the standard error goes to the file `errors`, for the parent to read.
    """
    os.dup2(os.open(errors, os.O_WRONLY), 2)
    while (case := connection.recv()) is not None:
        connection.send(check_case(case))


def check_case(case: Case) -> Result:
    """Run one case; a fault that is no typed error of ours is a crash."""
    try:
        imported, frozen = _import_case(case)
        executor = Executor(_place_and_build(imported))
    except HeteroPlaceError as err:
        return REFUSED, f"{type(err).__name__}: {err}"
    faults = [
        fault
        for inputs, outputs in case.data_sets
        if (fault := _fault(executor, _named(case, inputs), outputs, case))
    ]
    if faults:
        return WRONG, faults[0]
    names = ", ".join(frozen)
    return EQUAL, f"inputs whose values the import needs were given to it: {names}" if names else ""


def _named(case: Case, values: Sequence[Any]) -> dict[str, Any]:
    names = [info.name for info in true_inputs(case.model.graph)]
    return dict(zip(names, values, strict=True))


def _import_case(case: Case) -> tuple[ImportedModel, tuple[str, ...]]:
    """Import the model with the values of inputs that its shapes and axes are made of."""
    frozen = inputs_read_at_import(case.model)
    given = _named(case, case.data_sets[0][0])
    # Not of sequences, which the import refuses.
    values = {name: np.asarray(given[name]) for name in frozen if not isinstance(given[name], list)}
    free = {info.name for info in true_inputs(case.model.graph) if free_sizes(info)}
    shapes = {
        name: value.shape
        for name, value in given.items()
        if isinstance(value, np.ndarray) and name in free - set(frozen)
    }
    return from_onnx(case.model, input_shapes=shapes, input_values=values), frozen


def _place_and_build(imported: ImportedModel) -> Executable:
    with tvm.transform.PassContext(opt_level=3):
        place = HeteroPlace(
            two_memories(),
            params=imported.params,
            costs=turn_by_turn,
            solver=_SOLVER,
            verify="off",
        )
        executable: Executable = build(place(imported.mod))
    return executable


def two_memories() -> Cluster:
    """Return a cluster of two devices of this machine, each with a memory of its own."""
    target = llvm_cpu_target()
    devices = tuple(Device(f"cpu.{n}", "cpu", target, n, n, (0,)) for n in range(2))
    links = (Link("there", 0, 1, 10**12, 1, "there"), Link("back", 1, 0, 10**12, 1, "back"))
    memories = tuple(Memory(f"ram.{n}", _MEMORY_BYTES) for n in range(2))
    return Cluster("two memories", memories, devices, links, 0)


def turn_by_turn(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return costs by which tasks are fast on one device and on the other in turn."""

    def cost(task: int, device: int) -> Cost:
        is_fast = (task + device) % len(cluster.devices) == 0
        return Cost.given(_FAST_NS if is_fast else _SLOW_NS)

    return build_table(graph, cluster, cost)


def _fault(
    executor: Executor, inputs: Mapping[str, Any], expected: Sequence[Any], case: Case
) -> str:
    """Run once; return how the outputs differ from `expected`, or "" if they do not."""
    accepted = {name for name, _, _ in executor.inputs}
    outputs = executor.run(
        {name: _wide(value) for name, value in inputs.items() if name in accepted}
    )
    outputs = [
        output.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else output
        for output, (_, _, dtype) in zip(outputs, executor.outputs, strict=True)
    ]
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for index, (actual, reference) in enumerate(zip(outputs, expected, strict=True)):
        expected_value = _wide(np.asarray(reference))
        if actual.dtype != expected_value.dtype or actual.shape != expected_value.shape:
            return (
                f"output {index} is {actual.dtype}{list(actual.shape)} instead of "
                f"{expected_value.dtype}{list(expected_value.shape)}"
            )
        if not _is_close(actual, expected_value, case):
            return f"output {index}: {_largest_difference(actual, expected_value)}"
    return ""


def _wide(value: Any) -> Any:
    """An array of narrow integers as a compiled program takes it; any other as it is."""
    wide = _WIDE.get(value.dtype.name) if isinstance(value, np.ndarray) else None
    return value if wide is None else value.astype(wide)


def _is_close(actual: np.ndarray, expected: np.ndarray, case: Case) -> bool:
    """Compare as the suite's own runner does, with one addition.

    An element may also differ by what one float32 is known to of the largest expected one: a sum
    that cancels to 2e-7 in the reference, which adds up in float32 as well, has no better value.
    """
    if np.array_equal(actual, expected):
        return True
    if expected.dtype.kind == "b" or not expected.size:
        return False
    wide = expected.astype(np.float64)
    largest = np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))
    of_largest = max(float(np.finfo(np.float32).eps), case.of_largest)
    rounding = 0.0 if expected.dtype.kind in "iu" else largest * of_largest
    atol = max(case.atol, rounding)
    return np.allclose(actual.astype(np.float64), wide, case.rtol, atol, equal_nan=True)


def _largest_difference(actual: np.ndarray, expected: np.ndarray) -> str:
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    place = np.unravel_index(int(np.argmax(np.nan_to_num(difference, nan=np.inf))), actual.shape)
    return f"{actual[place]} instead of {expected[place]} at {[int(axis) for axis in place]}"
