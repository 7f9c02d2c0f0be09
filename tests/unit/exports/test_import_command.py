"""Device maps of accelerate become solutions, which are compared with plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heteroplace.cli.main import main
from heteroplace.errors import PlanError
from heteroplace.files.solution_file import load_solution
from heteroplace.parts.exports.device_map import write_device_map
from heteroplace.parts.exports.imported_map import import_device_map
from tests.placed_layers import chain_solution

LAYERS = {
    "/embed/Gather": "cpu",
    "/layers.0/attn/MatMul": "cpu",
    "/layers.0/mlp/MatMul": "cpu",
    "/layers.1/attn/MatMul": "cpu",
}
MAP = {"embed": "cpu", "layers": 1, "layers.0.mlp": 0}
PLACED = {
    "/embed/Gather": "cpu",
    "/layers.0/attn/MatMul": "gpu1",
    "/layers.0/mlp/MatMul": "gpu0",
    "/layers.1/attn/MatMul": "gpu1",
}


def free_chain() -> Any:
    """The chain on the CPU, whose tasks may run anywhere."""
    return chain_solution(LAYERS, is_pinned=False)


def test_the_longest_name_counts() -> None:
    assert import_device_map(free_chain(), MAP).layers() == PLACED


def test_what_is_exported_is_imported() -> None:
    written = write_device_map(chain_solution(PLACED)).text
    assert import_device_map(free_chain(), json.loads(written)).layers() == PLACED


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"embed": "cpu"}, "no place for layers.0.attn, layers.0.mlp, layers.1.attn; its names"),
        ({"": "disk"}, r"puts '' on 'disk'; expected cpu, 0, 1, the devices of cluster"),
        ({"": 2}, "puts '' on 2; expected cpu, 0, 1"),
        ({"": True}, "puts '' on True; expected"),
    ],
)
def test_maps_of_other_networks_are_refused(places: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        import_device_map(free_chain(), places)


def test_the_command_says_how_long_the_placement_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    free_chain().save("plan.json")
    Path("map.json").write_text(json.dumps(MAP))
    words = ["import", "map.json", "--from", "device-map", "--plan", "plan.json"]
    assert main([*words, "-o", "theirs.json"]) == 0
    assert "x the time of plan.json" in capsys.readouterr().out
    theirs = load_solution("theirs.json")
    assert theirs.layers() == PLACED
    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["expected_ns"] == theirs.expected_ns
    assert shown["ratio"] == pytest.approx(theirs.expected_ns / shown["of_plan_ns"])
    assert main(["diff", "plan.json", "theirs.json"]) == 0
    Path("map.json").write_text("[]")
    assert main(words) == 4
    assert "map.json: expected an object of modules" in capsys.readouterr().err
