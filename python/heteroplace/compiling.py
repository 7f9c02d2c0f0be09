"""`place` and `compile`: a model of any kind, and a cluster -> its plan, or its executable.

An ONNX file, a model in memory and a Relay module all go through `pipeline`, as in the commands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm

import heteroplace
from heteroplace import pipeline
from heteroplace.argument_checks import check_path
from heteroplace.entries import load_entry
from heteroplace.errors import FrontendError
from heteroplace.files.tokenizer_file import read_tokenizer
from heteroplace.frontends import Imported
from heteroplace.interrupts import interruptible
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.solution import Solution
from heteroplace.model_network import GivenSizes, read_network
from heteroplace.place_options import read_options
from heteroplace.relay.annotate.annotation_reader import is_sharded, read_solution

if TYPE_CHECKING:
    from onnx import ModelProto
    from typing_extensions import Unpack

    from heteroplace.entry_calls import Calls
    from heteroplace.model.workload_solution import WorkloadSolution
    from heteroplace.option_keywords import PlaceKeywords

_MODEL_ENTRIES = "heteroplace.model_entries:model_entries"
_COMPILE_WORKLOAD = "heteroplace.pipeline.workload_stages:compile_workload"
_PLACE_WORKLOAD = "heteroplace.pipeline.workload_stages:place_workload"
"""Loaded for a model at several sizes."""


@interruptible
def place(
    model: str | os.PathLike[str] | ModelProto | Imported | tvm.IRModule,
    cluster: Cluster | str | os.PathLike[str] = LOCAL,
    *,
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, npt.ArrayLike] | None = None,
    sizes: Mapping[str, int] | None = None,
    ignore_annotations: bool = False,
    **options: Unpack[PlaceKeywords],
) -> Solution:
    """Return where and when each layer of a model runs; only kernels are compiled, for their costs.

    Parameters
    ----------
    model
        The path of a model, an `onnx.ModelProto`, the result of `frontend.from_onnx`, or a Relay
        module. A placed module keeps its plan.
    cluster
        A cluster, the path of a cluster file, the name of a ready-made one, or "local": the CPU
        and the GPUs of this machine.
    params
        Weights of a Relay module, if they are not bound into it.
    batch
        Rows of the inputs whose first size the model leaves open. None: 1, and a warning of the
        logger "heteroplace" says so.
    input_shapes, input_values
        Sizes and values of inputs that the model leaves open; see `frontend.from_onnx`.
    sizes
        Sizes that the model leaves open, by their names in the model: {"sequence_length": 128}.
    ignore_annotations
        Do not keep nodes on the devices that an ONNX model names for them.
    options
        Options of `HeteroPlace`, e.g. `time_limit=5`.

    Raises
    ------
    FrontendError
        The model cannot be read, or leaves sizes open other than its batch.
    HeteroPlaceError
        See `HeteroPlace`.

    Examples
    --------
    >>> solution = heteroplace.place("model.onnx", time_limit=5)  # doctest: +SKIP
    """
    given_sizes = GivenSizes(batch, input_shapes, input_values, sizes)
    devices = _checked_cluster(cluster, options)
    network = read_network(model, devices, params, given_sizes, options, ignore_annotations)
    carried = read_solution(network.mod)
    if carried is None and not is_sharded(network.mod):
        return pipeline.place_network(network.mod, devices, network.keywords)
    target = carried.cluster if carried is not None and cluster == LOCAL else devices
    placed = heteroplace.HeteroPlace(target, params=params, **options)(network.mod)
    solution = read_solution(placed)
    assert solution is not None  # the pass has just placed it
    return solution


@interruptible
def compile(
    model: str | os.PathLike[str] | ModelProto | Imported | tvm.IRModule,
    cluster: Cluster | str | os.PathLike[str] = LOCAL,
    *,
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, npt.ArrayLike] | None = None,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    ignore_annotations: bool = False,
    entries: Mapping[str, Mapping[str, int | Sequence[int]]] | None = None,
    workload: Mapping[str, Calls] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    **options: Unpack[PlaceKeywords],
) -> Executable:
    """Place a model and compile it into one executable; arguments and errors as of `place`.

    Kernels are optimised at the level of the PassContext around the call; without one it is 3.

    Parameters
    ----------
    sizes
        As of `place`. One may have several values, {"sequence_length": [16, 64]}: the executable
        then takes calls of any length up to the largest. They are padded with zeros to the next
        value. That no output depends on it is checked here.
    entries
        Further `sizes` or `input_shapes` by the names of entries: the executable holds the model
        with each of them, over one set of weights, and sessions may call any. The first entry is
        what `Executor.run` calls. All entries are placed together.
    workload
        How often each entry is called, by name: {"token": 128, "prompt": 8}. The second may be
        "512 tokens", if the one size of the entry is the tokens of a call. None: each once.
    tokenizer
        The `tokenizer.json` of a model that reads and writes text: the executable holds it. The
        files `generation_config.json` and `tokenizer_config.json` beside it say what ends a text.

    Raises
    ------
    LoweringError
        Two entries keep different state.
    PaddingError
        A size has several values, and an output depends on padding.
    VerificationError
        The outputs are not those of the ONNX model; or `verify="on"` cannot be done.

    Examples
    --------
    >>> executable = heteroplace.compile("model.onnx")  # doctest: +SKIP
    >>> executable.export_library("model.so")  # doctest: +SKIP
    """
    if tokenizer is not None:
        check_path("tokenizer", tokenizer, "the path of a tokenizer.json", FrontendError)
    text = None if tokenizer is None else read_tokenizer(tokenizer)
    given_sizes = GivenSizes(batch, input_shapes, input_values, sizes)
    devices = _checked_cluster(cluster, options)
    if entries is not None or workload is not None or given_sizes.has_lists:
        several = load_entry(_MODEL_ENTRIES)(
            *(model, devices, entries, workload, given_sizes, options, params),
            ignore_annotations=ignore_annotations,
        )
        joined: Executable = load_entry(_COMPILE_WORKLOAD)(
            several.modules, devices, listed=several.listed
        )[0]
        return joined.with_tokenizer(text)
    network = read_network(model, devices, params, given_sizes, options, ignore_annotations)
    if read_solution(network.mod) is None and not is_sharded(network.mod):
        executable = pipeline.compile_network(network.mod, devices, network.keywords)
    else:
        by_caller = None if cluster == LOCAL else devices
        executable = heteroplace.build(network.mod, by_caller, params, **options)
    return executable.with_tokenizer(text)


@interruptible
def place_workload(
    model: str | os.PathLike[str] | ModelProto | Imported | tvm.IRModule,
    cluster: Cluster | str | os.PathLike[str] = LOCAL,
    *,
    entries: Mapping[str, Mapping[str, int | Sequence[int]]] | None = None,
    workload: Mapping[str, Calls] | None = None,
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, npt.ArrayLike] | None = None,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    ignore_annotations: bool = False,
    **options: Unpack[PlaceKeywords],
) -> WorkloadSolution:
    """Return where a model runs that is called at several sizes, with weights shared by all calls.

    What is minimised is the time of all calls of the workload, one after the other. Memory limits
    count each weight once in a memory, and the tensors of all entries.

    Parameters
    ----------
    entries, workload, sizes
        As of `compile`; the others as of `place`. Give entries, or a size with several values.

    Raises
    ------
    FrontendError
        An entry or a call names what does not exist, or the model cannot be read.
    InfeasibleError, SolverLimitError
        No placement of all entries fits, or none was reached.
    HeteroPlaceError
        See `HeteroPlace`.

    Examples
    --------
    >>> entries = {"token": {"sequence_length": 1}, "prompt": {"sequence_length": 64}}
    >>> print(
    ...     heteroplace.place_workload(
    ...         "model.onnx", entries=entries, workload={"token": 128, "prompt": 8}
    ...     )
    ... )  # doctest: +SKIP
    """
    devices = _checked_cluster(cluster, options)
    given_sizes = GivenSizes(batch, input_shapes, input_values, sizes)
    several = load_entry(_MODEL_ENTRIES)(
        *(model, devices, entries, workload, given_sizes, options, params),
        ignore_annotations=ignore_annotations,
    )
    solution: WorkloadSolution = load_entry(_PLACE_WORKLOAD)(several.modules, devices)
    return solution


def _checked_cluster(
    cluster: Cluster | str | os.PathLike[str], options: Mapping[str, Any]
) -> Cluster:
    """Return the cluster; wrong options are refused before anything slow begins."""
    read_options(options)
    return cluster if isinstance(cluster, Cluster) else open_cluster(cluster)
