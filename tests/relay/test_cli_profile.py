"""`heteroplace profile`, from an ONNX file to files that `heteroplace place` takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import tvm
from onnx_models import make_model, node, tiny_cnn
from relay_models import cpu_cluster
from tvm import relay

from heteroplace.cli.main import main
from heteroplace.costs.store import CostStore
from heteroplace.files.cluster_file import load_cluster, save_cluster
from heteroplace.files.costs_file import load_costs
from heteroplace.files.graph_file import load_graph
from heteroplace.model.cluster import Device, Link, Memory
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.progress import ProgressDisplay
from heteroplace.relay.annotate.annotation_reader import read_solution


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a cluster, made the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETEROPLACE_COSTS", str(tmp_path / "default.sqlite"))
    onnx.save(tiny_cnn(), tmp_path / "model.onnx")
    save_cluster(cpu_cluster(), tmp_path / "cluster.json")
    return tmp_path


PROFILE = ["profile", "model.onnx", "--cluster", "cluster.json", "--budget", "0.01"]
OUTPUTS = ["-o", "costs.json", "--graph-out", "graph.json"]


@pytest.mark.costly
def test_what_it_writes_can_be_placed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PROFILE, *OUTPUTS]) == 0
    text = capsys.readouterr().out
    assert "distinct kernels; 0 measurements known" in text
    assert "measured, in place" in text
    assert text.endswith("graph: graph.json\ncosts: costs.json\n")
    graph = load_graph("graph.json").graph
    costs = load_costs("costs.json", graph, load_cluster("cluster.json"))
    assert all(cost.source == "measured" for row in costs.rows for cost in row)
    place = ["place", "--graph", "graph.json", "--cluster", "cluster.json"]
    assert main([*place, "--costs", "costs.json", "--iterations", "10"]) == 0


@pytest.mark.costly
def test_the_second_time_everything_is_known(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main([*PROFILE, "--isolated", "--json", "--store", "own.sqlite"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.replace("}\n{", "}\x00{").split("\x00"))
    assert second["batches"]["1"]["known"] == first["batches"]["1"]["measured"] > 0
    assert second["batches"]["1"]["measured"] == 0
    assert second["tasks"] == first["tasks"]
    assert (files / "own.sqlite").is_file()
    assert not (files / "default.sqlite").exists()


@pytest.mark.slow
def test_a_large_batch_is_estimated_from_small_ones(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PROFILE, *OUTPUTS, "--estimate-batch", "16"]) == 0
    assert "the estimated batch needs" in capsys.readouterr().out
    graph, cluster = load_graph("graph.json").graph, load_cluster("cluster.json")
    costs = load_costs("costs.json", graph, cluster)
    assert costs.batches == (1, 16)
    cells = [cost for row in costs.rows_of(16) for cost in row]
    assert {cost.source for cost in cells} == {"regressed"}
    for device in range(len(cluster.devices)):
        small, large = (
            sum(row[device].ns or 0 for row in costs.rows_of(batch)) for batch in (1, 16)
        )
        assert small < large  # 16 items; how much more is a matter of the machine's noise


def test_a_batch_that_can_be_measured_is_not_estimated(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PROFILE, "-v", "--estimate-batch", "4"]) == 4
    said = capsys.readouterr().err
    assert "use --batch 4" in said
    assert "Reading" not in said, "told before any work"


def test_a_batch_is_not_estimated_where_nothing_is_measured(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ["profile", "model.onnx", "--cluster", "moirai-inter-server", "-v"]
    assert main([*elsewhere, "--predict", "--estimate-batch", "16"]) == 4
    said = capsys.readouterr().err
    assert "no device of cluster 'moirai-inter-server' is in this machine" in said
    assert "Reading" not in said, "told before any work"


@pytest.mark.costly
def test_sizes_that_a_model_leaves_open_are_given(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(make_model([node("Relu", "x", "y")], {"x": ["N", 4]}, ["y"]), "model.onnx")
    assert main([*PROFILE, *OUTPUTS]) == 4
    assert "(on the command line: --input NAME=" in capsys.readouterr().err
    assert main([*PROFILE, *OUTPUTS, "--input", "x=-1,4"]) == 4
    assert "sizes must not be negative" in capsys.readouterr().err
    assert main([*PROFILE, *OUTPUTS, "--input", "x=1,4"]) == 0
    assert load_graph("graph.json").graph.tensors[0].shape == (1, 4)


@pytest.mark.costly
def test_a_device_that_is_not_here_is_predicted(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = cpu_cluster()
    gpu = Device("gpu0", "cuda", "cuda -arch=sm_80", 63, 1, model="A100 SXM4 40GB")
    cpu = [replace(device, model="EPYC 9654") for device in here.devices]
    save_cluster(
        replace(
            here,
            memories=(*here.memories, Memory("card", 2**34)),
            devices=(*cpu, gpu),
            links=(Link("up", 0, 1, 10**10, 0, "up"), Link("down", 1, 0, 10**10, 0, "down")),
        ),
        "cluster.json",
    )
    assert main([*PROFILE, *OUTPUTS]) == 4
    assert "not in this machine: gpu0" in capsys.readouterr().err
    assert main([*PROFILE, *OUTPUTS, "--predict"]) == 0
    graph, cluster = load_graph("graph.json").graph, load_cluster("cluster.json")
    costs = load_costs("costs.json", graph, cluster)
    for row in costs.rows:
        assert {cost.source for cost in row[:-1]} == {"measured"}
        assert row[-1].source in ("scaled", "regressed", "roofline")
        assert row[-1].ns is not None


@pytest.mark.costly
@pytest.mark.parametrize("order", ["dfs", "pipeline"])
def test_a_model_is_measured_over_several_devices(files: Path, order: str) -> None:
    assert main([*PROFILE, *OUTPUTS, "--sequential", order]) == 0
    graph, cluster = load_graph("graph.json").graph, load_cluster("cluster.json")
    assert load_costs("costs.json", graph, cluster).num_tasks == len(graph.tasks)


@pytest.mark.costly
def test_interference_is_measured_and_noted(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PROFILE, "--interference", "--store", "own.sqlite"]) == 0
    assert "while other devices work: " in capsys.readouterr().out
    with CostStore("own.sqlite") as store:
        quantities = {note.quantity for note in store.notes() if note.kind == "interference"}
    assert quantities >= {"slowdown beside other devices", "slowest tenth", "core to core", "fetch"}


@pytest.mark.costly
def test_several_batch_sizes_are_in_one_table(files: Path) -> None:
    assert main([*PROFILE, *OUTPUTS, "--batch", "4,2"]) == 0
    graph = load_graph("graph.json").graph
    assert load_costs("costs.json", graph, load_cluster("cluster.json")).batches == (1, 2, 4)


@pytest.mark.costly
def test_details_are_plain_lines_elsewhere_than_on_a_terminal(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PROFILE, "-v"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Reading model.onnx"
    assert any(line.startswith("Measuring on cpu.0") for line in lines)
    assert not any("\x1b" in line for line in lines)


WRONG = {
    "no model": (["profile", "no.onnx", "--cluster", "cluster.json"], "there is no such file"),
    "no ONNX": (["profile", "cluster.json", "--cluster", "cluster.json"], "is not an ONNX model"),
    "no cluster": (["profile", "model.onnx", "--cluster", "no.json"], "no.json"),
    "no devices": (["profile", "model.onnx", "--cluster", "cpu-two-gpus"], "not in this machine"),
    "no folder": ([*PROFILE, "-o", "no/costs.json"], "folder 'no' does not exist"),
    "a folder": ([*PROFILE, "--graph-out", "."], "is a folder"),
    "no store": ([*PROFILE, "--store", "model.onnx"], "is no SQLite file"),
    "two ways": (
        [*PROFILE, "--batch", "8", "--estimate-batch", "8"],
        "leave out --estimate-batch, or 8 from --batch",
    ),
    "no host": ([*PROFILE, "--rpc", "far=127.0.0.1:1"], "on which cluster"),
}


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--estimate-batch", "16"], "give --predict, or leave out --estimate-batch"),
        (["--interference"], "leave out --interference"),
        (["--predict", "--interference"], "leave out --interference"),
    ],
)
def test_what_needs_all_devices_here_is_refused_before_any_work(
    files: Path, capsys: pytest.CaptureFixture[str], options: list[str], advice: str
) -> None:
    here = cpu_cluster()
    away = replace(here.devices[0], name="away", cores=(4095,))
    save_cluster(replace(here, devices=(*here.devices, away)), "cluster.json")
    assert main([*PROFILE, "-v", *options]) == 4
    said = capsys.readouterr().err
    assert "not in this machine: away" in said
    assert f"{advice} [HP" in said
    assert "Reading" not in said


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_inputs_are_told_and_nothing_is_written(
    files: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    arguments, text = WRONG[fault]
    if "-o" not in arguments:
        arguments = [*arguments, "-o", "costs.json"]
    before = (files / "model.onnx").read_bytes()
    assert main(arguments) == 4
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.startswith("error: ")
    assert captured.out == ""
    assert not (files / "costs.json").exists()
    assert not (files / "graph.json").exists()
    assert (files / "model.onnx").read_bytes() == before


@pytest.mark.parametrize(
    ("option", "value"),
    [("--batch", "1,0"), ("--batch", "two"), ("--budget", "0"), ("--rpc", "far:1"),
     ("--rpc", "far=a:70000")],
)  # fmt: skip
def test_wrong_options_are_usage_errors(
    files: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*PROFILE, option, value])
    assert f"argument {option}: expected" in capsys.readouterr().err


@pytest.mark.costly
def test_an_interrupt_keeps_what_was_measured(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []

    def interrupt(_: ProgressDisplay, done: int, total: int) -> None:
        if stages[-1].startswith("Measuring kernels") and done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        ProgressDisplay, "stage", lambda _, text, budget_s=None: stages.append(text)
    )
    monkeypatch.setattr(ProgressDisplay, "count", interrupt)
    assert main([*PROFILE, "--isolated", "-o", "costs.json"]) == 130
    assert "what was measured is kept in" in capsys.readouterr().err
    assert not (files / "costs.json").exists()
    monkeypatch.undo()
    monkeypatch.chdir(files)
    assert main([*PROFILE, "--isolated", "--json", "--store", "default.sqlite"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"]["1"]["known"] == 2


@pytest.mark.costly
def test_what_it_writes_is_taken_by_the_pass(files: Path) -> None:
    assert main([*PROFILE, *OUTPUTS]) == 0
    imported = from_onnx("model.onnx")
    with tvm.transform.PassContext(opt_level=3):
        place = relay.transform.HeteroPlace(cpu_cluster(), costs="costs.json", solver="heft")
        placed = read_solution(place(imported.bind_params()))
    assert placed is not None
    assert placed.graph == load_graph("graph.json").graph


@pytest.mark.costly
def test_the_pass_keeps_what_it_measures_in_a_store(files: Path) -> None:
    imported = from_onnx("model.onnx")
    with tvm.transform.PassContext(opt_level=3):
        options = {"costs": "isolated", "store": "pass.sqlite", "solver": "heft"}
        relay.transform.HeteroPlace(cpu_cluster(), **options)(imported.bind_params())
    with CostStore("pass.sqlite") as store:
        assert len({key.kernel for key, _ in store.rows()}) == 4
        assert {key.mode for key, _ in store.rows()} == {"hot"}
