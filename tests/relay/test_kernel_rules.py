"""Kernels that may never end on a GPU are neither compiled nor measured nor placed there."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relay

from heteroplace.errors import InfeasibleError, LoweringError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.devices_under_test import find_devices_under_test
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, allowed_devices, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.kernel_rules import UNSAFE_ON_CUDA
from heteroplace.model.solution import Solution
from heteroplace.pipeline import prepare
from heteroplace.relay.annotate.annotation_reader import read_solution
from tests.relay.relay_models import mixed_cluster, module, var

pytestmark = pytest.mark.relay

SORTING = {
    "topk": lambda x: relay.topk(x, k=3, axis=1, ret_type="values"),
    "sort": lambda x: relay.sort(x, axis=1),
    "argsort": lambda x: relay.argsort(x, axis=1, dtype="int32"),
}


def model(op: str) -> tvm.IRModule:
    """A product, on which the op is called."""
    x = var("x", (4, 64))
    weight = relay.const(tvm.nd.array([[0.5] * 64] * 32).numpy().astype("float32"))
    return module([x], SORTING[op](relay.nn.dense(x, weight)))


def fast_gpu() -> Cluster:
    """A core, and a GPU that is quicker at everything."""
    cluster = mixed_cluster()
    speeds = {"cpu": 10**9, "cuda": 10**13}
    return replace(
        cluster,
        devices=tuple(
            replace(
                device,
                flops_per_second=speeds[device.kind],
                memory_bytes_per_second=speeds[device.kind],
            )
            for device in cluster.devices
        ),
        links=tuple(replace(link, latency_ns=1) for link in cluster.links),
    )


def device_of(solution: Solution, op: str) -> str:
    """The device of the first task with an op."""
    task = next(index for index, task in enumerate(solution.graph.tasks) if op in task.op)
    (device,) = solution.plan.devices_of_tasks(len(solution.graph.tasks))[task]
    return solution.cluster.devices[device].name


def gpu_is_free(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """A user's table that praises the GPU for every task."""
    row = (Cost.given(10**6), Cost.given(1))
    return table_from_rows(graph, cluster, (row,) * len(graph.tasks))


@pytest.mark.parametrize("costs", ["estimate", gpu_is_free], ids=["estimated", "given"])
@pytest.mark.parametrize("op", list(SORTING))
def test_sorting_stays_on_a_cpu_however_fast_the_gpu_is(op: str, costs: object) -> None:
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(fast_gpu(), costs=costs, verify="off")(model(op))
    solution = read_solution(placed)
    assert solution is not None
    assert device_of(solution, op) == "cpu.0"
    assert device_of(solution, "nn.dense") == "gpu0"
    task = next(index for index, task in enumerate(solution.graph.tasks) if op in task.op)
    cost = solution.costs.cost(task, 1)
    assert cost == Cost.unsupported(f"TVM's CUDA kernel for {op} may never end; run it on a CPU")


def test_sorting_that_is_pinned_to_a_gpu_is_an_error_before_anything_is_compiled() -> None:
    with pytest.raises(InfeasibleError, match=r"gpu0: TVM's CUDA kernel for topk may never end"):
        relay.transform.HeteroPlace(fast_gpu(), pin={"*": "gpu0"}, costs="measure")(model("topk"))


def test_later_patterns_of_a_pin_keep_sorting_on_a_cpu() -> None:
    pin = {"*": "gpu0", "topk": "cpu.0"}
    options = {"pin": pin, "costs": "estimate", "verify": "off"}
    placed = relay.transform.HeteroPlace(fast_gpu(), **options)(model("topk"))
    solution = read_solution(placed)
    assert solution is not None
    assert device_of(solution, "topk") == "cpu.0"


def test_no_kernel_that_may_never_end_is_lowered_for_a_gpu() -> None:
    network = prepare(model("topk"))
    compiled, cluster = CompiledNetwork.of(network), fast_gpu()
    with pytest.raises(LoweringError, match="TVM's CUDA kernel for topk may never end"):
        compiled.calls(cluster, [1] * len(network.graph.tasks))


def test_a_gpu_is_measured_with_its_sorting_on_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    from heteroplace.measure import devices_under_test

    monkeypatch.setattr(devices_under_test, "missing_devices", lambda *_: [])
    graph = prepare(model("topk")).graph
    cluster = fast_gpu()
    gpu = next(each for each in find_devices_under_test(graph, cluster) if each.device == 1)
    names = [task.op for task in graph.tasks]
    assert gpu.placement == tuple(0 if name == "topk" else 1 for name in names)
    assert [ids for ids, name in zip(allowed_devices(graph, cluster), names, strict=True)] == [
        (0,) if name == "topk" else (0, 1) for name in names
    ]


def test_the_rule_covers_all_of_tvms_kernels_with_hand_written_barriers() -> None:
    """And so those that call a sort: `unique` and non-maximum suppression."""
    folder = Path(importlib.import_module("tvm.topi.cuda").__file__ or "").parent
    texts = {path.name: path.read_text() for path in folder.rglob("*.py")}
    assert {name for name, text in texts.items() if "tvm_storage_sync" in text} == {
        "nms.py",
        "proposal.py",
        "sort.py",
    }
    sorting = {name for name, text in texts.items() if re.search(r"from \.+sort import", text)}
    # `scatter.py` sorts by Thrust alone, which this TVM is built without.
    assert sorting == {"nms.py", "scatter.py", "unique.py"}
    assert {name for name in UNSAFE_ON_CUDA if tvm.ir.Op.get(name).name == name} == UNSAFE_ON_CUDA
    assert tvm.get_global_func("tvm.contrib.thrust.sort", allow_missing=True) is None
