"""Costs of one placement serve others: other pins, limits, links, devices; another process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import tvm
from few_rounds import few_rounds
from onnx_models import tiny_cnn
from relay_models import cpu_cluster, random_costs, two_branches
from tvm import relay

from heteroplace import pipeline
from heteroplace.cli.main import main
from heteroplace.cli.tvmc_plugin.tvmc import main as tvmc
from heteroplace.costs.store import PATH_VARIABLE, CostStore
from heteroplace.errors import CostStoreError, MissingCostError, SolverError
from heteroplace.files.costs_file import save_costs
from heteroplace.measure import measured_interference
from heteroplace.measure.cost_models import CostOptions, choose_cost_model
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.solution import Solution
from heteroplace.native.compiled_file import read_manifest
from heteroplace.place_options import PlaceOptions
from heteroplace.relay.annotate.annotation_reader import read_solution
from heteroplace.simulate.interference import Interference
from heteroplace.stage_log import StageLog

# TVM's driver leaves files open (its configuration), and the library its folder.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


class Measured(NamedTuple):
    """A placement whose costs were measured, and the store that they went into."""

    solution: Solution
    store: Path


def place(cluster: Cluster, **options: Any) -> tuple[Solution, list[str]]:
    """Place a small network; also what was told meanwhile."""
    lines: list[str] = []
    with tvm.transform.PassContext(opt_level=3):
        options = {"solver": "heft", "progress": lines.append} | options
        placed = relay.transform.HeteroPlace(cluster, **options)(two_branches())
    solution = read_solution(placed)
    assert solution is not None
    return solution, lines


def measuring(lines: list[str]) -> list[str]:
    """The lines that tell of kernels that are run."""
    return [line for line in lines if line.startswith("Measuring") and " slow" not in line]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    path = tmp_path_factory.mktemp("store") / "costs.sqlite"
    with pytest.MonkeyPatch.context() as patch, few_rounds(measured_interference, "_ROUND_NS"):
        patch.setenv(PATH_VARIABLE, str(path))
        solution, lines = place(cpu_cluster())
    assert measuring(lines)
    yield Measured(solution, path)


def with_gpu() -> Cluster:
    """The CPU of this machine, a roomier memory, and a GPU that is not here."""
    here = cpu_cluster()
    gpu = Device("gpu9", "cuda", "cuda -arch=sm_80", 63, 1, model="A100 SXM4 40GB")
    return replace(
        here,
        memories=(Memory("ram", 2**34), Memory("card", 2**34)),
        devices=(*here.devices, gpu),
        links=(Link("up", 0, 1, 10**10, 0, "up"), Link("down", 1, 0, 10**10, 0, "down")),
    )


@pytest.mark.costly
@pytest.mark.parametrize(
    "options",
    [{}, {"pin": {"nn.softmax": "cpu.0"}, "exclude": ["cpu.1"]}, {"missing": "measure"}],
)
def test_costs_of_a_placement_are_taken_again(measured: Measured, options: dict[str, Any]) -> None:
    solution, lines = place(cpu_cluster(), costs=measured.solution.costs, **options)
    assert solution.costs == measured.solution.costs
    assert not measuring(lines)


@pytest.mark.costly
def test_a_file_of_costs_holds_with_other_limits_links_and_devices(
    measured: Measured, tmp_path: Path
) -> None:
    found, path = measured.solution, tmp_path / "c.json"
    save_costs(found.costs, found.graph, found.cluster, path)
    with pytest.raises(MissingCostError, match=r"(?s)not know: .* on 'gpu9'.*missing=.measure"):
        place(with_gpu(), costs=path)
    with pytest.raises(MissingCostError, match=r"(?s)on 'gpu9'.*not in this machine"):
        place(with_gpu(), costs=path, missing="measure")
    solution, lines = place(with_gpu(), costs=path, missing="predict")
    assert not measuring(lines)
    assert [row[:-1] for row in solution.costs.rows] == list(found.costs.rows)
    assert {row[-1].source for row in solution.costs.rows} <= {"scaled", "regressed", "roofline"}
    again, _ = place(with_gpu(), costs=solution.costs, exclude=["gpu9"])
    assert again.costs == solution.costs


@pytest.mark.costly
def test_what_a_pinned_placement_does_not_know_is_named_and_measured(measured: Measured) -> None:
    pinned, _ = place(cpu_cluster(), costs=random_costs, pin={"nn.softmax": "cpu.0"})
    assert {cost.source for row in pinned.costs.rows for cost in row} == {"given", "excluded"}
    with pytest.raises(MissingCostError, match=r"not know: task 'softmax\.1' on '[^']*'"):
        place(cpu_cluster(), costs=pinned.costs)
    filled, _ = place(cpu_cluster(), costs=pinned.costs, missing="measure", store=measured.store)
    counts = Counter(cost.source for row in filled.costs.rows for cost in row)
    assert counts["measured"] == len(cpu_cluster().devices) - 1
    assert set(counts) == {"measured", "given"}


@pytest.mark.costly
def test_the_second_time_nothing_is_measured(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CostStore(measured.store) as store:
        before = list(store.rows())
    monkeypatch.setenv(PATH_VARIABLE, str(measured.store))
    solution, lines = place(cpu_cluster())
    assert not measuring(lines)
    assert solution.costs == measured.solution.costs
    with CostStore(measured.store) as store:
        assert list(store.rows()) == before
    sites = {key.site for key, _ in before}
    assert len(before) == len(sites) * len({key.threads for key, _ in before})


@pytest.mark.costly
def test_interference_is_measured_once(measured: Measured) -> None:
    def interference_of() -> tuple[Interference, list[str]]:
        lines: list[str] = []
        model = choose_cost_model("measure", CostOptions(measured.store))
        with tvm.transform.PassContext(opt_level=3):
            network = pipeline.prepare(two_branches())
            compiled = pipeline.compile(network, cpu_cluster(), model)
            log = StageLog(lines.append)
            found = pipeline.cost(compiled, cpu_cluster(), model, log).interference
        assert found is not None
        return found, lines

    with few_rounds(measured_interference, "_ROUND_NS"):
        interference_of()
    first, _ = interference_of()
    second, lines = interference_of()
    assert not measuring(lines)
    for name in ("slowdown", "copy_slowdown"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert not first.alone_ns.any() and not second.alone_ns.any()  # at the pace of costs
    assert first.core_to_core_ns == second.core_to_core_ns


@pytest.mark.costly
@pytest.mark.parametrize("store", ["kept", "empty"])
def test_a_file_of_measured_costs_brings_the_interference_that_the_store_holds(
    measured: Measured, store: str, tmp_path: Path
) -> None:
    found, path = measured.solution, tmp_path / "c.json"
    save_costs(found.costs, found.graph, found.cluster, path)
    model = choose_cost_model(
        path, CostOptions(measured.store if store == "kept" else tmp_path / "costs.sqlite")
    )
    lines: list[str] = []
    with tvm.transform.PassContext(opt_level=3), few_rounds(measured_interference, "_ROUND_NS"):
        compiled = pipeline.compile(pipeline.prepare(two_branches()), cpu_cluster(), model)
        if store == "kept":
            measuring_model = choose_cost_model("measure", CostOptions(measured.store))
            assert pipeline.cost(compiled, cpu_cluster(), measuring_model).interference is not None
        log = StageLog(lines.append)
        kept = pipeline.cost(compiled, cpu_cluster(), model, log).interference
    assert (kept is not None) == (store == "kept")
    assert not measuring(lines)


def test_the_store_is_the_users_another_one_or_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "user.sqlite"))
    for choice in ("off", None):
        with CostOptions(choice).open_store() as store:
            assert store is None
    assert not list(tmp_path.iterdir())
    with CostOptions("on").open_store() as user, CostOptions(tmp_path / "own").open_store() as own:
        assert user is not None and user.path.name == "user.sqlite"
        assert own is not None and own.path.name == "own"
    assert PlaceOptions().store == "on"


@pytest.mark.costly
def test_a_store_that_cannot_be_used_is_an_error_that_says_how_to_go_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "user.sqlite").write_text("something else")
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "user.sqlite"))
    with pytest.raises(CostStoreError, match="--placement-option store=FILE, or store=off"):
        place(cpu_cluster())


def test_a_store_that_cannot_be_made_is_left_out_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    options = CostOptions("on")
    for _ in range(2):
        with options.open_store() as store:
            assert store is None
    assert caplog.text.count("Measured costs are not stored") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "guess"}, "expected one of refuse, measure, predict, estimate"),
        ({"missing": "predict"}, "costs='measure' is none; leave it out"),
        ({"missing": "measure", "costs": "estimate"}, "costs='estimate' is none"),
    ],
)
def test_what_to_do_about_missing_costs_is_checked_at_once(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(SolverError, match=message):
        relay.transform.HeteroPlace(cpu_cluster(), **options)


def test_a_function_may_leave_costs_out() -> None:
    def some(graph: Any, cluster: Cluster) -> Any:
        first = replace(cluster, devices=cluster.devices[:1])
        return random_costs(graph, first)

    device = replace(cpu_cluster().devices[-1], flops_per_second=10**9)
    device = replace(device, memory_bytes_per_second=10**9)
    cluster = replace(cpu_cluster(), devices=(cpu_cluster().devices[0], device))
    solution, _ = place(cluster, costs=some, missing="estimate")
    assert [[cost.source for cost in row] for row in solution.costs.rows] == [
        ["given", "roofline"]
    ] * len(solution.graph.tasks)


@pytest.mark.costly(6)
def test_costs_predicted_here_make_a_library_for_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_cnn(), "model.onnx")
    profile = ["profile", "--predict", "model.onnx", "--cluster", "cpu-two-gpus"]
    assert main([*profile, "-o", "c.json"]) == 0
    assert "machine: nothing was measured, as no device of" in capsys.readouterr().out
    where = ["--placement", "cpu-two-gpus", "--placement-option", "costs=c.json"]
    pin = ["--placement-option", "pin=nn.conv2d=gpu0"]
    assert tvmc(["compile", "model.onnx", *where, *pin, "-o", "model.so"]) == 0
    solution = read_manifest("model.so").solution
    devices = solution.plan.placement(len(solution.graph.tasks))
    assert "gpu0" in {solution.cluster.devices[device].name for device in devices}
