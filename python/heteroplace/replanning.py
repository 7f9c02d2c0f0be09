"""A compiled file whose devices are not here -> an executor of a new plan for this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from heteroplace import pipeline
from heteroplace.errors import ArtifactError, MissingDeviceError
from heteroplace.files.manifest import Manifest
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.units import format_ns
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.place_options import read_options
from heteroplace.relay.output_names import with_graph_name, with_output_names
from heteroplace.relay.source import source_from_json
from heteroplace.relay.source_child import check_ends_nothing
from heteroplace.run.executor import Executor
from heteroplace.run.tvm_library import check_tvm_version


def placed_again(
    file: CompiledFile,
    fault: MissingDeviceError,
    make: Callable[..., Executor],
    options: dict[str, Any],
) -> Executor:
    """Place the Relay module of a file for this machine, compile it, and load what comes of it.

    Parameters
    ----------
    fault
        What this machine lacks.
    make
        Loads an executable; takes `replanned`, as `Executor` does.
    options
        Of `HeteroPlace`, and `cluster`.

    Raises
    ------
    MissingDeviceError
        The file has no Relay module.
    ArtifactError
        It is damaged, or was written by another version of TVM.
    HeteroPlaceError
        The model cannot be placed on this machine.
    """
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

    check_ends_nothing(data, file.path)
    source = source_from_json(data, read, file.path)
    manifest = file.manifest()
    check_tvm_version(manifest, file.path)
    cluster = options.pop("cluster", LOCAL)
    if not isinstance(cluster, Cluster):
        cluster = open_cluster(cluster)
    _go_on_with(options, manifest)
    with tvm.transform.PassContext(opt_level=source.opt_level):
        mod = with_output_names(source.mod, [name for name, _, _ in manifest.outputs])
        mod = with_graph_name(mod, manifest.solution.graph.name)
        place_options, limits = read_options(options)
        compiled, solution = pipeline.place(mod, cluster, place_options, limits)
        max_sessions = place_options.max_sessions
        executable = pipeline.build(compiled, solution, None, place_options.state, max_sessions)
    executable = executable.with_tokenizer(manifest.tokenizer)
    new_manifest = executable.manifest
    if (new_manifest.inputs, new_manifest.outputs) != (manifest.inputs, manifest.outputs):
        raise ArtifactError(
            f"{file.path}: placed again its Relay module has inputs {new_manifest.inputs} "
            f"and outputs "
            f"{new_manifest.outputs}, the file's program {manifest.inputs} and {manifest.outputs}; "
            f"compile the "
            f"model again"
        )
    text = (
        f"{file.path}: placed again on cluster {solution.cluster.name!r} "
        f"({', '.join(solution.devices_used)}; predicted {format_ns(solution.expected_ns)}), as "
        f"{fault}"
    )
    if manifest.verification is not None:
        text += ". What runs now is not compared with the ONNX model, as the file's code was"
    logging.getLogger("heteroplace").warning("%s", text)
    return make(executable, replanned=text)


def _go_on_with(options: dict[str, Any], manifest: Manifest) -> None:
    """Take options that are not given from the file: who calls the program goes on to do so."""
    options.setdefault("items", manifest.solution.plan.items)
    options.setdefault("state", dict(manifest.session_state))
    if options["state"]:
        options.setdefault("max_sessions", manifest.max_sessions)
