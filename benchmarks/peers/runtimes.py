"""What a user would run instead of TVM: onnxruntime and OpenVINO, on some cores, in float32.

Each owns a thread bound to its cores, by which it is made and called, so that the threads that it
starts are bound to them too; it has as many as cores.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from benchmarks.peers.stock import time_runs
from heteroplace.measure.bound_thread import BoundThread
from heteroplace.parts.onnx.prepare.onnx_child import load_onnxruntime

Inputs = Mapping[str, np.ndarray]
Infer = Callable[[Inputs], list[np.ndarray]]
"""A call from arrays to arrays."""


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
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Infer],
        inputs: Inputs | Sequence[Inputs],
        cores: Sequence[int],
    ) -> None:
        self._turns = itertools.cycle([inputs] if isinstance(inputs, Mapping) else inputs)
        self._thread = BoundThread(name, cores)
        self._infer = self._thread.call(make)

    def run(self) -> list[np.ndarray]:
        """Run once and return the outputs."""
        return self._thread.call(self._infer, next(self._turns))

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
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, ["CPUExecutionProvider"]
            )

            def infer(given: Inputs) -> list[np.ndarray]:
                found: list[np.ndarray] = session.run(None, dict(given))
                return found

            return infer

        super().__init__("onnxruntime", make, inputs, cores)


class OpenVinoExecutor(RuntimeExecutor):
    """A model in OpenVINO; parameters as of `RuntimeExecutor`."""

    def __init__(
        self, model: onnx.ModelProto, inputs: Inputs | Sequence[Inputs], cores: Sequence[int]
    ) -> None:
        def make() -> Infer:
            import openvino

            core = openvino.Core()
            # Else it computes in bfloat16 where the processor can.
            options = {
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": str(len(cores)),
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_CPU_PINNING": "NO",  # its threads keep the cores of this one
            }
            compiled = core.compile_model(
                core.read_model(model.SerializeToString()), "CPU", options
            )
            request = compiled.create_infer_request()

            def infer(given: Inputs) -> list[np.ndarray]:
                found = request.infer(dict(given), share_inputs=True)
                return [found[port] for port in compiled.outputs]

            return infer

        super().__init__("openvino", make, inputs, cores)


def missing_runtime(package: str) -> str | None:
    """Return why a runtime cannot be compared with; None: it can."""
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed (pip install 'heteroplace[bench]'): left out"
    return None
