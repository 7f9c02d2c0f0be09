"""Names of layers become those of PyTorch's modules."""

from __future__ import annotations

from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.parts.exports.module_names import modules_of_graph, scopes_of_layers


def test_ops_of_functions_count_to_the_module_of_their_task() -> None:
    builder = TaskGraphBuilder("net")
    for number, layers in enumerate((("/a/Gemm", "Phi_1", "/a/act/Gelu"), ("Cast_2", "/b/Gemm"))):
        builder.add_task(Task(f"t{number}", "op", tuple(f"{layer}:op" for layer in layers)), [])
        builder.add_tensor(f"t{number}", num_bytes=4)
    graph = builder.finalize(["t0.0", "t1.0"])
    assert modules_of_graph(graph, None) == {
        "/a/Gemm": "a",
        "Phi_1": "a",
        "/a/act/Gelu": "a.act",
        "Cast_2": "b",
        "/b/Gemm": "b",
    }


def test_sequences_inside_sequences_have_their_names_once() -> None:
    (scopes,) = scopes_of_layers(["/model/body/body.0/body.0.1/conv/Conv"], None).values()
    assert scopes == (
        "model",
        "model.body",
        "model.body.0",
        "model.body.0.1",
        "model.body.0.1.conv",
    )
