"""An ONNX model -> the same in MNN, another runtime: a converted file, and calls of it.

As a program, this file converts `model.onnx` in a folder and runs it once on `inputs.npz`, because
MNN ends the process on some models. `MNN.tools.mnnconvert` is not used: to import it installs a
package and reports each use to MNN's makers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from heteroplace.errors import FrontendError
from heteroplace.run.array_files import write_arrays

_SOURCE, _CONVERTED, _INPUTS = "model.onnx", "model.mnn", "inputs.npz"


def convert(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], folder: Path, mode: str
) -> Path:
    """Return the file that MNN's converter makes in a folder, after a run in another process.

    Raises
    ------
    FrontendError
        MNN cannot convert the model, or cannot run it.
    """
    onnx.save(model, folder / _SOURCE)
    write_arrays(folder / _INPUTS, inputs)
    outputs = [value.name for value in model.graph.output]
    finished = subprocess.run(
        [sys.executable, "-m", __name__, str(folder.resolve()), mode, *outputs],
        cwd=folder,  # the converter leaves a file where it runs
        capture_output=True,
        text=True,
        check=False,
    )
    is_converted = (folder / _CONVERTED).is_file()
    (folder / _SOURCE).unlink()
    if finished.returncode:
        lines = (finished.stdout + finished.stderr).strip().splitlines() or ["it says no more"]
        raise FrontendError(
            f"MNN cannot {'run' if is_converted else 'convert'} the model (status "
            f"{finished.returncode}): {lines[-1]}"
        )
    return folder / _CONVERTED


def load(
    path: Path, inputs: Sequence[str], outputs: Sequence[str], mode: str, num_threads: int
) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    """Return what runs a converted model, from arrays to arrays.

    Parameters
    ----------
    mode
        MNN's option `precision`: "high" or "low".
    """
    import MNN.expr
    import MNN.nn

    options = {"backend": "CPU", "precision": mode, "numThread": num_threads}
    manager = MNN.nn.create_runtime_manager((options,))
    module = MNN.nn.load_module_from_file(
        str(path), list(inputs), list(outputs), runtime_manager=manager, shape_mutable=False
    )
    layout = MNN.expr.NCHW

    def variable(array: np.ndarray) -> Any:
        is_whole = array.dtype.kind in "iub"  # of 32 bits: MNN has no longer ones
        values = np.ascontiguousarray(array, np.int32 if is_whole else np.float32)
        kind = MNN.expr.int if is_whole else MNN.expr.float
        return MNN.expr.const(values, list(array.shape), layout, kind)

    def infer(given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        results = module.forward([variable(given[name]) for name in inputs])
        if len(results) != len(outputs):  # it prints what went wrong
            raise FrontendError("MNN cannot run the model: it returns no outputs")
        return [np.asarray(MNN.expr.convert(each, layout).read()) for each in results]

    return infer


def main(folder: Path, mode: str, outputs: Sequence[str]) -> None:
    """Convert the model in a folder, and run it once; the process ends with a status if it
    cannot."""
    import _tools

    words = ["-f", "ONNX", "--modelFile", str(folder / _SOURCE), "--bizCode", "none"]
    _tools.mnnconvert(["mnnconvert", *words, "--MNNModel", str(folder / _CONVERTED)])
    if not (folder / _CONVERTED).is_file():
        sys.exit(1)
    with np.load(folder / _INPUTS) as arrays:
        inputs = dict(arrays)
    load(folder / _CONVERTED, list(inputs), outputs, mode, 1)(inputs)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
