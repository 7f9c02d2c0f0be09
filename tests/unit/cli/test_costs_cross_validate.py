"""The command `costs cross-validate`, under a parser of its own."""

import argparse
import json

import pytest

from heteroplace.cli.machine import costs_cross_validate
from heteroplace.errors import MissingCostError
from heteroplace.files.cluster_file import cluster_to_json
from heteroplace.files.costs_file import save_costs
from heteroplace.files.graph_file import save_graph
from tests.unit.costs.synthetic import layers, machine, measured_table


@pytest.fixture
def files(tmp_path):
    graph, cluster = layers(), machine()
    save_graph(graph, tmp_path / "g.json")
    (tmp_path / "c.json").write_text(json.dumps(cluster_to_json(cluster)))
    save_costs(measured_table(graph, cluster, set()), graph, cluster, tmp_path / "t.json")
    return tmp_path


def run(*arguments):
    parser = argparse.ArgumentParser()
    costs_cross_validate.add_cross_validate(parser.add_subparsers())
    parsed = parser.parse_args(["cross-validate", *map(str, arguments)])
    parsed.run(parsed)


def test_errors_are_printed_by_device_and_op(files, capsys):
    run("--graph", files / "g.json", "--cluster", files / "c.json", "--costs", files / "t.json")
    text = capsys.readouterr().out
    assert text.startswith("costs: 100 % measured\n\neach device predicted from the others\ndevice")
    assert "nn.dense+add" in text
    row = next(line for line in text.splitlines() if line.startswith("npu     regression"))
    assert row.split()[-1] == "1.000"


def test_every_prediction_is_in_the_json(files, capsys):
    paths = ["--graph", files / "g.json", "--cluster", files / "c.json"]
    run(*paths, "--costs", files / "t.json", "--json")
    value = json.loads(capsys.readouterr().out)
    assert value["by_device"][0] == {
        "method": "calibrated roofline",
        "task": "dense0",
        "device": "old",
        "op": "nn.dense+add+nn.relu",
        "predicted_ns": value["by_device"][0]["predicted_ns"],
        "measured_ns": 4096,  # 2 x 2 * 32 * 64 * 64 flops at 4 GHz x 32
    }
    assert {trial["method"] for trial in value["by_kernel"]} >= {"regression"}


def test_costs_are_needed(files):
    with pytest.raises(MissingCostError, match="gives no times"):
        run("--graph", files / "g.json", "--cluster", files / "c.json")
