"""An ONNX model in another runtime, on some cores: onnxruntime, OpenVINO or MNN.

Each owns a thread bound to its cores, by which it is made and called, so that the threads that it
starts are bound to them too; it has as many as cores.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from heteroplace.errors import FrontendError, MissingPackageError
from heteroplace.measure.bound_thread import BoundThread
from heteroplace.measure.timed_runs import time_runs
from heteroplace.parts.onnx import mnn_model
from heteroplace.parts.onnx.prepare.onnx_child import load_onnxruntime, onnxruntime_errors
from heteroplace.parts.onnx.prepare.onnx_load import (
    read_model,
    set_input_shapes,
    true_inputs,
)
from heteroplace.parts.onnx.verify.tolerances import Tolerance, compare

Inputs = Mapping[str, np.ndarray]
Infer = Callable[[Inputs], list[np.ndarray]]
"""A call from arrays to arrays."""
_FLOAT32 = "f32"
FREE_SIZES = "sizes left free: it refuses the fixed ones"
"""What a comparison says of such a runtime."""
_MAX_MESSAGE_BYTES = 2**31 - 1
"""Protobuf writes no larger model in one piece."""


class RuntimeExecutor:
    """A model in another runtime. Not thread-safe.

    Parameters
    ----------
    make
        Called on the thread: loads the model and returns what runs it.
    inputs
        Of every call, or of one after the other and then again from the first on.
    cores
        Cores of its threads.

    Raises
    ------
    FrontendError
        The runtime does not load the model.
    """

    precision = ""
    """What it computes in, where that is not the model's own type; "": in that."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Infer],
        inputs: Inputs | Sequence[Inputs],
        cores: Sequence[int],
    ) -> None:
        self.name, self.version = name, version(name)
        self._turns = itertools.cycle([inputs] if isinstance(inputs, Mapping) else inputs)
        self._thread = BoundThread(name, cores)
        try:
            self._infer = self._thread.call(make)
        except Exception:
            self.close()
            raise

    def run(self) -> list[np.ndarray]:
        """Run once and return the outputs."""
        return self._thread.call(self._infer, next(self._turns))

    def difference(self, outputs: Sequence[np.ndarray]) -> float:
        """Return how far outputs are from its own, at most, over the largest value of each."""
        return compare(outputs, self.run(), Tolerance(0.0)).relative

    def time_calls(self, num_runs: int, pause_s: float = 0.0) -> list[int]:
        """Return the wall time, in ns, of calls from arrays to arrays; see `time_runs`."""
        return self._thread.call(
            time_runs, lambda: self._infer(next(self._turns)), num_runs, pause_s
        )

    def close(self) -> None:
        """End the thread."""
        self._thread.close()


class OnnxExecutor(RuntimeExecutor):
    """A model in onnxruntime; parameters as of `RuntimeExecutor`."""

    def __init__(
        self, model: onnx.ModelProto, inputs: Inputs | Sequence[Inputs], cores: Sequence[int]
    ) -> None:
        def make() -> Infer:
            onnxruntime = load_onnxruntime()
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = len(cores)
            options.inter_op_num_threads = 1
            # It warns of initialisers that nothing reads; they are the networks' own.
            options.log_severity_level = 3
            try:
                session = onnxruntime.InferenceSession(
                    model.SerializeToString(), options, ["CPUExecutionProvider"]
                )
            except onnxruntime_errors() as fault:
                raise _refused("onnxruntime", fault) from fault

            def infer(given: Inputs) -> list[np.ndarray]:
                outputs: list[np.ndarray] = session.run(None, dict(given))
                return outputs

            return infer

        super().__init__("onnxruntime", make, inputs, cores)


