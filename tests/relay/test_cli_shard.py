"""`heteroplace shard`, and `tvmc compile --placement` of the plan that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from shard_models import BATCH, WIDTH, descend, forward, layer_weights, rows_of, save_files

import heteroplace
from heteroplace.cli.main import main
from heteroplace.cli.tvmc import main as tvmc

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
    assert tvmc([*command, "--placement-pin", "nn.dense=cpu.0"]) == WRONG
    assert "--placement-pin would change nothing" in capsys.readouterr().err
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
        (["--input-shapes", "x"], 4, "--input-shapes 'x':"),
        (["--input-shapes", "x:[8,-1]"], 4, "the shape (8, -1): sizes must not be negative"),
        (["--input-shapes", "x:[-1,-1]"], 4, "'x' has other free sizes than its rows"),
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
