"""Torchvision's networks: published sizes, DiviML's means, chains that nothing gains on."""

from __future__ import annotations

import pytest

from heteroplace.errors import GraphError
from heteroplace.solve import SolveOptions, get_solver
from zoo.graphs.batches import with_batches
from zoo.graphs.clusters import divi_node
from zoo.graphs.torchvision import (
    BATCH_SIZES,
    MEAN_NS,
    NETWORKS,
    network_graph,
    torchvision,
)

SIZES = {
    "alexnet": (61.10, 0.71),
    "vgg16": (138.36, 15.47),
    "resnet18": (11.69, 1.81),
    "resnet50": (25.56, 4.09),
    "squeezenet1_0": (1.25, 0.82),
    "mobilenet_v2": (3.50, 0.30),
    "densenet121": (7.98, 2.83),
    "googlenet": (6.62, 1.50),
    "inception_v3": (23.83, 5.71),
}
"""Million parameters (without auxiliary heads) and thousand million multiply-adds of the zoo; ours
have neither biases nor norms."""


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_their_published_sizes(name: str) -> None:
    graph = network_graph(name)
    parameters, products = SIZES[name]
    assert sum(task.weight_bytes for task in graph.tasks) / 4e6 == pytest.approx(parameters, 0.015)
    assert sum(task.flops for task in graph.tasks) / 2e9 == pytest.approx(products, rel=0.02)
    # One input, one output, and all between on the way.
    assert len(graph.outputs) == 1 and all(map(len, graph.predecessors[1:]))


def test_the_means_of_all_networks_are_those_of_the_paper() -> None:
    totals = [torchvision(name).native.run_ns.sum(axis=0) for name in NETWORKS]
    for index, device in enumerate(divi_node().devices):
        mean = sum(int(total[index]) for total in totals) / len(totals)
        assert mean == pytest.approx(MEAN_NS[device.name], rel=1e-4)


def test_a_batch_reads_weights_once() -> None:
    problem = torchvision("alexnet", BATCH_SIZES)
    one, most = problem.native.batch_run_ns[0], problem.native.batch_run_ns[-1]
    assert (most >= one).all() and (most < BATCH_SIZES[-1] * one).all()
    dense = next(i for i, task in enumerate(problem.graph.tasks) if task.op == "dense")
    assert (most[dense] < 10 * one[dense])[1:].all(), "its weights are most of its bytes"
    assert with_batches(problem, 128) is problem


def test_chains_stay_on_one_device_and_branches_gain() -> None:
    """DiviML, figure 3: no gain for AlexNet and VGG, more for GoogLeNet."""
    gains = {}
    for name in ("alexnet", "vgg16", "googlenet"):
        problem = torchvision(name)
        best = get_solver("single").solve(problem, SolveOptions()).objective_ns
        gains[name] = best / get_solver("heft").solve(problem, SolveOptions()).objective_ns
    assert gains["alexnet"] == gains["vgg16"] == 1.0
    assert gains["googlenet"] > 1.3


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(GraphError, match="no network 'lenet': expected one of alexnet"):
        torchvision("lenet")
