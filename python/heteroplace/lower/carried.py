"""Compiled kernels <-> an attribute of an annotated module, so that nothing is compiled again.

What was compiled to measure a network is what a plan of it runs. It travels with the module, as the
plan does: as an immutable value of constants.
The digest of the neutral module says whether the ops are still those that were compiled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.lower.compile import CompiledKernels, TaskTargets
from heteroplace.lower.kernels import (
    Kernel,
    KernelCall,
    KernelCalls,
    RouterValues,
    Rows,
    Value,
    Variant,
)
from heteroplace.lower.library import KernelLibrary
from heteroplace.lower.workspace import Workspace
from heteroplace.model.routed.routers import Router

KERNELS_ATTRIBUTE = "heteroplace_kernels"
"""Attribute of `main`: a tuple of a table as JSON, the files of the library, and the weights."""


def with_kernels(
    mod: tvm.IRModule, digest: str, targets: TaskTargets, kernels: CompiledKernels
) -> tvm.IRModule:
    """Return an annotated module that carries the kernels of its plan.

    Parameters
    ----------
    digest
        `Network.digest` of the module that was compiled.
    targets
        For each task the target that it was compiled for, [num_tasks].
    """
    calls = kernels.calls
    weights = [value.constant for value in calls.values if value.constant is not None]
    files = kernels.library.files()
    table = {
        "digest": digest,
        "targets": targets,
        "values": [
            [
                v.shape,
                v.dtype,
                v.input_name,
                v.constant is not None,
                v.alias_of,
                None if v.rows is None else astuple(v.rows),
            ]
            for v in calls.values
        ],
        "calls": [
            [
                *(c.kernel, c.segment, c.task, c.reads, c.writes, astuple(c.workspace)),
                c.branch,
                [astuple(variant) for variant in c.variants],
            ]
            for c in calls.calls
        ],
        "in_place": {
            index: [c.kernel_in_place, c.in_place]
            for index, c in enumerate(calls.calls)
            if c.kernel_in_place
        },
        "outputs": calls.outputs,
        "routers": [[r.loads, r.offsets, r.seats, r.num_rows] for r in calls.routers],
        "kernels": [
            [k.symbol, str(k.target), astuple(k.workspace), k.op, k.flops]
            for k in calls.kernels.values()
        ],
        "files": list(files),
    }
    fields = [json.dumps(table).encode(), *files.values()]
    constants = [relay.const(np.frombuffer(field, dtype="uint8").copy()) for field in fields]
    constants += [relay.const(weight, weight.dtype.name) for weight in weights]
    main = mod["main"].with_attr(KERNELS_ATTRIBUTE, relay.Tuple(constants))
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main})


def carried_kernels(
    mod: tvm.IRModule, digest: str, routers: Sequence[Router]
) -> tuple[TaskTargets, CompiledKernels] | None:
    """Return the kernels that a module carries; None: none, or they are of other ops.

    Parameters
    ----------
    digest
        `Network.digest` of the neutral module under `mod`.
    routers
        Those of its task graph.
    """
    attributes = mod["main"].attrs
    if attributes is None or KERNELS_ATTRIBUTE not in attributes:
        return None
    constants = [field.data for field in attributes[KERNELS_ATTRIBUTE].fields]
    table = json.loads(constants[0].numpy().tobytes())
    if table["digest"] != digest:
        return None
    num_files = len(table["files"])
    files = [constant.numpy().tobytes() for constant in constants[1 : 1 + num_files]]
    library = KernelLibrary.from_files(dict(zip(table["files"], files, strict=True)))
    calls = _read_calls(table, constants[1 + num_files :], routers)
    return tuple(table["targets"]), CompiledKernels(calls, library)


def _read_calls(
    table: dict[str, Any], weights: list[tvm.nd.NDArray], routers: Sequence[Router]
) -> KernelCalls:
    rest = (weight.numpy() for weight in weights)
    values = [
        Value(
            *(tuple(shape), dtype, name, next(rest) if is_constant else None, alias),
            rows=None if rows is None else Rows(*rows),
        )
        for shape, dtype, name, is_constant, alias, rows in table["values"]
    ]
    calls = [
        KernelCall(
            *(kernel, segment, task, tuple(reads), tuple(writes), Workspace(*workspace)),
            branch=None if branch is None else (branch[0], branch[1]),
            variants=tuple(
                Variant(capacity, symbol, tuple(reads), tuple(writes), *in_place)
                for capacity, symbol, reads, writes, *in_place in variants
            ),
        )
        for kernel, segment, task, reads, writes, workspace, branch, variants in table["calls"]
    ]
    for index, (symbol, pairs) in table.get("in_place", {}).items():
        own = calls[int(index)]
        conflicts_read = tuple((read, write) for read, write in pairs)
        calls[int(index)] = replace(own, kernel_in_place=symbol, in_place=conflicts_read)
    decided = tuple(
        RouterValues(router, *fields)
        for router, fields in zip(routers, table["routers"], strict=True)
    )
    kernels = {
        symbol: Kernel(symbol, None, tvm.target.Target(target), Workspace(*workspace), op, flops)
        for symbol, target, workspace, op, flops in table["kernels"]
    }
    return KernelCalls(tuple(values), tuple(calls), tuple(table["outputs"]), kernels, decided)
