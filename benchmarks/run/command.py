"""`benchmarks run`: run times of the chosen plan and of plans on one device, against the peers.

All times are of calls from arrays to arrays.
Two questions: is our executor as fast as stock TVM where both run the same kernels on the same
cores (aim: within 3 %), and what is the chosen plan worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.peers.stock import silence_tuning_hint
from benchmarks.row_table import row_table
from benchmarks.run.comparison import (
    CHOSEN,
    ONNXRUNTIME,
    STOCK_ALL,
    STOCK_ONE,
    Comparison,
    ComparisonOptions,
    compare_plans,
)
from heteroplace.machine.local import local_cluster
from zoo.models.catalogue import matching_models


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    silence_tuning_hint()
    cluster = local_cluster(has_gpus=False)
    for model, tell in matching_models(only, say):
        options = ComparisonOptions(say=tell)
        yield row_of(compare_plans(model, cluster, options))


def row_of(result: Comparison) -> dict[str, object]:
    """Return the figures of one network; times in ms."""
    timed = result.timed
    solution = result.executables[CHOSEN].solution
    # The first device has the fewest cores, the last one all of them.
    first, last = result.single_names[0], result.single_names[-1]
    row: dict[str, object] = {
        "name": result.model.name,
        "tasks": len(solution.graph.tasks),
        "devices_used": list(solution.devices_used),
        "chosen_ms": _ms(timed.median_ns(CHOSEN)),
        "predicted_ms": _ms(solution.expected_ns),
        "simulated_ms": _ms(solution.predicted_ns),
        "simulated_bound_ms": _ms(solution.bound_ns),
        "gap": round(solution.gap_ratio, 4),
        "one_device_ms": _ms(timed.median_ns(first)),
        "all_cores_ms": _ms(timed.median_ns(last)),
        "stock_tvm_ms": _ms(timed.median_ns(STOCK_ONE)),
        "stock_all_threads_ms": _ms(timed.median_ns(STOCK_ALL)),
        "one_device_to_stock": round(timed.ratio(first, STOCK_ONE), 3),
        "all_cores_to_stock": round(timed.ratio(last, STOCK_ALL), 3),
        "chosen_to_stock": round(timed.ratio(CHOSEN, STOCK_ALL), 3),
        "max_abs_diff_tvm": result.difference(CHOSEN, STOCK_ONE),
        "max_abs_diff_onnxruntime": result.difference(CHOSEN, ONNXRUNTIME),
        "core_to_core_ns": timed.median_core_to_core_ns,
        "onnxruntime_ms": None,
    }
    if ONNXRUNTIME in timed.turns:
        row["onnxruntime_ms"] = _ms(timed.median_ns(ONNXRUNTIME))
    return row


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text; times in ms."""
    columns = {
        "name": "network",
        "devices_used": "devices used",
        "chosen_ms": "chosen",
        "predicted_ms": "predicted",
        "gap": "gap, simulated",
        "all_cores_ms": "all cores",
        "stock_all_threads_ms": "stock",
        "all_cores_to_stock": "ratio",
        "one_device_ms": "one core",
        "stock_tvm_ms": "stock",
        "one_device_to_stock": "ratio",
        "onnxruntime_ms": "onnxrt, one core",
        "max_abs_diff_tvm": "diff TVM",
        "max_abs_diff_onnxruntime": "diff ort",
        "core_to_core_ns": "core to core ns",
    }
    return row_table(rows, columns, num_names=2)


def _ms(ns: int) -> float:
    return round(ns / 1e6, 4)
