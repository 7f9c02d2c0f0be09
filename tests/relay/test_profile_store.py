"""profile_network with a store: what it holds is not measured, not even after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from relay_models import (
    compiled_of,
    conv,
    cores,
    cpu_cluster,
    extraction_of,
    module,
    two_branches,
    var,
)
from tvm import relay

from heteroplace.costs.sampling import SamplingOptions
from heteroplace.costs.store import CostStore
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.library import compile_kernels
from heteroplace.measure import profiler
from heteroplace.measure.background_compiler import BackgroundCompiler
from heteroplace.measure.devices_under_test import find_devices_under_test
from heteroplace.measure.kernels.in_place_times import SiteTimes
from heteroplace.measure.kernels.kernel_identity import describe_kernels
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import Profile, join_batches, profile_network
from heteroplace.relay.tasks.extract import Extraction
from heteroplace.stage_log import StageLog

KILLS = Path(__file__).with_name("profile_kills.py")
pytestmark = pytest.mark.costly

QUICK = ProfileOptions(
    is_in_place=False, modes=("hot", "cold"), round_ns=1, sampling=SamplingOptions(max_ns=1)
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CostStore]:
    with CostStore(tmp_path / "costs.sqlite") as opened:
        yield opened


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many kernels each compilation had; the compiling itself is as always."""
    sizes: list[int] = []

    def note(kernels, on_kernel=None):
        sizes.append(len(kernels))
        return compile_kernels(kernels, on_kernel)

    for where in ("heteroplace.lower.compile", "heteroplace.measure.profiler"):
        monkeypatch.setattr(f"{where}.compile_kernels", note)
    return sizes


def profile(extraction: Extraction, options: ProfileOptions) -> Profile:
    with tvm.transform.PassContext(opt_level=3):
        return profile_network(compiled_of(extraction), cpu_cluster(), options)


def branches_and_more() -> Extraction:
    """The network of `two_branches` with one convolution of another shape added."""
    x, y = var("x", (1, 8, 8, 8)), var("other", (1, 16, 6, 6))
    left = relay.nn.relu(conv(x, 8, 8))
    right = relay.nn.max_pool2d(conv(x, 8, 8, 1), (3, 3), padding=(1, 1))
    old = relay.nn.softmax(relay.add(left, right))
    return extraction_of(module([x, y], relay.Tuple([old, relay.nn.relu(conv(y, 16, 16))])))


@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_second_run_measures_and_compiles_nothing(
    store: CostStore, compiled: list[int], is_in_place: bool
) -> None:
    options = replace(QUICK, store=store, is_in_place=is_in_place)
    extraction = extraction_of(two_branches())
    first = profile(extraction, options)
    assert first.num_measured == len(store) > 0
    assert len(compiled) > 0
    compiled.clear()
    second = profile(extraction, options)
    assert (second.num_known, second.num_measured) == (first.num_measured, 0)
    assert compiled == []
    assert second.costs == first.costs


@pytest.mark.parametrize("is_in_place", [True, False])
def test_what_was_measured_with_given_inputs_is_not_taken_for_made_up_ones(
    store: CostStore, is_in_place: bool
) -> None:
    options = replace(QUICK, store=store, is_in_place=is_in_place)
    extraction = extraction_of(two_branches())
    network = compiled_of(extraction).network
    made_up = profile(extraction, options)
    arrays = [np.full((1, 8, 8, 8), value, "float32") for value in (0.0, 1.0)]
    profiles = []
    for array in (*arrays, arrays[0]):
        given = CompiledNetwork.of(network.with_examples({"x": array}))
        with tvm.transform.PassContext(opt_level=3):
            profiles.append(profile_network(given, cpu_cluster(), options))
    assert made_up.num_measured >= profiles[0].num_measured > 0
    assert profiles[1].num_measured == profiles[0].num_measured
    assert profiles[2].num_measured == 0
    assert profile(extraction, options).num_measured == 0


def test_a_second_network_measures_only_what_is_new(store: CostStore, compiled: list[int]) -> None:
    options = replace(QUICK, store=store)
    first = profile(extraction_of(two_branches()), options)
    compiled.clear()
    second = profile(branches_and_more(), options)
    assert second.num_known == first.num_measured
    assert second.num_measured > 0
    new = second.num_kernels - first.num_kernels
    assert compiled == [new]
    # Hot and cold, on one core and on two.
    assert second.num_measured == new * 2 * len(find_devices_under_test_of(branches_and_more()))


def find_devices_under_test_of(extraction: Extraction) -> list[object]:
    return list(find_devices_under_test(extraction.graph, cpu_cluster()))


def test_every_call_in_place_is_kept_with_its_site_and_network(store: CostStore) -> None:
    extraction = extraction_of(two_branches())
    profile(extraction, replace(QUICK, store=store, is_in_place=True))
    rows = list(store.rows())
    assert {key.mode for key, _ in rows} == {"in place"}
    assert len({key.network for key, _ in rows if key.threads == 1}) == 1
    sites = sorted(key.site for key, _ in rows if key.threads == 1)
    assert sites == list(range(len(sites)))
    assert all(measured.wall_ns > 0 for _, measured in rows)


