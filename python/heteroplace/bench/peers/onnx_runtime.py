"""What a user would run instead: onnxruntime, on one core."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from heteroplace.bench.peers.stock import BoundThread, time_runs


class OnnxExecutor:
    """A model in onnxruntime, on one core. Not thread-safe.

    Parameters
    ----------
    inputs
        Of every call, or of one after the other and then again from the first on.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]],
        core: int,
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # It warns of initialisers that nothing reads; they are the networks' own.
        options.log_severity_level = 3
        self._turns = itertools.cycle([inputs] if isinstance(inputs, Mapping) else inputs)
        self._thread = BoundThread("onnxruntime", [core])
        self._session = self._thread.call(
            onnxruntime.InferenceSession,
            model.SerializeToString(),
            options,
            ["CPUExecutionProvider"],
        )

    def run(self) -> list[np.ndarray]:
        """Run once and return the outputs."""
        return self._thread.call(self._session.run, None, dict(next(self._turns)))

    def benchmark(self, num_runs: int) -> list[int]:
        """Run `num_runs` times; return the wall time of each in ns."""
        return self.time_calls(num_runs)

    def time_calls(self, num_runs: int, pause_s: float = 0.0) -> list[int]:
        """Return the wall time, in ns, of calls from arrays to arrays; see `time_runs`."""

        def run() -> None:
            self._session.run(None, next(self._turns))

        return self._thread.call(time_runs, run, num_runs, pause_s)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()
