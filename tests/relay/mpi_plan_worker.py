"""One rank of `test_random_mpi_ranks.py`: runs the programs of a file one after the other."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.parts.hosts.mpi import MPI
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.tvm_bridge import library_path

TIMEOUT_S = 120


@dataclass(frozen=True)
class RankedProgram:
    """A program of several hosts, and what it is to answer."""

    text: str
    blob: np.ndarray
    feeder: int
    in_flight: int
    samples: list[tuple[dict[str, np.ndarray], list[np.ndarray]]]
    """Inputs, and the outputs of one process."""


def fault_of(found: list[np.ndarray], expected: list[np.ndarray]) -> str:
    """How the outputs differ; "": they do not."""
    for number, (output, right) in enumerate(zip(found, expected, strict=True)):
        if (output.dtype, output.shape) != (right.dtype, right.shape):
            return f"output {number} is {output.dtype}{output.shape}"
        if output.tobytes() != right.tobytes():
            return f"output {number} has other bits"
    return ""


def main(folder: Path) -> None:
    """Run all; the feeding rank of each compares. The first rank prints what differed."""
    ranks = MPI.launched_ranks()
    programs: list[RankedProgram] = pickle.loads((folder / "programs.pickle").read_bytes())
    faults = []
    for number, program in enumerate(programs):
        loaded = LoadedProgram(
            NativeExecutor(
                str(library_path()),
                str(folder / "kernels.so"),
                program.text,
                blob=program.blob,
                max_in_flight=program.in_flight,
                transport=ranks.transport(),
            )
        )
        is_feeder = ranks.rank == program.feeder
        inputs = [given if is_feeder else {} for given, _ in program.samples]
        answers = list(loaded.run_many(inputs, timeout_s=TIMEOUT_S))
        if is_feeder:
            for found, (_, expected) in zip(answers, program.samples, strict=True):
                fault = fault_of(found, expected)
                if fault:
                    faults.append(f"program {number}: {fault}")
        del loaded
    every = [fault for of_rank in ranks.gather(faults) for fault in of_rank]
    if ranks.rank == 0:
        print(f"{len(programs)} programs ran over {ranks.num_ranks} ranks")
        print(*every, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