def test_costs_in_place_are_the_sums_of_their_sites(store: CostStore) -> None:
    extraction = extraction_of(two_branches())
    measured = profile(extraction, replace(QUICK, store=store, is_in_place=True))
    one_core = [m.wall_ns for key, m in measured.measurements.items() if key.threads == 1]
    assert sum(row[0].ns or 0 for row in measured.costs.rows) == sum(one_core)


def test_calls_in_place_have_processor_times(store: CostStore) -> None:
    extraction = extraction_of(two_branches())
    profile(extraction, replace(QUICK, store=store, is_in_place=True, round_ns=10**7))
    times = [(measured.cpu_ns, key.threads) for key, measured in store.rows()]
    assert all(cpu_ns >= 0 for cpu_ns, _ in times)
    for threads in {threads for _, threads in times}:
        assert sum(cpu_ns for cpu_ns, number in times if number == threads) > 0


class Counts:
    """A display that keeps the counts of each stage."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, list[tuple[int, int]]]] = []

    def stage(self, text: str, budget_s: float | None = None) -> None:
        self.stages.append((text, []))

    def count(self, done: int, total: int) -> None:
        self.stages[-1][1].append((done, total))

    def detail(self, text: str) -> None:
        pass

    def of(self, text: str) -> list[tuple[int, int]]:
        """The counts of the stages whose text begins so."""
        return [each for name, counts in self.stages for each in counts if name.startswith(text)]


def test_kernels_that_are_measured_alone_are_counted() -> None:
    counts = Counts()
    options = replace(QUICK, progress=StageLog(display=counts))
    measured = profile(extraction_of(two_branches()), options)
    total = measured.num_measured
    assert counts.of("Measuring kernels on") == [(done, total) for done in range(total)]


def test_kernels_and_rounds_of_a_network_in_place_are_counted() -> None:
    counts, network = Counts(), extraction_of(two_branches())
    options = replace(QUICK, is_in_place=True, budget_s=0.01, progress=StageLog(display=counts))
    profile(network, options)
    compiled = counts.of("Compiling kernels")
    assert compiled and all(done < total for done, total in compiled)
    rounds = counts.of("Measuring on")
    total = rounds[0][1]
    assert rounds == [(done, total) for done in range(total + 1)]


def test_a_budget_makes_samples_fewer_but_leaves_nothing_out() -> None:
    options = replace(QUICK, sampling=SamplingOptions(precision_ratio=0.0, max_samples=30))
    free = profile(extraction_of(two_branches()), options)
    tight = profile(extraction_of(two_branches()), replace(options, budget_s=1e-6))
    assert tight.num_measured == free.num_measured
    assert all(m.num_samples <= SamplingOptions().min_samples for m in tight.measurements.values())


def test_batches_are_measured_apart_and_joined() -> None:
    extraction = extraction_of(two_branches())
    tables = {n: profile(extraction, replace(QUICK, batch=n)).costs for n in (1, 2)}
    joined = join_batches(extraction.graph, cpu_cluster(), tables)
    assert joined.batches == (1, 2)
    assert joined.rows_of(2) == tables[2].rows


def identities(extraction: Extraction) -> dict[str, str]:
    """Identity of each kernel by its symbol."""
    graph, cluster = extraction.graph, cpu_cluster()
    under_test = find_devices_under_test(graph, cluster)[0]
    with tvm.transform.PassContext(opt_level=3):
        calls = compiled_of(extraction).calls(cluster, under_test.placement)
        return {symbol: kernel.identity for symbol, kernel in describe_kernels(calls).items()}


def shifted_names() -> Extraction:
    """A softmax and a convolution, both after others of another shape, so that they get numbers."""
    x, y = var("x", (1, 4, 4, 4)), var("y", (1, 8, 8, 8))
    early = relay.nn.softmax(relay.nn.relu(conv(x, 4, 4)))
    late = relay.nn.softmax(relay.nn.relu(conv(y, 8, 8)))
    return extraction_of(module([x, y], relay.Tuple([early, late])))


def plain_names() -> Extraction:
    y = var("z", (1, 8, 8, 8))
    return extraction_of(module([y], relay.nn.softmax(relay.nn.relu(conv(y, 8, 8)))))


def test_equal_kernels_are_equal_in_any_network() -> None:
    alone, among = identities(plain_names()), identities(shifted_names())
    assert set(alone.values()) <= set(among.values())
    assert len(set(among.values())) == len(among)
    symbol = {identity: name for name, identity in among.items()}
    assert all(symbol[identity] == name for name, identity in alone.items())


def test_identities_are_the_same_in_every_process() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests/relay')\n"
        "from test_profile_store import identities, plain_names\n"
        "print(sorted(identities(plain_names()).values()))\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=root, env=seeded_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sorted(identities(plain_names()).values()))


def seeded_environment() -> dict[str, str]:
    """This process's environment with another seed of hashes."""
    return {**os.environ, "PYTHONHASHSEED": "12345"}


