"""The examples of file formats in files/README.md are real files that fit each other."""

import json
import re
from importlib import resources

from heteroplace.files.cluster_file import cluster_from_json
from heteroplace.files.fields.given_times import costs_from_times
from heteroplace.files.graph_file import graph_from_json


def test_examples_can_be_read():
    text = (resources.files("heteroplace") / "files/README.md").read_text("utf-8")
    cluster_text, graph_text = re.findall(r"((?:^    .*\n)+)", text, re.MULTILINE)
    cluster = cluster_from_json(json.loads(cluster_text))
    read = graph_from_json(json.loads(graph_text))
    table = costs_from_times(read.graph, cluster, read.times)
    assert [cost.ns for cost in table.rows[0]] == [2_000_000, 500_000]
    assert [cost.ns for cost in table.rows[1]] == [1_000_000, None]
