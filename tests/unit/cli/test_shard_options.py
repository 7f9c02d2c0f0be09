"""`heteroplace shard`: what the command line, keywords and plan files say. Needs no TVM."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from heteroplace.cli.main import main
from heteroplace.errors import PlanError, ShardingError
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.sharding import (
    ShardingRecord,
    Told,
    load_sharding,
    save_sharding,
    sharding_from_json,
    sharding_to_json,
    told_text,
)
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions, read_shard_options
from heteroplace.parts.parallel.transforms.degrees import Degrees
from tests.strategies import Instance
from tests.unit.cli.test_show import solution_of

TOLD = Told(64, (2, 1, 2, 4), "gpipe", 2, 3, (5,), "sgd:0.1", "mse", 1, True, "end")


def test_degrees_come_as_text_or_as_parts() -> None:
    parts = {"data": 2, "tensor": 2, "pipeline": 1, "micro_batches": 1}
    assert read_shard_options({"batch": 8, **parts}).degrees == Degrees(2, 2, 1, 1)
    assert read_shard_options({"batch": 8, "degrees": "2,2,1"}).degrees == Degrees(2, 2, 1, 1)
    assert read_shard_options({"batch": 8}) == ShardOptions(batch=8, degrees="auto")


def test_the_batch_has_no_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["shard", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--batch N rows of the whole batch; needed --" in text


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ShardingError, match=r"schedule 'x'; there are .*; zero is 9.*about train"):
        read_shard_options({"batch": 8, "schedule": "x", "zero": 9})
    with pytest.raises(ShardingError, match=r"data is '2'; pipeline is 2\.0; each must be a whole"):
        read_shard_options({"batch": 8, "data": "2", "pipeline": 2.0})
    with pytest.raises(ShardingError, match=r"rows of the whole batch are missing"):
        read_shard_options({"data": 2})
    with pytest.raises(ShardingError, match=r"weight_gradients .x.; expected one of auto"):
        read_shard_options({"batch": 8, "weight_gradients": "x"})
    with pytest.raises(ShardingError, match=r"run_best is -1; expected 0 plans or more"):
        read_shard_options({"batch": 8, "run_best": -1})
    assert read_shard_options({"batch": 8}).most_run == 5
    assert read_shard_options({"batch": 8, "costs": "estimate"}).most_run == 0
    assert read_shard_options({"batch": 8, "data": 2}).most_run == 5
    assert read_shard_options({"batch": 8, "data": 2, "run_best": 1}).most_run == 1
    with pytest.raises(ShardingError, match="weight_gradients are about training"):
        read_shard_options({"batch": 8, "weight_gradients": "end"})
    for given in ({"loss": "cross_entropy"}, {"prediction": 0}):
        with pytest.raises(ShardingError, match=r"loss, prediction, .* are about training"):
            read_shard_options({"batch": 8, **given})
        assert read_shard_options({"batch": 8, "optimizer": "sgd:0.1", **given}).is_training
    late = {"batch": 8, "data": 2, "optimizer": "sgd:0.1", "weight_gradients": "end"}
    assert read_shard_options(late | {"zero": 1}).weight_gradients == "end"
    with pytest.raises(ShardingError, match="sums gradients at once, and ZeRO of level 2"):
        read_shard_options(late | {"zero": 2})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--degrees", "1,1"], "expected D,T,P or D,T,P,K"),
        (["--batch", "0"], "expected a whole number >= 1, got '0'"),
        (["--zero", "4"], "expected 0, 1, 2 or 3"),
        (["--cuts", "2,x"], "expected a whole number >= 1, got 'x'"),
        (["--schedule", "x"], "invalid choice: 'x'"),
        (["--weight-gradients", "x"], "invalid choice: 'x'"),
    ],
    ids=" ".join,
)
def test_wrong_values_end_the_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["shard", "m.onnx", "--cluster", "c.json", *arguments])
    assert message in capsys.readouterr().err


def test_a_missing_model_is_told_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["shard", "m.onnx", "--cluster", "c.json", "--batch", "4"]) == 4
    assert "m.onnx: there is no such file" in capsys.readouterr().err


def test_plan_file_round_trips_and_is_known_by_its_content(
    diamond: Instance, tmp_path: Path
) -> None:
    record = ShardingRecord(TOLD, solution_of(diamond))
    save_sharding(record, tmp_path / "plan.json")
    assert load_sharding(tmp_path / "plan.json") == record
    assert read_known_file(tmp_path / "plan.json")[0] == "sharding"


@pytest.mark.parametrize("name", Told.__struct_fields__)
def test_a_field_that_is_missing_or_wrong_is_told(name: str, diamond: Instance) -> None:
    value = json.loads(sharding_to_json(ShardingRecord(TOLD, solution_of(diamond))))
    wrong = value | {name: {"no": "value"}}
    del value[name]
    for each in (value, wrong) if name != "weight_gradients" else (wrong, value | {name: "x"}):
        with pytest.raises(PlanError, match="not a plan that `heteroplace shard` wrote"):
            sharding_from_json(json.dumps(each))


def test_gradients_of_an_older_file_are_summed_as_each_is_computed(diamond: Instance) -> None:
    value = json.loads(sharding_to_json(ShardingRecord(TOLD, solution_of(diamond))))
    del value["weight_gradients"]
    told = sharding_from_json(json.dumps(value)).told
    assert told == msgspec.structs.replace(TOLD, weight_gradients="each")
    assert "gradients" in told_text(TOLD) and "gradients" not in told_text(told)


def test_another_version_and_no_file_are_told(diamond: Instance, tmp_path: Path) -> None:
    text = sharding_to_json(ShardingRecord(TOLD, solution_of(diamond)))
    later = json.dumps(json.loads(text) | {"sharding_version": 2})
    with pytest.raises(PlanError, match="sharding version 2, this heteroplace reads 1"):
        sharding_from_json(later)
    with pytest.raises(PlanError, match="cannot be read"):
        load_sharding(tmp_path / "nothing.json")
