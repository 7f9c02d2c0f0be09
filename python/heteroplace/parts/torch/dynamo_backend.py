"""A graph of `torch.compile` -> a function that runs it on the devices of a cluster.

PyTorch finds `torch_backend` by its group of entry points `torch_dynamo_backends`. This module
loads no torch, so that its name and options can be read where torch is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heteroplace.entries import load_entry
from heteroplace.errors import SolverError
from heteroplace.machine.local import LOCAL
from heteroplace.model.cluster import Cluster
from heteroplace.option_types import check_types
from heteroplace.options import by_attribute, option, options_of
from heteroplace.place_options import OPTION_CLASSES, read_options
from heteroplace.precision_option import VERIFY_MODES

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from heteroplace.option_keywords import PlaceKeywords

    class TorchKeywords(PlaceKeywords, total=False):
        """Options of the backend: its own, and those of placing."""

        cluster: Cluster | str | os.PathLike[str]
        strict: bool
        max_compiles: int
        check_all_weights: bool


_OWNER = "the backend 'heteroplace' of torch.compile"
_CALLABLES = ("progress", "solver_progress")
_COMPILED_GRAPH = "heteroplace.parts.torch.compiled_graph:compile_graph"
"""Loaded when a graph comes, which torch makes."""


@dataclass(frozen=True)
class TorchOptions:
    """Options of the backend besides those of placing."""

    cluster: Cluster | str | os.PathLike[str] = option(
        LOCAL, "the cluster, its file or its name; local: this machine"
    )
    strict: bool = option(
        False, "raise an error, instead of a warning, for a graph that PyTorch would have to run"
    )
    max_compiles: int = option(
        8, "how often one graph is compiled, for new sizes or changed weights; then PyTorch runs it"
    )
    check_all_weights: bool = option(
        True, "compare every value of the weights before each run; false: 16 values of each"
    )

    def __post_init__(self) -> None:
        if self.max_compiles < 1:
            raise SolverError(f"{_OWNER}: max_compiles is {self.max_compiles}; expected 1 or more")


def torch_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[torch.Tensor | int],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    **keywords: Unpack[TorchKeywords],
) -> Callable[..., Sequence[object]]:
    """Return a function that runs a graph of `torch.compile`; each size is compiled at first use.

    PyTorch calls this: `torch.compile(model, backend="heteroplace", options={...})`, or with
    `backend=functools.partial(heteroplace.torch_backend, time_limit=5)`.

    Parameters
    ----------
    graph, example_inputs
        What TorchDynamo captured.
    mode
        None: modes are for PyTorch's own compiler.
    options, keywords
        Those of `TorchOptions` and of `heteroplace.compile`. Keywords override `options`.

    Raises
    ------
    SolverError
        There is no such option or mode, or a value is wrong.
    FrontendError
        With `strict`: the graph cannot be compiled. The message names the reason.

    Examples
    --------
    >>> fast = torch.compile(model, backend="heteroplace")  # doctest: +SKIP
    """
    if mode is not None:
        raise SolverError(
            f"{_OWNER} has no mode {mode!r}: modes are for PyTorch's inductor; leave it out, or "
            f"give options={{...}}"
        )
    own, placing = _read_keywords({**(options or {}), **keywords})
    compiled: Callable[..., Sequence[object]] = load_entry(_COMPILED_GRAPH)(
        graph, example_inputs, own, placing
    )
    return compiled


def _read_keywords(given: Mapping[str, Any]) -> tuple[TorchOptions, dict[str, Any]]:
    """Return the backend's own options, and the keywords of placing, which are checked."""
    named = {name: value for name, value in given.items() if name not in _CALLABLES}
    own, *_ = by_attribute((TorchOptions, *OPTION_CLASSES), named, _OWNER, SolverError)
    check_types(TorchOptions, own, _OWNER, SolverError)
    own_names = {entry.name for entry in options_of(TorchOptions)}
    placing = {name: value for name, value in given.items() if name not in own_names}
    read_options(placing)
    return TorchOptions(**own), placing


def is_verified(placing: Mapping[str, Any]) -> bool:
    """Return whether first outputs are compared with PyTorch's: unless the option `verify` is off.

    >>> is_verified({"verify": "off"}), is_verified({})
    (False, True)
    """
    _, _, off = VERIFY_MODES
    return placing.get("verify") != off
