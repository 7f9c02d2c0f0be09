"""What onnx and onnxruntime do with a model in C++, as a program of its own.

`python onnx_child.py COMMAND MODEL RESULT MAX_BYTES MAX_SECONDS`, by path: it loads onnx or
onnxruntime and nothing of this package (`onnx_process.py` starts it). Whatever a damaged model does
to them ends with this process: there are some on which shape inference aborts, and on which the
optimiser reads at a false address or asks for all of the memory.

    simplify        onnxruntime's offline optimisation, level BASIC
    infer           ONNX's shape inference
    inline          the model's functions in place of their calls

Exit codes: 0 RESULT is written; 3 the library refuses the model: standard output says why.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

REFUSED = 3
"""Not 1, which an error that nothing has caught ends with."""


def main(arguments: list[str]) -> int:
    """Run one command within limits of memory and processor time."""
    command, model, result, max_bytes, max_seconds = arguments
    runner = {"simplify": _simplifier, "infer": _inference, "inline": _inliner}[command]()
    limit = _address_space_bytes() + int(max_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (int(max_seconds), int(max_seconds)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run, errors = runner
    try:
        run(model, result)
    except errors as err:
        print((str(err).strip().splitlines() or [type(err).__name__])[-1])
        return REFUSED
    return 0


def _simplifier() -> tuple[Any, tuple[type[Exception], ...]]:
    import onnxruntime

    def run(model: str, result: str) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = result
        options.log_severity_level = 4  # its reasons come as exceptions; nothing to stderr
        options.intra_op_num_threads = 1  # constants are small; threads would only be started
        onnxruntime.InferenceSession(
            model,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # it would print, and try the same again
        )

    raised = onnxruntime.capi.onnxruntime_pybind11_state
    errors = (
        *(raised.EPFail, raised.Fail, raised.InvalidArgument, raised.InvalidGraph),
        *(raised.InvalidProtobuf, raised.NotImplemented, raised.RuntimeException),
    )
    return run, (*errors, MemoryError, ValueError)


def _inference() -> tuple[Any, tuple[type[Exception], ...]]:
    import onnx
    import onnx.shape_inference

    def run(model: str, result: str) -> None:
        loaded = onnx.load(model, format="protobuf")
        inferred = onnx.shape_inference.infer_shapes(loaded, data_prop=True)
        onnx.save(inferred, result, format="protobuf")

    # InferenceError is a RuntimeError, and protobuf's errors are ValueErrors.
    return run, (MemoryError, RuntimeError, TypeError, ValueError)


def _inliner() -> tuple[Any, tuple[type[Exception], ...]]:
    import onnx
    import onnx.inliner

    def run(model: str, result: str) -> None:
        loaded = onnx.load(model, format="protobuf")
        onnx.save(onnx.inliner.inline_local_functions(loaded), result, format="protobuf")

    return run, (MemoryError, RuntimeError, TypeError, ValueError)


def _address_space_bytes() -> int:
    """What this process has mapped now: libraries, above all."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 (pathlib is not loaded for it)
        return int(file.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
