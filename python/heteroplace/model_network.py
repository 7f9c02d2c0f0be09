"""A model of any kind and the sizes of its inputs -> its network in Relay, with its options."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from heteroplace.argument_checks import check_mapping, check_type, is_list
from heteroplace.errors import FrontendError, LoweringError
from heteroplace.files.no_file import why_no_file
from heteroplace.frontends import (
    Frontend,
    frontend_of,
    frontend_of_object,
    has_free_batch,
    named_shapes,
    open_sizes,
)
from heteroplace.model.cluster import Cluster
from heteroplace.pipeline.model_import import (
    check_costs,
    import_model,
    model_name,
    with_annotations,
)
from heteroplace.relay.parameters import check_module

_LOG = logging.getLogger("heteroplace")


@dataclass(frozen=True)
class GivenSizes:
    """What a caller says about inputs that a model leaves open."""

    batch: int | None
    shapes: Mapping[str, Sequence[int]] | None
    values: Mapping[str, npt.ArrayLike] | None
    named: Mapping[str, Any] | None = None

    @property
    def has_lists(self) -> bool:
        """Whether a size has several values."""
        named = self.named if isinstance(self.named, Mapping) else {}
        return any(map(is_list, named.values()))

    def check_mappings(self) -> None:
        """Raise FrontendError unless shapes and values are maps by the names of inputs."""
        if self.named is not None:
            check_mapping("sizes", self.named, "a map by the names of free sizes", FrontendError)
            if self.has_lists:
                raise FrontendError(
                    "sizes has a list, and one size is placed here; give it one value, or call "
                    "heteroplace.compile or heteroplace.place_workload"
                )
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
class ModelNetwork:
    """A model in Relay."""

    mod: tvm.IRModule
    keywords: dict[str, Any]
    """Options of `HeteroPlace`, weights included."""


def read_network(
    model: object,
    cluster: Cluster,
    params: Mapping[str, Any] | None,
    sizes: GivenSizes,
    options: Mapping[str, Any],
    ignore_annotations: bool,
) -> ModelNetwork:
    """Return a model of any kind in Relay."""
    if isinstance(model, tvm.IRModule):
        check_module(model)
        sizes.check_unused("a Relay module")
        return ModelNetwork(model, {"params": params, **options})
    if params is not None:
        raise LoweringError(
            "params are the weights of a Relay module, and this model has its own; leave them out"
        )
    if isinstance(getattr(model, "mod", None), tvm.IRModule):
        sizes.check_unused("an imported model")
        return ModelNetwork(model.mod, {"params": model.params, **options})  # type: ignore[attr-defined]
    sizes.check_mappings()
    frontend = _frontend(model)
    state = options.get("state", "")
    if sizes.named:
        free = open_sizes(frontend, model, sizes.named, state)
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
        state=state,
    )
    keywords = dict(options)
    if not ignore_annotations:
        keywords = with_annotations(frontend, model, imported, cluster, options, say)
    return ModelNetwork(imported.mod, {"params": imported.params, **keywords})


def _frontend(model: object) -> Frontend:
    """Return the front end of a model, which is installed."""
    if not isinstance(model, (str, os.PathLike)):
        return frontend_of_object(model)
    if not Path(model).is_file():
        raise FrontendError(f"{model_name(model)}: {why_no_file(model)}; give the path of a model")
    frontend = frontend_of(os.fspath(model))
    frontend.check_installed()
    return frontend


def _rows(frontend: Frontend, model: object, sizes: GivenSizes) -> int | None:
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
