"""Every option of a placement reaches `tvmc compile` and the pass, and does there what it says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from relay_models import cpu_cluster, random_costs, two_branches
from test_tvmc import SHAPES
from test_tvmc import two_branches as two_branches_onnx
from tvm import relay

import heteroplace
from heteroplace.cli.tvmc_plugin.tvmc import main
from heteroplace.errors import (
    ClusterError,
    HeteroPlaceError,
    InfeasibleError,
    PlanError,
    SolverError,
)
from heteroplace.files.cluster_file import save_cluster
from heteroplace.files.plan_file import save_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.solution import Solution
from heteroplace.options import options_of
from heteroplace.place_options import CONFIG_PREFIX, OPTION_CLASSES, PlaceOptions, read_options
from heteroplace.relay.annotate.annotation_reader import read_solution

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:tvm.parser.fromtext is deprecated:DeprecationWarning"),
]
FIRST, *_, LAST = (device.name for device in cpu_cluster().devices)


def by_keywords(**options: object) -> Solution:
    """The solution of a small network, placed with random costs."""
    return by_config({}, **options)


def by_config(config: dict[str, object], **options: object) -> Solution:
    """The same, with options in a PassContext too."""
    named = {CONFIG_PREFIX + name: value for name, value in config.items()}
    given = {"costs": random_costs, "iterations": 300} | options
    with tvm.transform.PassContext(opt_level=3, config=named):
        mod = relay.transform.HeteroPlace(cpu_cluster(), **given)(two_branches())
    solution = read_solution(mod)
    assert solution is not None
    return solution


def devices_of(solution: Solution) -> list[str]:
    devices = solution.plan.placement(len(solution.graph.tasks))
    return [solution.cluster.devices[device].name for device in devices]


def test_every_option_of_a_placement_is_one_of_tvmc(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compile", "--help"])
    text = capsys.readouterr().out
    for cls in OPTION_CLASSES:
        for entry in options_of(cls):
            assert re.search(rf"[ :]{entry.name}[,.]", text)


def test_no_split_keeps_tasks_together_in_the_pass() -> None:
    pins = {"nn.conv2d": FIRST}
    apart = by_keywords(pin={**pins, "nn.softmax": LAST})
    assert len(set(devices_of(apart))) > 1
    for solution in (
        by_keywords(no_split=["*"], pin=pins),
        by_config({"no_split": ["*"], "pin": [f"nn.conv2d={FIRST}"]}),
    ):
        assert set(devices_of(solution)) == {FIRST}


def test_max_memory_limits_what_a_plan_may_use_in_the_pass() -> None:
    limits = {FIRST: "1 MiB"}
    for solution in (
        by_keywords(max_memory=limits),
        by_config({"max_memory": [f"{FIRST}=1MiB"]}),
    ):
        assert solution.cluster.memories[0].bytes == 2**20
    with pytest.raises(InfeasibleError):
        by_keywords(max_memory={FIRST: 100})


def test_the_pass_on_its_own_output_changes_nothing_under_a_limit() -> None:
    place = relay.transform.HeteroPlace(
        cpu_cluster(), costs=random_costs, max_memory={FIRST: "1 MiB"}, iterations=100
    )
    once = place(two_branches())
    assert tvm.ir.structural_equal(place(once), once)
    with pytest.raises(PlanError, match="placed on cluster 'cpu' already"):
        relay.transform.HeteroPlace(cpu_cluster())(once)


def test_a_plan_is_replayed_by_the_pass_whatever_costs_say(tmp_path: Path) -> None:
    first = by_keywords(pin={"nn.conv2d": FIRST, "nn.softmax": LAST})
    path = tmp_path / "plan.json"
    save_plan(first.plan, first.graph, first.cluster, path)
    for again in (by_keywords(plan_in=path), by_config({"plan_in": str(path)})):
        assert again.plan.steps == first.plan.steps
    with pytest.raises(PlanError, match="names task 'conv2d"):
        mod = tvm.IRModule.from_expr(relay.nn.relu(relay.var("x", shape=(2, 2))))
        relay.transform.HeteroPlace(cpu_cluster(), plan_in=path, costs=random_costs)(mod)


@pytest.mark.costly
@pytest.mark.parametrize("coarsening", ["auto"])
def test_a_coarsened_network_is_built_as_any_other(coarsening: str) -> None:
    solution = by_keywords(coarsening=coarsening, solver="search")
    assert len(solution.plan.reasons) == len(solution.graph.tasks)
    mod = relay.transform.HeteroPlace(
        cpu_cluster(), costs=random_costs, coarsening=coarsening, iterations=100
    )(two_branches())
    executor = heteroplace.Executor(heteroplace.build(mod))
    assert np.isfinite(executor.run(x=np.ones((1, 8, 8, 8), "float32"))[0]).all()


def test_throughput_and_engine_reach_the_pass() -> None:
    solution = by_keywords(objective="throughput", engine="highs")
    assert solution.item_ns is not None
    assert solution.bound_ns <= solution.item_ns <= min(ns for _, ns in solution.singles)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_memory": {"gpu9": "1 GiB"}}, ClusterError, "no device or memory 'gpu9'"),
        (
            {"max_memory": {FIRST: "much"}},
            SolverError,
            "max_memory of .* is 'much'; expected a size",
        ),
        ({"no_split": "conv"}, SolverError, r"no_split is 'conv'; expected \['conv'\]"),
        ({"no_split": ["lstm*"]}, SolverError, r"no task matches lstm\*"),
        ({"plan_in": "no.json"}, HeteroPlaceError, "no.json: cannot be read"),
        ({"plan_in": "no.json", "solver": "heft"}, SolverError, "leave out solver"),
        ({"items": 2, "solver": "heft"}, SolverError, "makes plans for one item"),
        ({"coarsening": "all"}, SolverError, "coarsening 'all' is not offered"),
        ({"engine": "cplex"}, SolverError, "engine 'cplex' is not offered"),
        ({"engine": "highs"}, SolverError, "solves no programme by engine 'highs'"),
        ({"solver": "heft", "objective": "throughput"}, SolverError, "does not offer objective"),
    ],
)
def test_the_pass_refuses_what_cannot_be_done(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        by_keywords(**options)


def test_options_that_clash_are_refused_before_the_pass_runs() -> None:
    with pytest.raises(SolverError, match="leave out engine"):
        relay.transform.HeteroPlace(cpu_cluster(), plan_in="p.json", engine="highs")
    defaults, limits = read_options({})
    assert defaults == PlaceOptions()
    assert limits.threads >= 1


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with net.onnx and a cluster whose costs can be estimated, made the current one."""
    peaks = {"flops_per_second": 10**11, "memory_bytes_per_second": 10**10}
    devices = tuple(replace(device, **peaks) for device in cpu_cluster().devices)
    save_cluster(replace(cpu_cluster(), devices=devices), tmp_path / "cluster.json")
    onnx.save(two_branches_onnx(), tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


PLACE = [
    "compile",
    "net.onnx",
    *SHAPES,
    "--placement",
    "cluster.json",
    "--placement-option",
    "iterations=200",
]
ESTIMATED = ["--placement-option", "costs=estimate"]


def dry_run(*options: str) -> dict[str, object]:
    """The plan that `tvmc compile` writes and does not compile."""
    written = ["--placement-dry-run", "--placement-plan-out", "plan.json"]
    assert main([*PLACE, *ESTIMATED, *options, *written]) == 0
    value: dict[str, object] = json.loads(Path("plan.json").read_text())
    return value


def places(plan: dict[str, object]) -> dict[str, str]:
    return {step["run"]: step["on"] for step in plan["steps"] if "run" in step}


@pytest.mark.costly
def test_tvmc_takes_the_options_of_the_pass(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    together = places(
        dry_run("--placement-option", "no_split=*", "--placement-option", "pin=stem=cpu.all")
    )
    assert set(together.values()) == {"cpu.all"}
    dry_run(
        "--placement-option",
        "max_memory=cpu.all=1MiB",
        "--placement-option",
        "objective=throughput",
    )
    out = capsys.readouterr().out
    assert "/ 1.0 MiB" in out
    assert "one item every " in out
    several = dry_run("--placement-option", "items=2", "--placement-option", "solver=bheft")
    assert several["items"] == 2
    assert " for 2 items" in capsys.readouterr().out
    coarse = dry_run(
        "--placement-option", "coarsening=breakpoints", "--placement-option", "solver=celeritas"
    )
    assert coarse["origin"].startswith("celeritas")


@pytest.mark.costly
def test_tvmc_compiles_a_saved_plan(here: Path) -> None:
    plan = dry_run("--placement-option", "pin=*=cpu.all")
    command = [*PLACE, *ESTIMATED, "--placement-option", "plan_in=plan.json", "-o", "net.so"]
    assert main(command) == 0
    solution = heteroplace.load("net.so").solution
    assert set(devices_of(solution)) == {"cpu.all"}
    # A compiled model is a plan, too.
    Path("plan.json").unlink()
    assert places(dry_run("--placement-option", "plan_in=net.so")) == places(plan)


@pytest.mark.slow
def test_tvmc_measures_kernels_alone_and_predicts_devices_that_are_not_here(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a core and a GPU that is not in this machine; kernels are measured once for both."""
    (core, *_), (ram, *_) = cpu_cluster().devices, cpu_cluster().memories
    gpu = Device("gpu0", "cuda", "cuda -arch=sm_80", 0, 1, model="NVIDIA A100-SXM4-40GB")
    links = tuple(Link(f"{s}-{d}", s, d, 10**10, 1000, f"{s}-{d}") for s, d in ((0, 1), (1, 0)))
    memories = (ram, Memory("gpu0", 2**33))
    cluster = Cluster("core-and-gpu", memories, (core, gpu), links, 0)
    save_cluster(cluster, here / "absent.json")
    absent = ["compile", "net.onnx", *SHAPES, "--placement", "absent.json", "--placement-dry-run"]
    absent += ["--placement-option", "solver=heft", "--placement-option", "store=costs.sqlite"]
    for costs in ("measure", "isolated"):
        assert main([*absent, "--placement-option", f"costs={costs}"]) == 4
        assert "not in this machine: gpu0" in capsys.readouterr().err
    assert main([*absent, "--placement-option", "costs=predict"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"costs: \d+ % measured, \d+ % (scaled|regressed|roofline)", told)
    save_cluster(replace(cluster, devices=(core,), memories=(ram,), links=()), here / "absent.json")
    assert main([*absent, "--placement-option", "costs=isolated"]) == 0
    assert "costs: 100 % measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--placement-option", "items=2", "--placement-option", "solver=heft"],
            "plans for one item",
        ),
        (["--placement-option", "max_memory=cpu.all"], "expected DEVICE=SIZE"),
        (["--placement-option", "max_memory=gpu9=1GiB"], "no device or memory 'gpu9'"),
        (["--placement-option", "no_split=lstm*"], "no task matches lstm*"),
        (["--placement-option", "plan_in=no.json"], "no.json: cannot be read"),
        (["--placement-option", "engine=highs"], "solves no programme by engine 'highs'"),
        (["--placement-option", "threads=two"], "--placement-option threads=two: invalid literal"),
        (["--placement-option", "solver=magic"], "'magic'"),
        (["--placement-option", "solvr=heft"], "no option 'solvr'; did you mean"),
        (["--placement-option", "heft"], "expected KEY=VALUE, as solver=heft"),
        (["--placement-option", "pin=a=b", "--placement-option", "pin=a=c"], "'a' is given twice"),
    ],
)
def test_tvmc_refuses_what_cannot_be_done(
    here: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main([*PLACE, *ESTIMATED, *options]) == 4
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--placement-option"], "expected one argument"),
        (
            ["--placement-solver", "heft"],
            "--placement-solver is no longer an option; write --placement-option solver=heft",
        ),
        (["--placement-max-memory=cpu.all=1GiB"], "write --placement-option max_memory=cpu.all=1G"),
        (["--placement-optoin", "solver=heft"], 'did you mean "--placement-option"?'),
    ],
)
def test_wrong_usage_is_exit_code_2(
    here: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*PLACE, *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("compile m.onnx --target llvm -o m.onnx", "--output would overwrite m.onnx, which is"),
        ("compile m.onnx --placement local -o link", "the same file as m.onnx, which is read as"),
        ("compile m.onnx --placement local --placement-option plan_in=m.so", "is read as --placem"),
        ("compile m.onnx --placement c.json --placement-plan-out c.json", "is read as --placement"),
        ("compile m.onnx --placement local -o a.so --placement-report a.so", "would both write"),
        ("run m.so -i x.npz -o x", "would overwrite x.npz, which is read as --inputs"),
        ("run m.so --placement-trace m.so", "would overwrite m.so, which is read as PATH"),
    ],
)
def test_tvmc_writes_over_no_file_that_it_reads(
    words: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / name for name in ("m.onnx", "m.so", "c.json", "x.npz")]
    for file in files:
        file.write_bytes(b"content")
    (tmp_path / "link").symlink_to("m.onnx")
    try:
        code = main(words.split())
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr().err
    assert code != 0 and says in said and said.count("\n") == 1
    assert all(file.read_bytes() == b"content" for file in files)
