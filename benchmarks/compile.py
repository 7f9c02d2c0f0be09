"""`benchmarks compile`: processor seconds from a model to kernels, ours against stock TVM.

Ours is import, neutral passes, segments, lowering, code generation and linking, for one device and
without measuring. Stock is TVM's `from_onnx` and `relay.build` of the same model. Each runs in a
process of its own, since TVM keeps what it lowered; starting Python and TVM is not counted. Beside
ours stands what `verify` adds: the run that is compared with onnxruntime, and the comparison; and
what it takes to import, place and build on all devices of this machine, without `verify`: `cold`
measures costs, chooses kernels and searches; `warm` finds the costs in the store of the run before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import heteroplace
from benchmarks.peers.fresh_process import answer, measure_in_fresh_process
from benchmarks.peers.stock import build_stock, cpu_seconds, import_stock, in_pass_context
from benchmarks.row_table import row_table
from benchmarks.run.comparison import compile_once
from heteroplace import frontend
from heteroplace.costs.store import PATH_VARIABLE
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import write_programs
from heteroplace.machine.local import local_cluster
from heteroplace.measure.plan_program import serial_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.solution import Solution
from heteroplace.parts.onnx.prepare.onnx_source import read_source
from heteroplace.parts.onnx.prepare.onnx_weights import light_model_names
from heteroplace.parts.onnx.verify.executable_check import verify_executable
from heteroplace.place_options import PlaceOptions
from heteroplace.tvm_bridge import llvm_cpu_target
from zoo.models.catalogue import (
    load_model,
    matching_names,
    onnx_model_of,
    small_network_names,
)
from zoo.models.transformers import gpt_onnx

GPT = "gpt_24_layers_graph_only"
_TRANSFORMER = "bert_base"


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    # The one that is quoted most comes first.
    names = sorted(light_model_names(), key=lambda name: name != "resnet50")
    names += [_TRANSFORMER, *small_network_names(), GPT]
    for name in matching_names(only, names):
        say(f"{name}: ours")
        row: dict[str, object] = {"name": name, **measure_in_fresh_process(__name__, "ours", name)}
        if name != GPT:
            say(f"{name}: stock TVM")
            row |= measure_in_fresh_process(__name__, "stock", name)
            ours = row["import_s"] + row["compile_s"]  # type: ignore[operator]
            stock: float = row["stock_import_s"] + row["stock_compile_s"]  # type: ignore[operator]
            row |= _placed(name, say)
            row |= {
                "ratio": round(stock / ours, 2),
                "warm_ratio": round(stock / row["warm_s"], 2),  # type: ignore[operator]
            }
        yield row


def _placed(name: str, say: Callable[[str], None]) -> dict[str, float]:
    """Place and build twice, by a store that the first run begins and the second finds."""
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        store = {PATH_VARIABLE: str(Path(folder) / "costs.sqlite")}
        for run_name in ("cold", "warm"):
            say(f"{name}: placed, {run_name}")
            found = measure_in_fresh_process(__name__, "placed", name, store)
            times[f"{run_name}_s"] = found["placed_s"]
    return times


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text; times in processor seconds."""
    columns = {
        "name": "network",
        "import_s": "import",
        "compile_s": "compile",
        "verify_s": "verify",
        "verify_share": "its share",
        "stock_import_s": "stock import",
        "stock_compile_s": "stock compile",
        "ratio": "stock / ours",
        "cold_s": "placed, cold",
        "warm_s": "placed, warm",
        "warm_ratio": "stock / warm",
    }
    return row_table(rows, columns)


def measure_ours(name: str) -> dict[str, float]:
    """Import and compile by our own way, in this process; of the GPT graph, only import."""
    if name == GPT:
        model = gpt_onnx(layers=24)
        start = cpu_seconds()
        frontend.from_onnx(model)
        return {"import_s": round(cpu_seconds() - start, 2)}
    network = load_model(name)
    cluster = local_cluster(has_gpus=False)
    start = cpu_seconds()
    with in_pass_context():
        compiled = compile_once(network, cluster)
    compile_s = cpu_seconds() - start
    source = read_source(network.mod)
    assert source is not None  # it was imported
    solution = _solution(compiled, cluster)
    placement = solution.plan.placement(len(compiled.graph.tasks))
    executable = write_programs(compiled.kernels(cluster, placement), [solution])[0]
    start = cpu_seconds()
    verify_executable(executable, compiled.network.mod, source, "on", PlaceOptions().max_error)
    verify_s = cpu_seconds() - start
    return {
        "import_s": round(network.import_s, 2),
        "compile_s": round(compile_s, 2),
        "verify_s": round(verify_s, 2),
        "verify_share": round(verify_s / (network.import_s + compile_s), 3),
    }


def _solution(compiled: CompiledNetwork, cluster: Cluster) -> Solution:
    """Everything on the first device, which is what was compiled; costs do not matter."""
    graph = compiled.graph
    costs = build_table(graph, cluster, lambda task, device: Cost.given(1))
    plan = serial_plan(graph, cluster, [0] * len(graph.tasks))
    return Solution(graph, cluster, costs, plan, predicted_ns=len(graph.tasks), bound_ns=0)


def measure_placed(name: str) -> dict[str, float]:
    """Import, place and build on this machine's processors, in this process."""
    network = load_model(name)
    start = cpu_seconds()
    with in_pass_context():
        heteroplace.build(network.mod, local_cluster(has_gpus=False), network.params, verify="off")
    return {"placed_s": round(network.import_s + cpu_seconds() - start, 2)}


def measure_stock(name: str) -> dict[str, float]:
    """Import and compile by stock TVM, in this process."""
    model = onnx_model_of(name)
    start = cpu_seconds()
    mod, params = import_stock(model)
    middle = cpu_seconds()
    build_stock(mod, params, llvm_cpu_target())
    return {
        "stock_import_s": round(middle - start, 2),
        "stock_compile_s": round(cpu_seconds() - middle, 2),
    }


if __name__ == "__main__":
    answer({"ours": measure_ours, "placed": measure_placed, "stock": measure_stock})
