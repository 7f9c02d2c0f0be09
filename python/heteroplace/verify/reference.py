"""An ONNX model and inputs -> its outputs by onnxruntime: as it stands, nothing optimised.

One thread and one run: what is asked for are numbers, and starting costs more than running.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from heteroplace.errors import VerificationError
from heteroplace.relay.frontend.onnx_simplify import onnxruntime_errors
from heteroplace.relay.frontend.onnx_source import OnnxSource


def is_installed() -> bool:
    """Say whether onnxruntime is there."""
    return importlib.util.find_spec("onnxruntime") is not None


def reference_name() -> str:
    """Return what the reference is called, with its version."""
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


class Reference:
    """A model in onnxruntime.

    Parameters
    ----------
    model
        Path, or the serialised model.

    Raises
    ------
    VerificationError
        onnxruntime does not take it.
    """

    def __init__(self, model: str | bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # its reasons come as exceptions
        self._errors = onnxruntime_errors()
        try:
            self._session: Any = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except self._errors as err:
            raise VerificationError(f"onnxruntime refuses the model: {_reason(err)}") from err

    @classmethod
    def of_source(cls, source: OnnxSource) -> Reference:
        """Load the model that a module came from."""
        return cls(source.path_or_bytes)

    @classmethod
    def of_model(cls, model: ModelProto) -> Reference:
        """Load a model in memory."""
        return cls(model.SerializeToString())

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(value.name for value in self._session.get_inputs())

    @property
    def tensor_outputs(self) -> tuple[str, ...]:
        """Names of the outputs that are tensors of numbers."""
        found = ((value.name, value.type) for value in self._session.get_outputs())
        return tuple(
            n for n, type_ in found if type_.startswith("tensor") and "string" not in type_
        )

    def run(
        self, inputs: Mapping[str, np.ndarray], names: Sequence[str] | None = None
    ) -> list[np.ndarray]:
        """Run once; return the outputs, or the named ones.

        Raises
        ------
        VerificationError
            It fails.
        """
        try:
            found: list[np.ndarray] = self._session.run(names, dict(inputs))
        except self._errors as err:
            raise VerificationError(f"onnxruntime cannot run the model: {_reason(err)}") from err
        return found


def _reason(err: BaseException) -> str:
    lines = str(err).strip().splitlines()
    return lines[-1] if lines else type(err).__name__
