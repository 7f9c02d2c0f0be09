"""Run a program once in a process of its own, and say how that ended: what may trap is tried first.

    python -m heteroplace.measure.trial FOLDER

runs what `run_trial` has put into the folder.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor

_PATHS, _PROGRAM, _BLOB, _INPUTS = "paths.txt", "program.txt", "blob.npy", "inputs.npz"
_LIBRARY = "kernels.so"


@dataclass(frozen=True)
class LoadedProgram:
    """What an executor is made of, and its inputs."""

    libtvm: str
    library: str
    text: str
    blob: np.ndarray
    inputs: Mapping[str, np.ndarray]

    def executor(self) -> Executor:
        """Load it, and set its inputs."""
        executor = Executor(self.libtvm, self.library, self.text, blob=self.blob)
        for name, array in self.inputs.items():
            executor.set_input(name, array)
        return executor


def run_trial(program: LoadedProgram, reason: str) -> None:
    """Run a program once in another process; about a second.

    Parameters
    ----------
    reason
        What may go wrong in it, for the message.

    Raises
    ------
    ExecutionError
        The run ended its process, or failed.
    """
    with tempfile.TemporaryDirectory(prefix="heteroplace-trial-") as name:
        _write(program, Path(name))
        command = [sys.executable, "-m", "heteroplace.measure.trial", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    ended = last if done.returncode > 0 else signal.Signals(-done.returncode).name
    raise ExecutionError(
        f"a run of the model with the inputs for measuring ended by {ended}: {reason}. Give inputs "
        f"that it takes, by inputs={{name: array}} or a file of numpy (.npz), or costs that need "
        f"no measuring"
    )


def _write(program: LoadedProgram, folder: Path) -> None:
    names = list(program.inputs)
    library = folder / _LIBRARY
    shutil.copyfile(program.library, library)  # which only this process may have by that path
    (folder / _PATHS).write_text(json.dumps([program.libtvm, str(library), names]))
    (folder / _PROGRAM).write_text(program.text)
    np.save(folder / _BLOB, program.blob)
    np.savez(folder / _INPUTS, *program.inputs.values())


def _read(folder: Path) -> LoadedProgram:
    libtvm, library, names = json.loads((folder / _PATHS).read_text())
    with np.load(folder / _INPUTS) as arrays:
        inputs = {name: arrays[f"arr_{index}"] for index, name in enumerate(names)}
    text, blob = (folder / _PROGRAM).read_text(), np.load(folder / _BLOB)
    return LoadedProgram(libtvm, library, text, blob, inputs)


if __name__ == "__main__":
    _read(Path(sys.argv[1])).executor().run()
