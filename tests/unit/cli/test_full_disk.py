"""A disk that is full: the error names the file, and nothing half-written stays."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heteroplace.cli.main import main
from heteroplace.costs.store import CostStore
from heteroplace.errors import ArtifactError
from heteroplace.files.cluster_file import save_cluster
from heteroplace.files.costs_file import save_costs
from heteroplace.files.graph_file import save_graph
from heteroplace.model.cost import table_from_rows
from heteroplace.run.array_files import write_arrays
from tests.measurements import row
from tests.programs import files_of_at_most
from tests.strategies import Instance

PLACE = (
    *("place", "--solver", "heft", "--graph", "graph.json", "--cluster", "cluster.json"),
    *("--costs", "costs.json"),
)
COMMANDS = {
    "plan": (*PLACE, "--plan", "{}"),
    "solution": (*PLACE, "-o", "{}"),
    "trace": (*PLACE, "--trace", "{}"),
    "report": (*PLACE, "--report", "{}"),
    "page of a solution": ("report", "solution.json", "-o", "{}"),
    "measurements": ("costs", "export", "{}", "--store", "costs.sqlite"),
    "recording": ("routes", "synthesise", "{}", "--runs", "4", "--branches", "4"),
    "profile": ("routes", "synthesise", "{}", "--runs", "4", "--branches", "4"),
}
ENDINGS = {"recording": ".jsonl", "report": ".html", "page of a solution": ".html"}


@pytest.fixture(autouse=True)
def here(diamond: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the commands read."""
    monkeypatch.chdir(tmp_path)
    devices = tuple(replace(device, target="cuda") for device in diamond.cluster.devices)
    cluster = replace(diamond.cluster, devices=devices)
    save_graph(diamond.graph, "graph.json")
    save_cluster(cluster, "cluster.json")
    costs = table_from_rows(diamond.graph, cluster, diamond.costs.rows)
    save_costs(costs, diamond.graph, cluster, "costs.json")
    assert main([*PLACE, "-o", "solution.json"]) == 0
    with CostStore("costs.sqlite") as store:
        store.add(*row(1))
    return tmp_path


@pytest.mark.parts
@pytest.mark.parametrize("kind", sorted(set(COMMANDS) - {"measurements"}))  # the store grows
def test_every_command_names_the_file_and_leaves_none(
    here: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"result{ENDINGS.get(kind, '.json')}"
    command = [word.format(name) for word in COMMANDS[kind]]
    before = sorted(path.name for path in here.iterdir())
    capsys.readouterr()
    with files_of_at_most(20):
        assert main(command) == 4
    assert f"File too large: '{name}'" in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == before
    (here / name).write_text("old")
    with files_of_at_most(20):
        assert main(command) == 4
    assert (here / name).read_text() == "old"
    assert main(command) == 0
    assert (here / name).stat().st_size > 20


@pytest.mark.parts
@pytest.mark.parametrize("kind", sorted(set(COMMANDS) - {"recording"}))
def test_a_full_device_is_named(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("this machine has no /dev/full")
    assert main([word.format("/dev/full") for word in COMMANDS[kind]]) == 4
    assert "No space left on device: '/dev/full'" in capsys.readouterr().err


def test_arrays_are_written_whole_or_not_at_all(here: Path) -> None:
    with files_of_at_most(20), pytest.raises(ArtifactError, match=r"y\.npz: cannot be written"):
        write_arrays("y.npz", {"y": np.zeros(100)})
    assert not list(here.glob("*y.npz*"))
