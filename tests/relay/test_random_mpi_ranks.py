"""Random Relay programs x random plans over two to four hosts, each a process under MPI: bit for
bit the outputs of one process that runs the same plan, and of stock TVM."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from random import Random

import pytest
from mpi_plan_worker import RankedProgram
from test_random_ranks import random_ranked
from test_random_relay import Part, bits_of, compiled_batch, with_fakes

from benchmarks.ranks.launch import run_ranks
from heteroplace.lower.program import bundle_text

pytestmark = pytest.mark.slow

NUM_BATCHES, BATCH_SIZE, NUM_PLANS = 4, 30, 3
WORKER = Path(__file__).with_name("mpi_plan_worker.py")
TIMEOUT_S = 1200


def ranked_program(random: Random, part: Part, code_path: str) -> tuple[int, RankedProgram]:
    """A random plan over hosts, how many they are, and what one process answers by it."""
    lowered, single = random_ranked(random, part, code_path)
    samples = []
    for inputs, stock in part.samples:
        outputs = single.run(inputs)
        for output, expected in zip(outputs, stock, strict=True):
            assert bits_of(output) == bits_of(expected), lowered.text
        samples.append((inputs, outputs))
    programs = [with_fakes(random, program) for program in lowered.programs]
    blob, in_flight = lowered.make_blob(), random.randint(1, 3)
    ranked = RankedProgram(bundle_text(programs), blob, lowered.feeder, in_flight, samples)
    return len(lowered.hosts), ranked


@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_processes_under_mpi_equal_one_process_to_the_bit(batch: int, tmp_path: Path) -> None:
    parts, code = compiled_batch(f"MPI ranks {batch}", BATCH_SIZE)
    by_ranks: dict[int, list[RankedProgram]] = {}
    for number, part in enumerate(parts):
        for plan in range(NUM_PLANS):
            seed = f"MPI ranks {batch} {number} {plan}"
            num_ranks, program = ranked_program(Random(seed), part, code.path)
            by_ranks.setdefault(num_ranks, []).append(program)
    assert sorted(by_ranks) == [2, 3, 4]
    for num_ranks, programs in by_ranks.items():
        folder = tmp_path / str(num_ranks)
        folder.mkdir()
        shutil.copyfile(code.path, folder / "kernels.so")
        (folder / "programs.pickle").write_bytes(pickle.dumps(programs))
        said = run_ranks(num_ranks, [sys.executable, str(WORKER), str(folder)], None, TIMEOUT_S)
        assert said.split() == f"{len(programs)} programs ran over {num_ranks} ranks".split(), said
