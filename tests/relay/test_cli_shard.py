"""`heteroplace shard`, and `tvmc compile --placement` of the plan that it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shard_models import (
    BATCH,
    WIDTH,
    descend,
    forward,
    layer_weights,
    rank_cluster,
    rows_of,
    save_files,
)

import heteroplace
from heteroplace.cli.main import main
from heteroplace.cli.tvmc_plugin.tvmc import main as tvmc
from heteroplace.files.cluster_file import save_cluster

WRONG = 4
"""What `tvmc` returns for wrong input."""

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Arguments that name model, cluster and batch; the current folder is empty but for them."""
    monkeypatch.chdir(tmp_path)
    model, cluster = save_files(tmp_path)
    return (model, "--cluster", cluster, "--batch", str(BATCH), "--costs", "estimate")


@pytest.mark.costly
def test_table_ranks_degrees_and_tells_pure_ones(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", *files, "--top", "2", "--csv", "rows.csv"]) == 0
    text = capsys.readouterr().out
    assert "measured" not in text
    for words in ("D/T/P/K", "best pure D", "best pure T", "best pure P", "chosen", "more fit"):
        assert words in text
    assert "--tensor-model-parallel-size" in text
    assert "--global-batch-size 8" in text
    lines = Path("rows.csv").read_text().splitlines()
    assert main(["shard", *files, "--csv", "rows.csv"]) == 0
    assert Path("rows.csv").read_text().splitlines() == lines


def test_a_table_of_one_plan_and_a_file_that_is_no_table_are_refused(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", *files, "--degrees", "2,1,1", "--csv", "rows.csv"]) == 4
    assert "leave out the table, or the degrees" in capsys.readouterr().err
    assert not Path("rows.csv").exists()
    Path("notes.csv").write_text("a,b\n1,2\n")
    assert main(["shard", *files, "--csv", "notes.csv"]) == 4
    assert "the columns are a,b" in capsys.readouterr().err


@pytest.mark.costly(4)
@pytest.mark.parametrize("batch", ["2", "64"])
def test_degrees_of_a_step_of_training_are_found_for_any_batch(
    batch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, cluster = save_files(tmp_path)
    arguments = ["shard", model, "--cluster", cluster, "--batch", batch, "--train"]
    assert main([*arguments, "--degrees", "auto", "--costs", "estimate", "--json"]) == 0
    rows = {row["degrees"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["1/1/1/1"]["makespan_ns"] > 0 and rows["2/1/1/1"]["makespan_ns"] > 0


@pytest.mark.costly
def test_degrees_are_found_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cpu.all` is no rank beside `cpu.0`, and the cores' peak speeds are in no file."""
    model, _ = save_files(tmp_path)
    arguments = ["shard", model, "--cluster", "local", "--batch", "8"]
    assert main([*arguments, "--costs", "estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] in {row["degrees"] for row in found["rows"]}


def test_degrees_are_measured_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = save_files(tmp_path)
    arguments = ["shard", model, "--cluster", "local", "--batch", "8", "--store", "off"]
    assert main([*arguments, "--degrees", "1,1,1", "-o", str(tmp_path / "plan.json")]) == 0
    assert "chosen: 1/1/1/1 on cpu.0" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "plan.json")]) == 0


@pytest.mark.costly
def test_a_device_that_is_not_here_and_no_rank_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = save_files(tmp_path)
    here = rank_cluster()
    absent = replace(here.devices[1], cores=(4095,), flops_per_second=None)
    save_cluster(replace(here, devices=(here.devices[0], absent)), tmp_path / "far.json")
    arguments = ["shard", model, "--cluster", str(tmp_path / "far.json"), "--batch", "8"]
    assert main([*arguments, "--degrees", "1,1,1", "--store", "off"]) == 4
    assert "cpu.1 (core 4095" in capsys.readouterr().err
    assert main([*arguments, "--store", "off", "--devices", "cpu.0", "--degrees", "1,1,1"]) == 0
    assert main([*arguments, "--devices", "cpu.0", "--costs", "estimate"]) == 0


@pytest.mark.costly
def test_run_measures_the_best_and_takes_the_fastest(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--run-best", "2", "--json", "-o", "plan.json"]
    assert main(["shard", *files, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    measured = {row["degrees"]: row["measured_ns"] for row in found["rows"] if row["measured_ns"]}
    assert len(measured) == 2
    assert measured[found["chosen"]] == min(measured.values())
    assert json.loads(Path("plan.json").read_text())["sharding_version"] == 1


@pytest.mark.costly
def test_plan_is_compiled_by_tvmc_and_shown(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", *files, "--degrees", "1,1,2,4", "-o", "plan.json"]) == 0
    assert tvmc(["compile", files[0], "--placement", "plan.json", "-o", "mlp.so"]) == 0
    (output,) = heteroplace.load("mlp.so").run(x=rows_of(3))
    np.testing.assert_allclose(output, forward(layer_weights(), rows_of(3))[-1], atol=1e-5)
    sized = ["--input-shapes", f"x:[-1,{WIDTH}]", "--placement-dry-run"]
    assert tvmc(["compile", files[0], "--placement", "plan.json", *sized]) == 0
    assert main(["check", "plan.json"]) == 0
    capsys.readouterr()
    assert main(["show", "plan.json"]) == 0
    assert capsys.readouterr().out.startswith(
        "batch 8, degrees 1/1/2/4, schedule 1f1b, inference\ncluster ranks"
    )


@pytest.mark.costly
@pytest.mark.parametrize(
    "options",
    [
        ("--zero", "1", "--degrees", "2,1,1"),
        ("--degrees", "1,1,2,4", "--weight-gradients", "end"),
    ],
    ids=" ".join,
)
def test_plan_of_training_is_compiled_by_tvmc(
    options: tuple[str, ...], files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    training = ["--train", "--optimizer", "sgd:0.5", *options]
    assert main(["shard", *files, *training, "-o", "plan.json"]) == 0
    assert ("gradients at the end" in capsys.readouterr().out) == ("end" in options)
    assert tvmc(["compile", files[0], "--placement", "plan.json", "-o", "step.so"]) == 0
    executor = heteroplace.load("step.so")
    weights = layer_weights()
    for step in range(2):
        (loss,) = executor.run(x=rows_of(step), labels=rows_of(step + 5))
        expected, weights = descend(weights, rows_of(step), rows_of(step + 5), 0.5)
        assert float(loss) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(executor.state("w0").T, weights[0], atol=1e-5)


@pytest.mark.costly
def test_plan_of_another_model_and_options_without_effect_are_refused(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["shard", *files, "--degrees", "1,2,1", "-o", "plan.json"]) == 0
    command = ["compile", files[0], "--placement", "plan.json", "-o", "mlp.so"]
    assert tvmc([*command, "--placement-option", "pin=nn.dense=cpu.0"]) == WRONG
    assert "--placement-option would change nothing" in capsys.readouterr().err
    assert tvmc([*command, "--input-shapes", "x:[-1,-1]"]) == WRONG
    assert "'x' has other free sizes than its rows" in capsys.readouterr().err
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps(plan | {"degrees": [2, 1, 1, 1]}))
    assert tvmc(command) == WRONG
    assert "it is the plan of another model" in capsys.readouterr().err
    Path("plan.json").write_text(json.dumps(plan | {"sharding_version": 7}))
    assert tvmc(command) == WRONG
    assert "sharding version 7, this heteroplace reads 1" in capsys.readouterr().err
    assert not (tmp_path / "mlp.so").exists()


def test_copies_from_a_host_that_is_no_rank_leave_no_negative_bubble(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", *files, "--devices", "cpu.1", "--degrees", "1,1,1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    # The rank gets the inputs itself; the host gets the result while the rank has nothing to do.
    assert 0 < row["bubble"] < row["communication"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--degrees", "3,1,1"], 4, "a batch of 8 rows cannot be cut into 3 replicas"),
        (["--degrees", "2,2,1"], 4, "need 4 devices"),
        (["--optimizer", "sgd:1"], 4, "add --train"),
        (["--zero", "1"], 4, "about training"),
        (["-o", "nowhere/plan.json"], 4, "folder 'nowhere' does not exist"),
        (["--input", "x=8,-1"], 4, "the shape (8, -1): sizes must not be negative"),
        (["--input", "x=-1,-1"], 4, "'x' has other free sizes than its rows"),
        (["--train", "--loss", "sad"], 4, "there is no loss 'sad'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_told(
    files: tuple[str, ...],
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["shard", *files, *arguments]) == code
    assert message in capsys.readouterr().err


@pytest.mark.costly
def test_no_place_for_a_model_is_told_by_a_code_of_its_own(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = json.loads(Path("two.json").read_text())
    for memory in cluster["memories"]:
        memory["size"] = "2 KiB"
    Path("two.json").write_text(json.dumps(cluster))
    assert main(["shard", *files]) == 3
    assert "fits into the memories of cluster 'ranks'" in capsys.readouterr().err
    assert main(["shard", *files, "--degrees", "2,1,1"]) == 3
    assert "degrees 2/1/1/1 for 8 rows do not fit: memory " in capsys.readouterr().err
