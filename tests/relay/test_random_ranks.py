"""Random Relay programs x random plans over hosts, each a thread of this process: the numbers of
one process that runs the same plan, and of stock TVM, bit for bit."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from host_clusters import FAR_CORE, alone, random_hosts
from relay_models import cores, random_costs
from test_random_relay import Part, compiled_batch, with_fakes

from heteroplace.lower.lower import lower
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.program import bundle_text
from heteroplace.model.check import check_plan
from heteroplace.native.compiled_file import SealedCode
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.native.transports import Transport, check_programs
from heteroplace.parts.hosts.native.core_ranks import local_transports
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.simulate.simulator import simulate
from heteroplace.tvm_bridge import library_path
from tests.strategies import random_plan

FEW, NUM_PLANS = 4, 5
NUM_BATCHES, BATCH_SIZE, MANY_PLANS = 10, 35, 3
MAX_DELAYS_NS = (0, 10_000, 200_000)
TIMEOUT_S = 120


@dataclass(frozen=True)
class Ranks:
    """One executor for each host, each of which runs in a thread of its own."""

    programs: list[LoadedProgram]
    transports: list[Transport]
    feeder: int

    def run(self, inputs: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
        """The outputs of each of several calls, which may be at work at once."""
        faults: list[BaseException] = []

        def serve(rank: int) -> None:
            try:
                list(self.programs[rank].run_many([{}] * len(inputs), timeout_s=TIMEOUT_S))
            except BaseException as fault:  # of any kind: it is raised below, once
                faults.append(fault)
                self.transports[rank].abort(repr(fault))

        others = [rank for rank in range(len(self.programs)) if rank != self.feeder]
        threads = [threading.Thread(target=serve, args=(rank,)) for rank in others]
        for thread in threads:
            thread.start()
        try:
            return list(self.programs[self.feeder].run_many(inputs, timeout_s=TIMEOUT_S))
        except BaseException as fault:
            self.transports[self.feeder].abort(repr(fault))
            raise
        finally:
            for thread in threads:
                thread.join()
            if faults:
                raise faults[0]


def load_ranks(
    random: Random, lowered: Lowered, code: SealedCode, in_flight: int | None = None
) -> Ranks:
    """The executors of a bundle, with fake devices for cores that are not here."""
    programs = [with_fakes(random, program) for program in lowered.programs]
    text = bundle_text(programs)
    assert check_programs(text) == lowered.hosts
    transports = local_transports(
        len(programs),
        seed=random.randrange(2**32),
        max_delay_ns=random.choice(MAX_DELAYS_NS),
        is_buffered=random.random() < 0.5,
    )
    blob = lowered.make_blob()
    in_flight = in_flight or random.randint(1, 3)
    loaded = [
        LoadedProgram(
            NativeExecutor(
                str(library_path()),
                code.path,
                text,
                blob=blob,
                max_in_flight=in_flight,
                transport=transport,
            )
        )
        for transport in transports
    ]
    return Ranks(loaded, transports, lowered.feeder)


def random_ranked(random: Random, part: Part, code_path: str) -> tuple[Lowered, LoadedProgram]:
    """A random plan over hosts: the programs of all of them, and the same in one process."""
    here = cores()
    cluster = random_hosts(
        random, has_gpus=False, core_of=lambda n: here[n] if n < len(here) else FAR_CORE + n
    )
    plan = random_plan(random, part.graph, cluster)
    costs = random_costs(part.graph, cluster, random.randrange(1000))
    check_plan(part.graph, cluster, costs, plan)
    predicted = simulate(part.graph, cluster, costs, plan) if random.random() < 0.5 else None
    lowered = lower(part.calls, part.graph, cluster, plan, predicted)
    one = lower(part.calls, part.graph, alone(cluster), plan, predicted)
    text = with_fakes(random, one.program).to_text()
    single = NativeExecutor(str(library_path()), code_path, text, blob=one.make_blob())
    return lowered, LoadedProgram(single)


def check_part(random: Random, part: Part, code: SealedCode) -> None:
    """Ranks of a random plan answer as one process does, and as stock TVM."""
    lowered, single = random_ranked(random, part, code.path)
    ranks = load_ranks(random, lowered, code)
    found = ranks.run([inputs for inputs, _ in part.samples])
    for (inputs, stock), outputs in zip(part.samples, found, strict=True):
        by_one = single.run(inputs)
        for output, of_one, expected in zip(outputs, by_one, stock, strict=True):
            assert (output.dtype, output.shape) == (expected.dtype, expected.shape)
            assert output.tobytes() == of_one.tobytes() == expected.tobytes(), lowered.text


def check_batch(seed: str, num_programs: int, num_plans: int) -> None:
    parts, code = compiled_batch(seed, num_programs)
    for number, part in enumerate(parts):
        for plan in range(num_plans):
            check_part(Random(f"{seed} {number} {plan}"), part, code)


@pytest.mark.costly(5)
def test_ranks_equal_one_process_to_the_bit(pytestconfig: pytest.Config) -> None:
    check_batch(f"ranks of commit {pytestconfig.getoption('hypothesis_seed')}", FEW, NUM_PLANS)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_ranks_of_a_thousand_plans_equal_one_process_to_the_bit(batch: int) -> None:
    check_batch(f"ranks {batch}", BATCH_SIZE, MANY_PLANS)
