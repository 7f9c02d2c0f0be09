"""Read and write a whole solution as JSON: graph, cluster, costs and plan in one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple

import msgspec
from msgspec import Struct

from heteroplace.files.cluster_file import cluster_from_json, cluster_to_json
from heteroplace.files.costs_file import costs_to_json, table_from_json
from heteroplace.files.fields.fields import Count
from heteroplace.files.file_versions import Versioned, read_text
from heteroplace.files.graph_file import graph_from_json, graph_to_json
from heteroplace.files.plan_file import plan_from_json, plan_to_json
from heteroplace.model.routed.speculation import PlannedPrediction, Prediction, SpeculationGain
from heteroplace.model.solution import RunTime, Solution
from heteroplace.model.verification import PrecisionChoice

SOLUTION_VERSION = 3
"""Version of the JSON form."""
_ABSENT = {"predictions": (), "single_times": (), "others_cores": 0.0, "precision_choice": None}
"""Fields that are left out where they say nothing, with what they are then."""


class _Prediction(Struct):
    router: str
    branches: tuple[int, ...]
    probability: float | None
    saved_ns: float
    miss_ns: float

    def planned(self) -> PlannedPrediction:
        prediction = Prediction(self.router, self.branches, self.probability)
        return PlannedPrediction(prediction, SpeculationGain(self.saved_ns, self.miss_ns))


class _Told(Struct):
    """What a solution says beside its parts."""

    predicted_ns: Count
    bound_ns: Count
    candidates: tuple[tuple[str, Count | None], ...]
    singles: tuple[tuple[str, Count], ...]
    expected_ns: tuple[Count, Count, Count] | None
    item_ns: Count | None
    predictions: tuple[_Prediction, ...]
    single_times: tuple[tuple[str, tuple[Count, Count, Count]], ...]
    others_cores: float
    precision_choice: PrecisionChoice | None


def solution_to_json(solution: Solution) -> str:
    """Return the JSON text."""
    choice = solution.precision_choice
    return json.dumps(
        {
            "placement_version": SOLUTION_VERSION,
            "graph": graph_to_json(solution.graph),
            "cluster": cluster_to_json(solution.cluster),
            "costs": costs_to_json(solution.costs, solution.graph, solution.cluster),
            "plan": plan_to_json(solution.plan, solution.graph, solution.cluster),
            "predicted_ns": solution.predicted_ns,
            "bound_ns": solution.bound_ns,
            "candidates": [list(candidate) for candidate in solution.candidates],
            "singles": [list(single) for single in solution.singles],
            "expected_ns": None if solution.expected is None else list(astuple(solution.expected)),
            "item_ns": solution.item_ns,
            # What is empty is left out, so that such solutions stay as they were.
            **({"single_times": _single_times(solution)} if solution.single_times else {}),
            **({"precision_choice": asdict(choice)} if choice is not None else {}),
            **({"others_cores": solution.others_cores} if solution.others_cores else {}),
            **({"predictions": _told(solution.predictions)} if solution.predictions else {}),
        },
        allow_nan=False,
    )


def _single_times(solution: Solution) -> list[object]:
    return [[name, list(astuple(time))] for name, time in solution.single_times]


def _told(predictions: Sequence[PlannedPrediction]) -> list[dict[str, object]]:
    return [
        {
            "router": each.prediction.router,
            "branches": list(each.prediction.branches),
            "probability": each.prediction.probability,
            "saved_ns": each.gain.saved_ns,
            "miss_ns": each.gain.miss_ns,
        }
        for each in predictions
    ]


def load_solution(path: str | os.PathLike[str]) -> Solution:
    """Return the solution in a file; raises as `solution_from_json`, or if it cannot be read."""
    return solution_from_json(read_text(path), os.fspath(path))


def solution_from_json(text: str, source: str = "placement") -> Solution:
    """Read the JSON text.

    Raises
    ------
    PlanError
        Another version, or a field is missing. (Faults inside graph, cluster, costs and plan
        are raised as their own error types.)
    """
    what = Versioned("placement", SOLUTION_VERSION, "a placement that heteroplace wrote",
                     "place the model again")  # fmt: skip
    with what.read(text, source) as value:
        graph = graph_from_json(value["graph"], f"{source}: graph").graph
        cluster = cluster_from_json(value["cluster"], f"{source}: cluster")
        costs = table_from_json(value["costs"], graph, cluster, f"{source}: costs")
        costs.check(graph, cluster)
        plan = plan_from_json(value["plan"], graph, cluster, f"{source}: plan")
        value = _ABSENT | value
        fields = msgspec.convert({name: value[name] for name in _Told.__struct_fields__}, _Told)
    return Solution(
        *(graph, cluster, costs, plan, fields.predicted_ns, fields.bound_ns),
        *(fields.candidates, fields.singles),
        None if fields.expected_ns is None else RunTime(*fields.expected_ns),
        fields.item_ns,
        tuple(each.planned() for each in fields.predictions),
        tuple((name, RunTime(*times)) for name, times in fields.single_times),
        fields.others_cores,
        fields.precision_choice,
    )