class OpenVinoExecutor(RuntimeExecutor):
    """A model in OpenVINO; parameters as of `RuntimeExecutor`.

    Parameters
    ----------
    hint
        The precision that it is asked for; None: its default, which is bfloat16 where the
        processor computes in it.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Inputs | Sequence[Inputs],
        cores: Sequence[int],
        hint: str | None = _FLOAT32,
    ) -> None:
        def make() -> Infer:
            import openvino

            core = openvino.Core()
            options = {
                "INFERENCE_NUM_THREADS": str(len(cores)),
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_CPU_PINNING": "NO",  # its threads keep the cores of this one
            }
            if hint is not None:
                options["INFERENCE_PRECISION_HINT"] = hint
            try:
                compiled = core.compile_model(
                    core.read_model(model.SerializeToString()), "CPU", options
                )
            except RuntimeError as fault:
                raise _refused("openvino", fault) from fault
            used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
            self.precision = "" if used == _FLOAT32 else used
            request = compiled.create_infer_request()

            def infer(given: Inputs) -> list[np.ndarray]:
                outputs = request.infer(dict(given), share_inputs=True)
                return [outputs[port] for port in compiled.outputs]

            return infer

        super().__init__("openvino", make, inputs, cores)


class MnnExecutor(RuntimeExecutor):
    """A model in MNN; parameters as of `RuntimeExecutor`.

    Parameters
    ----------
    mode
        MNN's option `precision`: "high", which is float32, or "low": half precision where its
        kernels have it for the processor. It does not say which precision it takes.

    Raises
    ------
    FrontendError
        MNN cannot convert the model, or cannot run it.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Inputs | Sequence[Inputs],
        cores: Sequence[int],
        mode: str = "high",
    ) -> None:
        self._folder = TemporaryDirectory(prefix="heteroplace-mnn-")
        first = inputs if isinstance(inputs, Mapping) else inputs[0]

        def make() -> Infer:
            path = mnn_model.convert(model, first, Path(self._folder.name), mode)
            outputs = [value.name for value in model.graph.output]
            return mnn_model.load(path, list(first), outputs, mode, len(cores))

        super().__init__("mnn", make, inputs, cores)
        self.precision = "" if mode == "high" else mode

    def close(self) -> None:
        """End the thread, and delete the converted model."""
        super().close()
        self._folder.cleanup()


class RuntimePeer:
    """An entry point of the group `heteroplace.peers`; see `heteroplace.peers.Peer`.

    Parameters
    ----------
    name
        What it is called; "": as the package.
    """

    def __init__(
        self,
        package: str,
        make: Callable[[onnx.ModelProto, Inputs, Sequence[int]], RuntimeExecutor],
        name: str = "",
    ) -> None:
        self._package, self._make, self._name = package, make, name or package

    def check_installed(self) -> None:
        """Raise MissingPackageError if the runtime is not installed."""
        if importlib.util.find_spec(self._package) is None:
            raise MissingPackageError(
                f"{self._package}, to compare with, is not installed; run: pip install "
                f"{self._package}"
            )

    def load(self, path: Path, inputs: Mapping[str, Any], cores: Sequence[int]) -> RuntimeExecutor:
        """Load a model; see `heteroplace.peers.Peer`."""
        self.check_installed()
        model, arrays = _model_and_inputs(self._package, path, inputs)
        fixed = onnx.ModelProto()
        fixed.CopyFrom(model)
        set_input_shapes(fixed, {name: each.shape for name, each in arrays.items()}, str(path))
        try:
            program = self._make(fixed, arrays, cores)
        except FrontendError:  # fixed sizes can contradict a branch of an If that does not run
            program = self._make(model, arrays, cores)
            program.version += f" ({FREE_SIZES})"
        program.name = self._name
        return program


def _refused(package: str, fault: Exception) -> FrontendError:
    reason = next(iter(str(fault).strip().splitlines()), type(fault).__name__)
    return FrontendError(
        f"{package} does not load the model: {reason}; leave {package} out of the comparison"
    )


def _model_and_inputs(
    package: str, path: Path, inputs: Mapping[str, Any]
) -> tuple[onnx.ModelProto, Inputs]:
    """Return a model, with the sizes that its file leaves open, and the arrays of its inputs.

    Raises
    ------
    FrontendError
        The file cannot be read, or is too large to be handed over in memory.
    """
    model, where = read_model(path)
    if model.ByteSize() > _MAX_MESSAGE_BYTES:
        raise FrontendError(
            f"{where}: has {model.ByteSize()} bytes with its weights, and a model that is compared "
            f"with {package} has at most {_MAX_MESSAGE_BYTES}; leave --compare out"
        )
    arrays = {
        value.name: np.asarray(
            inputs[value.name], tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
        for value in true_inputs(model.graph)
        if value.name in inputs
    }
    return model, arrays


ONNXRUNTIME = RuntimePeer("onnxruntime", OnnxExecutor)
OPENVINO = RuntimePeer("openvino", partial(OpenVinoExecutor, hint=None))
"""In its default precision."""
OPENVINO_FLOAT32 = RuntimePeer("openvino", OpenVinoExecutor, "openvino-float32")
