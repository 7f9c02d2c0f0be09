"""Moirai's transformers: op counts, shapes, costs that differ, memory that is scaled."""

from __future__ import annotations

import pytest

from heteroplace.errors import ClusterError, GraphError, MissingCostError
from zoo.graphs.clusters import (
    fill_memories,
    inter_server,
    intra_server,
    memory_need,
)
from zoo.graphs.roofline import roofline_costs
from zoo.graphs.transformer import (
    OP_CLASSES,
    TRANSFORMERS,
    Transformer,
    transformer_costs,
    transformer_graph,
)

# "Ops" of Moirai's tables IV and V.
PUBLISHED_OPS = {
    "swin-1.8b": 6496,
    "swin-6.6b": 14352,
    "swin-13b": 22120,
    "gpt3-330m": 4872,
    "gpt3-1.3b": 9480,
    "gpt3-2.7b": 12640,
    "gpt3-13b": 19640,
    "af2-87m": 5136,
    "af2-930m": 12992,
    "af2-2.4b": 37920,
    "af2-3.2b": 50560,
}
TINY = Transformer("tiny", layers=2, hidden=8, heads=2, rows=3, length=4)


def test_all_models_have_the_published_number_of_ops() -> None:
    assert {name: model.num_tasks for name, model in TRANSFORMERS.items()} == PUBLISHED_OPS


@pytest.mark.parametrize("name", ["gpt3-330m", "af2-87m", "swin-1.8b"])
def test_a_graph_has_as_many_tasks_as_its_model_says(name: str) -> None:
    assert len(transformer_graph(TRANSFORMERS[name]).tasks) == PUBLISHED_OPS[name]


def test_each_op_has_one_output_and_only_the_last_is_unread() -> None:
    graph = transformer_graph(TINY)
    assert len(graph.tasks) == 2 * (12 * 2 + 11)
    assert [len(ids) for ids in graph.task_outputs] == [1] * len(graph.tasks)
    unread = [i for i, tensor in enumerate(graph.tensors) if not tensor.consumers]
    assert unread == list(graph.outputs)
    assert graph.tensors[graph.outputs[0]].shape == (3, 4, 8)
    assert [task for task, before in enumerate(graph.predecessors) if not before] == [
        task for task, value in enumerate(graph.tasks) if value.name == "layer0.norm1"
    ]


def test_weights_are_those_of_a_transformer_layer() -> None:
    graph = transformer_graph(TINY)
    hidden = TINY.hidden
    matrices = (3 + 1 + 4 + 4) * hidden * hidden
    vectors = (3 + 1 + 4 + 1) * hidden + 2 * 2 * hidden
    weights = sum(task.weight_bytes for task in graph.tasks)
    assert weights == TINY.layers * 4 * (matrices + vectors)


def test_attention_flops_follow_from_the_shapes() -> None:
    graph = transformer_graph(TINY)
    task = next(task for task in graph.tasks if task.name == "layer0.head0.scores")
    # 3 rows of 4 x 4 scores, 4 multiply-adds each.
    assert task.flops == 2 * 3 * 4 * 4 * 4


def test_gpt_330m_has_about_that_many_weights() -> None:
    graph = transformer_graph(TRANSFORMERS["gpt3-330m"])
    weights = sum(task.weight_bytes for task in graph.tasks) / 4
    # The name counts the embeddings too, which are no ops of the graph.
    assert 0.85 * 330e6 < weights < 330e6


def test_device_ratios_differ_between_op_classes() -> None:
    model = TRANSFORMERS["gpt3-1.3b"]
    graph = transformer_graph(Transformer("one", 1, model.hidden, model.heads, 1, model.length))
    costs = transformer_costs(graph, inter_server())
    row = {task.name: costs.rows[i] for i, task in enumerate(graph.tasks)}
    ratios = [
        tuple(round(cost.ns / row[name][0].ns, 2) for cost in row[name])
        for name in ("layer0.fc1", "layer0.head0.softmax")
    ]
    # The 3060 Ti is faster than the 2080 Ti where flops count, and slower where bytes do.
    assert ratios[0][3] < 1 < ratios[1][3]


def test_costs_need_a_class_for_every_op() -> None:
    graph = transformer_graph(TINY)
    classes = {op: value for op, value in OP_CLASSES.items() if op != "gelu"}
    with pytest.raises(MissingCostError, match="ops without a class: gelu"):
        roofline_costs(graph, inter_server(), classes)


def test_heads_must_divide_the_hidden_size() -> None:
    with pytest.raises(GraphError, match="heads must divide hidden"):
        transformer_graph(Transformer("odd", 1, 8, 3, 1, 1))


def test_memories_are_scaled_in_proportion_to_the_need() -> None:
    graph = transformer_graph(TINY)
    tensors = sum(tensor.bytes for tensor in graph.tensors if tensor.producer is not None)
    weights = sum(task.weight_bytes for task in graph.tasks)
    assert memory_need(graph) == weights + tensors + 4 * 2**20
    cluster = fill_memories(intra_server(), graph, 0.5)
    sizes = [memory.bytes for memory in cluster.memories]
    assert sum(sizes) == pytest.approx(2 * memory_need(graph), rel=1e-6)
    assert sizes[0] == sizes[1]
    assert sizes[0] / sizes[2] == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize("fill", [0.0, 1.5])
def test_fill_must_be_a_part(fill: float) -> None:
    with pytest.raises(ClusterError, match="fill must be in"):
        fill_memories(intra_server(), transformer_graph(TINY), fill)


def test_links_have_the_published_bandwidth_in_each_direction() -> None:
    cluster = inter_server()
    speed = {link.name: link.bytes_per_second for link in cluster.links}
    assert len(speed) == 12
    assert (speed["A-B"], speed["B-A"]) == (5_532_500_000, 5_298_750_000)
    assert len(cluster.channels) == 12
    assert len(set(cluster.units)) == 4
    assert len(set(intra_server().units)) == 4
