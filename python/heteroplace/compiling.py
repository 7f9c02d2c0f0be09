"""`place` and `compile`: a model of any kind, and a cluster -> its plan, or its executable.

An ONNX file, a model in memory and a Relay module all go through `pipeline`, as in the commands.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm

import heteroplace
from heteroplace import pipeline
from heteroplace.argument_checks import check_mapping, check_path, check_type
from heteroplace.entries import load_entry
from heteroplace.errors import FrontendError, LoweringError
from heteroplace.files.no_file import why_no_file
from heteroplace.files.tokenizer_file import read_tokenizer
from heteroplace.frontends import (
    Frontend,
    Imported,
    frontend_of,
    frontend_of_object,
    has_free_batch,
    named_shapes,
)
from heteroplace.interrupts import interruptible
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.solution import Solution
from heteroplace.pipeline.model_import import (
    check_costs,
    import_model,
    model_name,
    with_annotations,
)
from heteroplace.place_options import read_options
from heteroplace.relay.annotate.annotation_reader import is_sharded, read_solution
from heteroplace.relay.parameters import check_module

if TYPE_CHECKING:
    from onnx import ModelProto
    from typing_extensions import Unpack

    from heteroplace.option_keywords import PlaceKeywords

_WITH_ENTRIES = "heteroplace.lower.program_entries:with_entries"
"""Loaded for a model at several sizes."""
_LOG = logging.getLogger("heteroplace")


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
    """Return where and when each layer of a model runs, and compile only what is measured.

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
    given_sizes = _Sizes(batch, input_shapes, input_values, sizes)
    devices = _checked_cluster(cluster, options)
    network = _read(model, devices, params, given_sizes, options, ignore_annotations)
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
    sizes: Mapping[str, int] | None = None,
    ignore_annotations: bool = False,
    entries: Mapping[str, Mapping[str, int | Sequence[int]]] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    **options: Unpack[PlaceKeywords],
) -> Executable:
    """Place a model and compile it into one executable; arguments and errors as of `place`.

    Kernels are optimised at the level of the PassContext around the call; without one it is 3.

    Parameters
    ----------
    entries
        Further `sizes` or `input_shapes` by the names of entries: the executable holds the model
        with each of them, over one set of weights, and sessions may call any. The first entry is
        what `Executor.run` calls.
    tokenizer
        The `tokenizer.json` of a model that reads and writes text: the executable holds it. The
        files `generation_config.json` and `tokenizer_config.json` beside it say what ends a text.

    Raises
    ------
    LoweringError
        Two entries keep different state.
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
    if entries is not None:
        _check_entries(entries)
        devices = _checked_cluster(cluster, options)
        executables = {
            name: compile(
                model,
                devices,
                params=params,
                batch=batch,
                input_shapes={**(input_shapes or {}), **_shapes(entry)},
                input_values=input_values,
                sizes={**(sizes or {}), **_named(entry)},
                ignore_annotations=ignore_annotations,
                **options,
            )
            for name, entry in entries.items()
        }
        joined: Executable = load_entry(_WITH_ENTRIES)(executables)
        return joined.with_tokenizer(text)
    given_sizes = _Sizes(batch, input_shapes, input_values, sizes)
    devices = _checked_cluster(cluster, options)
    network = _read(model, devices, params, given_sizes, options, ignore_annotations)
    if read_solution(network.mod) is None and not is_sharded(network.mod):
        executable = pipeline.compile_network(network.mod, devices, network.keywords)
    else:
        by_caller = None if cluster == LOCAL else devices
        executable = heteroplace.build(network.mod, by_caller, params, **options)
    return executable.with_tokenizer(text)


def _check_entries(entries: Mapping[str, Mapping[str, int | Sequence[int]]]) -> None:
    form = "{'token': {'sequence_length': 1}}"
    check_mapping("entries", entries, f"sizes by the names of entries: {form}", FrontendError)
    if not entries:
        raise FrontendError(f"entries is empty; name at least one: {form}")
    for name, entry in entries.items():
        check_mapping(f"entries[{name!r}]", entry, "sizes by their names", FrontendError)


def _named(entry: Mapping[str, int | Sequence[int]]) -> dict[str, int]:
    return {name: int(size) for name, size in entry.items() if not isinstance(size, Sequence)}


def _shapes(entry: Mapping[str, int | Sequence[int]]) -> dict[str, Sequence[int]]:
    return {name: shape for name, shape in entry.items() if isinstance(shape, Sequence)}


@dataclass(frozen=True)
class _Sizes:
    """What a caller says about inputs that a model leaves open."""

    batch: int | None
    shapes: Mapping[str, Sequence[int]] | None
    values: Mapping[str, npt.ArrayLike] | None
    named: Mapping[str, int] | None = None

    def check_mappings(self) -> None:
        """Raise FrontendError unless shapes and values are maps by the names of inputs."""
        if self.named is not None:
            check_mapping("sizes", self.named, "a map by the names of free sizes", FrontendError)
        for name, value in (("input_shapes", self.shapes), ("input_values", self.values)):
            if value is not None:
                check_mapping(name, value, "a map by the names of inputs", FrontendError)

    def check_unused(self, model: str) -> None:
        """Raise FrontendError if sizes are given for a model whose sizes are fixed."""
        given = {
            "batch": self.batch,
            "input_shapes": self.shapes or None,
            "input_values": self.values or None,
            "sizes": self.named or None,
        }
        names = [name for name, value in given.items() if value is not None]
        if names:
            raise FrontendError(
                f"{' and '.join(names)}: {model} has its sizes already; leave it out, or give the "
                f"path of the model"
            )


@dataclass(frozen=True)
class _Network:
    """A model in Relay."""

    mod: tvm.IRModule
    keywords: dict[str, Any]
    """Options of `HeteroPlace`, weights included."""


def _checked_cluster(
    cluster: Cluster | str | os.PathLike[str], options: Mapping[str, Any]
) -> Cluster:
    """Return the cluster; wrong options are refused before anything slow begins."""
    read_options(options)
    return cluster if isinstance(cluster, Cluster) else open_cluster(cluster)


def _read(
    model: object,
    cluster: Cluster,
    params: Mapping[str, Any] | None,
    sizes: _Sizes,
    options: Mapping[str, Any],
    ignore_annotations: bool,
) -> _Network:
    """Return a model of any kind in Relay."""
    if isinstance(model, tvm.IRModule):
        check_module(model)
        sizes.check_unused("a Relay module")
        return _Network(model, {"params": params, **options})
    if params is not None:
        raise LoweringError(
            "params are the weights of a Relay module, and this model has its own; leave them out"
        )
    if isinstance(getattr(model, "mod", None), tvm.IRModule):
        sizes.check_unused("an imported model")
        return _Network(model.mod, {"params": model.params, **options})  # type: ignore[attr-defined]
    sizes.check_mappings()
    frontend = _frontend(model)
    if sizes.named:
        free = frontend.free_sizes(model, {})
        shapes = {**named_shapes(free, sizes.named), **(sizes.shapes or {})}
        sizes = replace(sizes, shapes=shapes)
    check_costs(cluster, options)

    def say(text: str) -> None:
        progress = options.get("progress")
        if progress is not None:
            progress(text)

    imported = import_model(
        frontend,
        model,
        shapes=sizes.shapes or {},
        values=sizes.values or {},
        batch=_rows(frontend, model, sizes),
        say=say,
    )
    keywords = dict(options)
    if not ignore_annotations:
        keywords = with_annotations(frontend, model, imported, cluster, options, say)
    return _Network(imported.mod, {"params": imported.params, **keywords})


def _frontend(model: object) -> Frontend:
    """Return the front end of a model, which is installed."""
    if not isinstance(model, (str, os.PathLike)):
        return frontend_of_object(model)
    if not Path(model).is_file():
        raise FrontendError(f"{model_name(model)}: {why_no_file(model)}; give the path of a model")
    frontend = frontend_of(os.fspath(model))
    frontend.check_installed()
    return frontend


def _rows(frontend: Frontend, model: object, sizes: _Sizes) -> int | None:
    """Return the rows to import a model for; None: its batch size is fixed."""
    if sizes.batch is not None:
        check_type("batch", sizes.batch, (int, np.integer), "a number of rows", FrontendError)
        return int(sizes.batch)
    fixed = {name: np.shape(value) for name, value in (sizes.values or {}).items()}
    free = frontend.free_sizes(model, {**(sizes.shapes or {}), **fixed})
    if not has_free_batch({name: shape for name, shape in free.items() if name not in fixed}):
        return None
    _LOG.warning(
        "%s leaves its batch size open and is imported for batch 1; batch=N is for others",
        model_name(model),
    )
    return 1
