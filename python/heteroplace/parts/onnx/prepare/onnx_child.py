"""What onnx and onnxruntime do with a model in C++, as a program of its own.

`python onnx_child.py COMMAND MODEL RESULT MAX_BYTES MAX_SECONDS`, by path: it loads onnx or
onnxruntime and nothing of this package (`onnx_process.py` starts it). Whatever a damaged model does
to them ends with this process: there are some on which shape inference aborts, and on which the
optimiser reads at a false address or asks for all of the memory.

    simplify        onnxruntime's offline optimisation, level BASIC
    infer           ONNX's shape inference
    inline          the model's functions in place of their calls
    evaluate        the one output of a model without inputs, by ONNX's reference: RESULT is a
                    model with it as its initialiser. What is meant are conditions and counts.
    run             MODEL is a list of runs as JSON, {"model", "inputs", "names", "outputs"}: paths
                    of a model and of its inputs by name (.npy), how those of its outputs begin
                    (".0.npy" follows, and so on), and which outputs (null: all that are tensors of
                    numbers). One thread, nothing optimised. RESULT is a
                    list: the names of the outputs, or why there are none.
    run-evaluator   the same by ONNX's reference evaluator; the outputs are named.

Exit codes: 0 RESULT is written; 3 the library refuses the model: standard output says why.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

import numpy as np

REFUSED = 3
"""Not 1, which an error that nothing has caught ends with."""
_EVALUATOR_ERRORS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError),
    ValueError,
)
"""The reference is written in Python: a node that is not as its op says may raise any of these."""
_MAX_EVALUATED = 1024
"""Elements of a value that decides something."""


def main(arguments: list[str]) -> int:
    """Run one command within limits of memory and processor time."""
    command, model, result, max_bytes, max_seconds = arguments
    runner = _COMMANDS[command]()
    limit = _address_space_bytes() + int(max_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (int(max_seconds), int(max_seconds)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run, errors = runner
    try:
        run(model, result)
    except errors as err:
        print(_reason(err))
        return REFUSED
    return 0


def _reason(err: BaseException) -> str:
    return (str(err).strip().splitlines() or [type(err).__name__])[-1]


def load_onnxruntime() -> Any:
    """Import onnxruntime without its telemetry, unless the user has set the variable for it.

    With telemetry it writes a device id and a database of events into the user's cache folder.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _session(model: str, level: str, optimized: str = "") -> Any:
    """A model in onnxruntime; `level` is that of its optimiser, whose result may be written."""
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = optimized
    options.log_severity_level = 4  # its reasons come as exceptions; nothing to stderr
    # What is computed is small; threads would only be started.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")  # it runs at most once
    return onnxruntime.InferenceSession(
        model,
        options,
        providers=["CPUExecutionProvider"],
        enable_fallback=0,  # it would print, and try the same again
        # It moves DequantizeLinear behind what only moves elements, and puts a QuantizeLinear to
        # uint8 there, also of what was int8 or int32 without a zero point.
        disabled_optimizers=["QDQPropagationTransformer"],
    )


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return what onnxruntime raises for a model or an input that it does not take."""
    raised = load_onnxruntime().capi.onnxruntime_pybind11_state
    errors = (
        *(raised.EPFail, raised.Fail, raised.InvalidArgument, raised.InvalidGraph),
        *(raised.InvalidProtobuf, raised.NotImplemented, raised.RuntimeException),
    )
    return (*errors, MemoryError, ValueError)


def _simplifier() -> tuple[Any, tuple[type[Exception], ...]]:
    errors = onnxruntime_errors()
    return lambda model, result: _session(model, "ORT_ENABLE_BASIC", result), errors


def _runs() -> tuple[Any, tuple[type[Exception], ...]]:
    return _runner(_run_once, onnxruntime_errors())


def _evaluator_runs() -> tuple[Any, tuple[type[Exception], ...]]:
    import onnx.reference  # noqa: F401  (before the limits hold)

    return _runner(_evaluate_once, _EVALUATOR_ERRORS)


def _runner(
    run_once: Any, errors: tuple[type[Exception], ...]
) -> tuple[Any, tuple[type[Exception], ...]]:
    """What runs a list of models, and the errors of the library that does."""

    def run(runs: str, result: str) -> None:
        answers: list[dict[str, object]] = []
        with open(runs) as file:  # noqa: PTH123 (pathlib is not loaded for it)
            jobs = json.load(file)
        for job in jobs:
            try:
                answers.append({"names": run_once(**job)})
            except errors as err:
                answers.append({"reason": _reason(err)})
        with open(result, "w") as file:  # noqa: PTH123
            json.dump(answers, file)

    return run, errors


def _evaluate_once(model: str, inputs: dict[str, str], names: list[str], outputs: str) -> list[str]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    loaded = onnx.load(model, format="protobuf")
    given = {name: np.load(path) for name, path in inputs.items()}
    with np.errstate(all="ignore"):
        values = ReferenceEvaluator(loaded).run(names, given)
    for index, value in enumerate(values):
        np.save(f"{outputs}.{index}.npy", np.asarray(value))
    return names


def _run_once(
    model: str, inputs: dict[str, str], names: list[str] | None, outputs: str
) -> list[str]:
    session = _session(model, "ORT_DISABLE_ALL")
    given = {name: np.load(path) for name, path in inputs.items()}
    if {value.name for value in session.get_inputs()} != set(given):
        raise ValueError("its inputs are no longer those of the module")
    if names is None:
        names = [value.name for value in session.get_outputs() if _is_numbers(value.type)]
    # One file each: an archive takes longer to write than a small model to run.
    for index, value in enumerate(session.run(names, given)):
        np.save(f"{outputs}.{index}.npy", value)
    return names


def _is_numbers(type_: str) -> bool:
    return type_.startswith("tensor") and "string" not in type_


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


def _evaluator() -> tuple[Any, tuple[type[Exception], ...]]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    def run(model: str, result: str) -> None:
        loaded = onnx.load(model, format="protobuf")
        with np.errstate(all="ignore"):
            (value,) = ReferenceEvaluator(loaded).run(None, {})
        value = np.asarray(value)
        if value.size > _MAX_EVALUATED:
            raise ValueError(f"its value has {value.size} elements")
        del loaded.graph.node[:], loaded.graph.initializer[:]
        loaded.graph.initializer.append(onnx.numpy_helper.from_array(value, "value"))
        onnx.save(loaded, result, format="protobuf")

    return run, _EVALUATOR_ERRORS


_COMMANDS = {
    "evaluate": _evaluator,
    "infer": _inference,
    "inline": _inliner,
    "run": _runs,
    "run-evaluator": _evaluator_runs,
    "simplify": _simplifier,
}


def _address_space_bytes() -> int:
    """What this process has mapped now: libraries, above all."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 (pathlib is not loaded for it)
        return int(file.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # All is written: taking the libraries down takes as long as loading them.
    os._exit(code)
