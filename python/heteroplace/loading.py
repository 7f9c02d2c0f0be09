"""A compiled file -> an executor: of its plan, or of one that is made again for this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from heteroplace import pipeline
from heteroplace.codegen.artifact import manifest_of
from heteroplace.codegen.executable import Executable
from heteroplace.errors import ExecutionError, MissingDeviceError
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.units import format_ns
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.place_options import read_options
from heteroplace.relay.source import source_from_json
from heteroplace.run.executor import Executor

ON_MISSING = ("error", "replan")
"""What to do where a device of a file's plan, or what its code needs of one, is not here."""


def load(
    path: str | os.PathLike[str],
    *,
    max_in_flight: int = 1,
    helping: bool | None = None,
    trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
    on_missing: str = "error",
    place_options: Mapping[str, Any] | None = None,
) -> Executor:
    """Load a compiled file; see `Executor`.

    Parameters
    ----------
    max_in_flight
        Most calls at work at a time.
    helping
        Whether cores that wait do parts of others' kernels; see `Executor`.
    trusted_keys
        Files of public Ed25519 keys, PEM: only what one of them has signed is read (see
        `Executable.export_library`). None: anything.
    on_missing
        Where this machine lacks a device of the plan, or what the code needs of one: "error", or
        "replan": the Relay module in the file is placed and compiled again (it has one if it was
        exported `with_source`). `Executor.replanned` says why and how, and so does a warning of the
        logger "heteroplace".
    place_options
        Options of `HeteroPlace` for that, and `cluster`, if it is not to be this machine.

    Raises
    ------
    ArtifactError
        The file is truncated, damaged, foreign, of another version, or not signed by a trusted key.
    MissingDeviceError
        This machine lacks something, which is not to be mended by a new plan or cannot be, as the
        file has no Relay module.
    ExecutionError
        An option is wrong, or there is no library for signatures.
    HeteroPlaceError
        The model cannot be placed on this machine; see `HeteroPlace`.
    """
    if on_missing not in ON_MISSING:
        raise ExecutionError(
            f"on_missing={on_missing!r}; expected one of {', '.join(map(repr, ON_MISSING))}"
        )
    if place_options is not None and on_missing != "replan":
        raise ExecutionError(
            "place_options say how a model is placed again, and on_missing='error' does not do "
            "that; leave them out, or give on_missing='replan'"
        )
    file = CompiledFile(path, trusted_keys)
    try:
        return Executor(file, max_in_flight=max_in_flight, helping=helping)
    except MissingDeviceError as fault:
        if on_missing == "error":
            raise MissingDeviceError(
                f"{file.path}: {fault}, or load it with on_missing='replan'"
            ) from fault
        executable, text = _placed_again(file, fault, dict(place_options or {}))
    return Executor(executable, max_in_flight=max_in_flight, helping=helping, replanned=text)


def _placed_again(
    file: CompiledFile, fault: MissingDeviceError, options: dict[str, Any]
) -> tuple[Executable, str]:
    """Return what was compiled for this machine, and why and how, to be told."""
    data = file.source()
    if not data:
        raise MissingDeviceError(
            f"{file.path}: {fault}; the file cannot be placed again here, as it was exported "
            f"without its Relay module: export it with_source=True"
        ) from fault
    weights = file.checked_weights()

    def read(offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        if offset + num_bytes > len(weights):
            raise ValueError(
                f"a constant ends at byte {offset + num_bytes} of the weights, which have "
                f"{len(weights)}"
            )
        return weights[offset : offset + num_bytes]

    source = source_from_json(data, read, file.path)
    cluster = options.pop("cluster", LOCAL)
    if not isinstance(cluster, Cluster):
        cluster = open_cluster(cluster)
    # What takes arrays of several items goes on to do so.
    options.setdefault("items", manifest_of(file).solution.plan.items)
    with tvm.transform.PassContext(opt_level=source.opt_level):
        compiled, solution = pipeline.place(source.mod, cluster, *read_options(options))
        executable = pipeline.build(compiled, solution)
    text = (
        f"{file.path}: placed again on cluster {solution.cluster.name!r} "
        f"({', '.join(solution.devices_used)}; predicted {format_ns(solution.predicted_ns)}), as "
        f"{fault}"
    )
    if manifest_of(file).verification is not None:
        text += ". What runs now is not compared with the ONNX model, as the file's code was"
    logging.getLogger("heteroplace").warning("%s", text)
    return executable, text
