"""Repeated layers: a short network becomes the long one."""

from dataclasses import replace

import pytest

from benchmarks.distir.gpt2 import Gpt2
from benchmarks.distir.machine import MachineFigures, machine_cluster
from heteroplace.costs.prediction.op_costs import OpCosts
from heteroplace.errors import ShardingError
from heteroplace.model.graph import Task
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.repeat import repeat_layers
from heteroplace.parts.parallel.transforms.search_evaluator import Evaluator, SearchProblem


def described(sharded):
    """Everything but names and the order of layers' tasks among each other."""
    graph = sharded.graph

    def place(task):
        lane = sharded.lane[task]
        return sharded.layer[task], -1 if lane is None else lane, task

    order = sorted(range(len(graph.tasks)), key=place)
    numbers = {task: number for number, task in enumerate(order)}
    return [
        (
            *place(task)[:2],
            replace(graph.tasks[task], name="", weights=()),
            [size for _, size in graph.tasks[task].weights],
            [numbers.get(graph.tensors[t].producer) for t in graph.task_inputs[task]],
            [graph.tensors[t].shape for t in graph.task_outputs[task]],
        )
        for task in order
    ]


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_perceptron_of_more_layers(lanes, times):
    short, long = (Mlp(layers, 8, 3, lanes).inference() for layers in (6, 4 + 2 * times))
    found = repeat_layers(short, 1, 2, times)
    assert found.num_layers == long.num_layers
    assert described(found) == described(long)
    assert len(found.graph.outputs) == 1
    assert [whole.name for whole in found.whole] == ["x"]


def test_the_search_finds_what_it_finds_for_the_long_network():
    cluster = machine_cluster(MachineFigures(10**12, 3 * 10**9, 10**9, 700, 900, 10**9), 8)

    def short(lanes, rows, batch):
        return repeat_layers(Gpt2(4, 64, 4, rows, lanes).inference(), 1, 1, 6)

    def long(lanes, rows, batch):
        return Gpt2(9, 64, 4, rows, lanes).inference()

    for degrees in (Degrees(2, 2, 2, 2), Degrees(1, 2, 4, 4), Degrees(8, 1, 1, 1)):
        rows = [
            Evaluator(SearchProblem("gpt2", source, cluster, OpCosts(cluster))).row(16, degrees)
            for source in (short, long)
        ]
        assert rows[0] == rows[1]


def test_weights_that_layers_share_stay_shared():
    builder = ShardedBuilder("tied", 1, 3)
    value = builder.add_input("x", (4,), "float32")
    for layer in range(3):
        weights = (("tied", 8), (f"own{layer}", 4))
        entry = TaskEntry(Task(f"t{layer}", "add", flops=4, weights=weights), (value,), layer, 0)
        value = builder.add_op(entry, (4,), "float32", f"v{layer}")
    builder.outputs = [value]
    found = repeat_layers(builder.finalize(), 1, 1, 3).graph
    assert [task.weights[0] for task in found.tasks] == [("tied", 8)] * 5
    assert len({task.weights[1] for task in found.tasks}) == 5
    assert found.tensors[found.outputs[0]].name == "v2#3"


def test_what_cannot_be_repeated_is_refused():
    with pytest.raises(ShardingError, match="expected a graph for inference"):
        repeat_layers(Mlp(4, 8, 3).training(3), 0, 2, 3)
    inference = Mlp(4, 8, 3, 2).inference()
    with pytest.raises(ShardingError, match="expected a graph for inference"):
        repeat_layers(inference, 0, 2, 0)
    with pytest.raises(ShardingError, match="layers 0 and 1 have other tasks"):
        repeat_layers(inference, 0, 1, 2)
    for first, length in ((3, 1), (4, 1), (10, 1), (0, 3), (2, 2)):
        with pytest.raises(ShardingError, match=f"has 4 layers, and two groups of {length} from"):
            repeat_layers(inference, first, length, 3)


@pytest.mark.parametrize(
    ("skips", "first", "message"),
    [
        ({3: "v0"}, 0, "task 't3' reads 'v0', which no repeated layer has at its place"),
        ({1: "x", 2: "v0"}, 1, "task 't2' reads 'v0', which no repeated layer has at its place"),
        ({2: "x"}, 1, "layers 1 and 2 have other tasks in lane 0"),
    ],
)
def test_what_reads_over_a_group_is_refused(skips, first, message):
    """A value of the first group that a later layer reads; one layer that reads farther back."""
    builder = ShardedBuilder("skip", 1, 4)
    value = builder.add_input("x", (4,), "float32")
    for layer in range(4):
        reads = (skips[layer], value) if layer in skips else (value,)
        entry = TaskEntry(Task(f"t{layer}", "add", flops=4), reads, layer, 0)
        value = builder.add_op(entry, (4,), "float32", f"v{layer}")
    builder.outputs = [value]
    with pytest.raises(ShardingError, match=message):
        repeat_layers(builder.finalize(), first, 1, 2)
