"""onnxruntime's `InferenceSession` -> ours: programs for onnxruntime run with two changed lines."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import onnx
from onnx.helper import np_dtype_to_tensor_dtype

import heteroplace
from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import ExecutionError
from heteroplace.files.manifest import is_library
from heteroplace.machine.local import LOCAL

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from heteroplace.files.call_lengths import CallLengths
    from heteroplace.model.cluster import Cluster
    from heteroplace.model.solution import Solution
    from heteroplace.option_keywords import PlaceKeywords

_LOG = logging.getLogger("heteroplace")
_OF_DTYPE = {"float32": "float", "float64": "double", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model."""

    name: str
    shape: list[int | str]
    """A size that calls choose is there by its name."""
    type: str
    """As onnxruntime writes it: "tensor(float)"."""


class InferenceSession:
    """A model behind the interface of onnxruntime's class of this name.

    Parameters
    ----------
    path_or_bytes
        An ONNX file or its bytes, which are compiled now; or a file of `heteroplace compile`, which
        is only loaded.
    sess_options, providers, provider_options
        Ignored, with a warning: devices are chosen by cost.
    cluster
        Where to place the model; see `heteroplace.compile`.
    options
        Options of placing.

    Raises
    ------
    HeteroPlaceError
        See `heteroplace.compile` and `heteroplace.load`.

    Examples
    --------
    >>> from heteroplace import InferenceSession  # doctest: +SKIP
    >>> session = InferenceSession("model.onnx")  # doctest: +SKIP
    >>> (logits,) = session.run(None, {"x": x})  # doctest: +SKIP
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[object] | None = None,
        *,
        cluster: Cluster | str | os.PathLike[str] = LOCAL,
        **options: Unpack[PlaceKeywords],
    ) -> None:
        given = {
            "sess_options": sess_options,
            "providers": providers,
            "provider_options": provider_options,
        }
        ignored = [name for name, value in given.items() if value is not None]
        if ignored:
            _LOG.warning("InferenceSession ignores %s: devices are chosen by cost", ignored)
        if isinstance(path_or_bytes, bytes):
            model = onnx.load_from_string(path_or_bytes)
            self._executor = heteroplace.Executor(heteroplace.compile(model, cluster, **options))
        elif is_library(Path(path_or_bytes)):
            self._executor = heteroplace.load(path_or_bytes)
        else:
            executable = heteroplace.compile(path_or_bytes, cluster, **options)
            self._executor = heteroplace.Executor(executable)

    @property
    def solution(self) -> Solution:
        """Where each task of the model runs, and why."""
        return self._executor.solution

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs in the order of the model."""
        axes = {} if self._lengths is None else dict(self._lengths.inputs)
        return [self._node_arg(axes, *port) for port in self._executor.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs in the order of the model."""
        axes = {} if self._lengths is None else dict(self._lengths.outputs)
        return [self._node_arg(axes, *port) for port in self._executor.outputs]

    def get_providers(self) -> list[str]:
        """Return the devices that the plan uses."""
        return list(self.solution.devices_used)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: object = None,
    ) -> list[np.ndarray]:
        """Run the model, and return the outputs of these names; None: all of them.

        Raises
        ------
        ExecutionError
            There is no such output, or an input is missing or wrong.
        """
        positions = self._positions(output_names)
        outputs = self._executor.run(dict(input_feed))
        return [outputs[position] for position in positions]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Any, Any, str], object],
        user_data: object,
        run_options: object = None,
    ) -> None:
        """Start a run; `callback(outputs, user_data, error)` is called when it has ended.

        `outputs` is empty where `error` is a message.
        """
        positions = self._positions(output_names)

        def finish(future: Any) -> None:
            fault = future.exception()
            outputs = [] if fault else [future.result()[position] for position in positions]
            callback(outputs, user_data, str(fault or ""))

        self._executor.run_async(dict(input_feed)).add_done_callback(finish)

    def io_binding(self) -> NoReturn:
        """Raise ExecutionError: values are bound by `heteroplace.Executor.run(out=...)`."""
        raise ExecutionError(
            "io_binding is not available here; heteroplace.load(...).run(inputs, out=[...]) writes "
            "outputs into arrays of yours"
        )

    def run_with_iobinding(self, iobinding: object, run_options: object = None) -> NoReturn:
        """Raise ExecutionError, as `io_binding`."""
        self.io_binding()

    @property
    def _lengths(self) -> CallLengths | None:
        return self._executor.lengths

    def _node_arg(
        self, axes: Mapping[str, Sequence[int]], name: str, shape: Sequence[int], dtype: str
    ) -> NodeArg:
        """An input or output; as in onnxruntime a size that calls choose is shown by its name."""
        element = _OF_DTYPE.get(dtype)
        if element is None:
            tensor_type = np_dtype_to_tensor_dtype(np.dtype(dtype))
            element = onnx.TensorProto.DataType.Name(tensor_type).lower()
        chosen = "" if self._lengths is None else self._lengths.size
        own = axes.get(name, ())
        sizes = [chosen if axis in own else size for axis, size in enumerate(shape)]
        return NodeArg(name, sizes, f"tensor({element})")

    def _positions(self, names: Sequence[str] | None) -> list[int]:
        existing = [name for name, _, _ in self._executor.outputs]
        for name in names or ():
            if name not in existing:
                near = did_you_mean(name, existing) or f"; it has: {', '.join(existing)}"
                raise ExecutionError(f"the model has no output {name!r}{near}")
        return [existing.index(name) for name in (names if names else existing)]
