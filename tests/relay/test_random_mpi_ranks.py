"""Random Relay programs x random plans over two to four hosts, each a process under MPI: bit for
bit the outputs of one process that runs the same plan, and of stock TVM."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from random import Random

import pytest
from host_clusters import FAR_CORE, alone, random_hosts
from mpi_plan_worker import RankedProgram
from relay_models import cores, random_costs
from test_random_relay import Part, compiled_batch, with_fakes
from tests.strategies import random_plan

from heteroplace.bench.ranks.launch import run_ranks
from heteroplace.codegen.artifact import weights_blob
from heteroplace.codegen.lower import lower
from heteroplace.codegen.program import bundle_text
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.simulate.simulator import simulate
from heteroplace.tvm_bridge import library_path

pytestmark = pytest.mark.slow

NUM_BATCHES, BATCH_SIZE, NUM_PLANS = 4, 30, 3
WORKER = Path(__file__).with_name("mpi_plan_worker.py")
TIMEOUT_S = 1200


def ranked_program(random: Random, part: Part, code_path: str) -> tuple[int, RankedProgram]:
    """A random plan over hosts, how many they are, and what one process answers by it."""
    here = cores()
    cluster = random_hosts(
        random, has_gpus=False, core_of=lambda n: here[n] if n < len(here) else FAR_CORE + n
    )
    plan = random_plan(random, part.graph, cluster)
    costs = random_costs(part.graph, cluster, random.randrange(1000))
    predicted = simulate(part.graph, cluster, costs, plan) if random.random() < 0.5 else None
    one = lower(part.calls, part.graph, alone(cluster), plan, predicted)
    text = with_fakes(random, one.program).to_text()
    single = LoadedProgram(
        NativeExecutor(str(library_path()), code_path, text, blob=weights_blob(one))
    )
    samples = []
    for inputs, stock in part.samples:
        outputs = single.run(inputs)
        for output, expected in zip(outputs, stock, strict=True):
            assert output.tobytes() == expected.tobytes(), text
        samples.append((inputs, outputs))
    lowered = lower(part.calls, part.graph, cluster, plan, predicted)
    programs = [with_fakes(random, program) for program in lowered.programs]
    blob, in_flight = weights_blob(lowered), random.randint(1, 3)
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
