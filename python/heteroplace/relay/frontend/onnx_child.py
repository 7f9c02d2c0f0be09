"""A model file -> the one that onnxruntime makes of it, as a program of its own.

`python onnx_child.py MODEL RESULT MAX_BYTES MAX_SECONDS`, by path: it loads onnxruntime and nothing
of this package. Whatever a model does to onnxruntime ends with this process: there are models on
which its optimiser fails at an address or asks for all of the memory.

Exit codes: 0 written; 1 onnxruntime refuses the model, and standard output says why.
"""

from __future__ import annotations

import resource
import sys

REFUSED = 1


def main(arguments: list[str]) -> int:
    """Optimise at level BASIC, within limits of memory and processor time."""
    model, result, max_bytes, max_seconds = arguments
    import onnxruntime

    used = _address_space_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(max_bytes), used + int(max_bytes)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(max_seconds), int(max_seconds)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    errors = onnxruntime.capi.onnxruntime_pybind11_state
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = result
    options.log_severity_level = 4  # its reasons come as exceptions; nothing to stderr
    options.intra_op_num_threads = 1  # constants are small; threads would only be started
    try:
        onnxruntime.InferenceSession(
            model,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # it would print, and try the same again
        )
    except (
        errors.EPFail,
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.InvalidProtobuf,
        errors.NotImplemented,
        errors.RuntimeException,
        MemoryError,
        ValueError,
    ) as err:
        print((str(err).strip().splitlines() or [type(err).__name__])[-1])
        return REFUSED
    return 0


def _address_space_bytes() -> int:
    """What this process has mapped now: libraries, above all."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 (pathlib is not loaded for it)
        return int(file.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
