"""`bench profile`: measuring all distinct kernels of a network, against one stock build of it.

Ours is everything from Relay to measured times: neutral passes, segments, lowering, code
generation, linking, and each distinct kernel alone with warm and with cold caches, on one core.
Stock is `relay.build` of the same network as TVM's own front end imports it. Neither counts the
import. Each runs in a process of its own, one after the other, without a store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from heteroplace import pipeline
from heteroplace.bench.models.catalogue import load_model, matching_names, onnx_model_of
from heteroplace.bench.peers.fresh_process import answer, measure_in_fresh_process
from heteroplace.bench.peers.stock import build_stock, cpu_seconds, import_stock, in_pass_context
from heteroplace.bench.row_table import row_table
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.machine.local import local_cluster
from heteroplace.measure.isolated import COLD, HOT
from heteroplace.measure.options import ProfileOptions
from heteroplace.measure.profile import profile_network
from heteroplace.parts.onnx.prepare.onnx_weights import light_model_names
from heteroplace.tvm_bridge import llvm_cpu_target

DEFAULT = "^resnet50$"
"""What is measured without --only."""


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    for name in matching_names(only or DEFAULT, light_model_names()):
        row: dict[str, object] = {"name": name}
        for side in ("ours", "stock"):
            say(f"{name}: {side}")
            row |= measure_in_fresh_process(__name__, side, name)
        for clock in ("wall", "cpu"):
            ours, stock = float(row[f"{clock}_s"]), float(row[f"stock_{clock}_s"])  # type: ignore[arg-type]
            row[f"{clock}_ratio"] = round(ours / stock, 3)
        yield row


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text; times in seconds. A ratio below 1: profiling is the quicker one."""
    columns = {
        "name": "network",
        "kernels": "kernels",
        "measured": "measurements",
        "wall_s": "wall",
        "cpu_s": "CPU",
        "measure_s": "of it measuring",
        "stock_wall_s": "stock wall",
        "stock_cpu_s": "stock CPU",
        "wall_ratio": "wall ratio",
        "cpu_ratio": "CPU ratio",
    }
    return row_table(rows, columns)


def measure_ours(name: str) -> dict[str, float]:
    """Profile a network on one core, in this process."""
    model = load_model(name)
    cluster = local_cluster(local_cluster(has_gpus=False).devices[-1].cores[:1], has_gpus=False)
    wall, cpu = time.perf_counter(), cpu_seconds()
    with in_pass_context():
        compiled = CompiledNetwork.of(pipeline.prepare(model.mod, model.params))
        options = ProfileOptions(is_in_place=False, modes=(HOT, COLD))
        found = profile_network(compiled, cluster, options)
    return {
        "kernels": found.num_kernels,
        "measured": found.num_measured,
        "wall_s": round(time.perf_counter() - wall, 2),
        "cpu_s": round(cpu_seconds() - cpu, 2),
        "measure_s": round(found.measure_s, 2),
    }


def measure_stock(name: str) -> dict[str, float]:
    """Build a network by stock TVM, in this process."""
    mod, params = import_stock(onnx_model_of(name))
    wall, cpu = time.perf_counter(), cpu_seconds()
    build_stock(mod, params, llvm_cpu_target())
    return {
        "stock_wall_s": round(time.perf_counter() - wall, 2),
        "stock_cpu_s": round(cpu_seconds() - cpu, 2),
    }


if __name__ == "__main__":
    answer({"ours": measure_ours, "stock": measure_stock})