def test_other_shapes_and_options_are_other_kernels() -> None:
    small, large = var("x", (1, 8)), var("x", (1, 16))
    of_small = identities(extraction_of(module([small], relay.nn.softmax(small))))
    of_large = identities(extraction_of(module([large], relay.nn.softmax(large))))
    assert not set(of_small.values()) & set(of_large.values())
    extraction = extraction_of(module([small], relay.nn.softmax(small)))
    with tvm.transform.PassContext(opt_level=3, config={"tir.disable_vectorize": True}):
        calls = compiled_of(extraction).calls(cpu_cluster(), (0,) * len(extraction.graph.tasks))
        without = {kernel.identity for kernel in describe_kernels(calls).values()}
    assert not without & set(of_small.values())


def libraries(extraction: Extraction) -> list[object]:
    """What compiles each kernel of a network into a library of its own."""
    graph, cluster = extraction.graph, cpu_cluster()
    placement = find_devices_under_test(graph, cluster)[0].placement
    with tvm.transform.PassContext(opt_level=3):
        calls = compiled_of(extraction).calls(cluster, placement)
    return [lambda kernel=kernel: compile_kernels([kernel]) for kernel in calls.kernels.values()]


def test_the_next_library_is_made_beside_the_measuring() -> None:
    with BackgroundCompiler(libraries(extraction_of(two_branches()))) as compiler:
        first = compiler.library(0)
        with compiler.beside(0, cores()[:1]):
            begun = dict(compiler._made)
        assert (1 in begun) == (len(cores()) > 1)
        assert compiler.library(1) is not first


def test_nothing_is_compiled_while_all_cores_are_measured() -> None:
    everything = set(range(4096))
    with BackgroundCompiler(libraries(extraction_of(two_branches()))) as compiler:
        compiler.library(0)
        with compiler.beside(0, everything):
            assert list(compiler._made) == [0]
            assert all(future.done() for future in compiler._made.values())


def test_what_the_compiler_raises_is_raised_for_its_library() -> None:
    def fail():
        raise ValueError("no code for this")

    with BackgroundCompiler([*libraries(extraction_of(two_branches()))[:1], fail]) as compiler:
        compiler.library(0)
        with compiler.beside(0, cores()[:1]):
            pass
        with pytest.raises(ValueError, match="no code for this"):
            compiler.library(1)


@pytest.mark.skipif(len(cores()) < 2, reason="one core: all devices are alike")
@pytest.mark.parametrize(("finishes_each", "sizes"), [(False, [2]), (True, [1, 1])])
def test_networks_in_place_are_measured_in_turns_unless_each_is_to_be_finished(
    finishes_each: bool, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    group_sizes: list[int] = []
    times = dict.fromkeys(range(99), SiteTimes(5, 1, 5, 9))
    monkeypatch.setattr(
        profiler, "sample_until_settled", lambda rounds, *_: group_sizes.append(len(rounds)) or 0.0
    )
    monkeypatch.setattr(profiler, "site_times", lambda *_: times)
    extraction = extraction_of(two_branches())
    options = ProfileOptions(finishes_each=finishes_each, round_ns=1)
    profile_network(compiled_of(extraction), cpu_cluster(), options)
    assert group_sizes == sizes


def killed_profiling(folder: Path, num_kills: int, seed: int, how: str) -> dict[str, Any]:
    command = [
        *(sys.executable, str(KILLS), str(folder / "costs.sqlite"), str(folder / "log")),
        *(str(num_kills), str(seed), how),
    ]
    where = os.environ | {"PYTHONPATH": str(KILLS.parents[2])}  # the folder of `tests`
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, env=where
    )
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def check_little_was_lost(outcome: dict[str, Any]) -> None:
    assert outcome["killed"] > 0, "no kill hit; the case tests nothing"
    # Every measurement is made once, and a kill makes at most one more to be begun again.
    assert outcome["begun"] <= outcome["total"] + outcome["killed"]
    assert outcome["kept"] == sorted(outcome["kept"])


@pytest.mark.slow
def test_kernels_alone_are_resumed(tmp_path: Path) -> None:
    outcome = killed_profiling(tmp_path, 3, 1, "alone")
    check_little_was_lost(outcome)
    assert outcome["kept"][-1] == outcome["total"]


@pytest.mark.costly(12)
def test_networks_in_place_are_resumed(tmp_path: Path) -> None:
    outcome = killed_profiling(tmp_path, 2, 2, "whole")
    check_little_was_lost(outcome)
    # All calls of a network are one measurement: they are made and kept together.
    calls = outcome["kept"][-1] // outcome["total"]
    assert all(number % calls == 0 for number in outcome["kept"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_lose_little(tmp_path: Path, seed: int) -> None:
    outcome = killed_profiling(tmp_path, 15, seed, "alone")
    check_little_was_lost(outcome)
    assert outcome["kept"][-1] == outcome["total"]
