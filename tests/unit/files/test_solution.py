"""placement: what travels with a module comes back as it was, or is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.cli.models.onnx_model import solution_json
from heteroplace.errors import PlanError
from heteroplace.files.file_versions import Versioned
from heteroplace.files.solution_file import SOLUTION_VERSION, solution_from_json, solution_to_json
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.model.verification import TOO_FAR_OFF, LayerPrecision, PrecisionChoice
from heteroplace.report.layer_precisions import precision_json, precision_line, precision_table
from heteroplace.report.notes import solution_notes
from tests.instances import cpu, instance
from tests.strategies import Instance, exact_cases, instances_with_plan


def with_targets(made: Instance) -> Instance:
    """The instance with targets that a cluster file accepts."""
    devices = tuple(
        replace(d, target={"cpu": "llvm"}.get(d.kind, d.kind)) for d in made.cluster.devices
    )
    cluster = replace(made.cluster, devices=devices)
    return replace(made, cluster=cluster, costs=replace(made.costs, devices=cluster.identities))


def chain() -> Solution:
    """a -> b on two cores and both; b on the second."""
    made = with_targets(instance([("a", "b")], {"a": (4, 4, 2), "b": (6, 6, 3)}, cpu()))
    plan = Plan(made.graph.digest(), made.cluster.digest(), (Run(0, 0), Run(1, 1)), "by hand")
    return Solution(
        made.graph, made.cluster, made.costs, plan, 10, 5, (("heft", 10), ("cpsat", None))
    )


def test_json_and_back() -> None:
    assert solution_from_json(solution_to_json(chain())) == chain()
    many = replace(chain(), item_ns=6)
    assert solution_from_json(solution_to_json(many)) == many
    assert (many.objective_ns, chain().objective_ns) == (6, 10)


@exact_cases(50)
@given(instances_with_plan())
def test_any_placement_survives_json(case) -> None:
    made, plan = with_targets(case[0]), case[1]
    plan = replace(plan, cluster_digest=made.cluster.digest())
    placement = Solution(made.graph, made.cluster, made.costs, plan, 7, 3)
    found = solution_from_json(solution_to_json(placement))
    assert found == placement
    assert solution_to_json(found) == solution_to_json(placement)


def test_a_device_that_a_task_is_kept_from_stays_so_beside_one_like_it() -> None:
    cluster = chain().cluster
    builder = TaskGraphBuilder("pinned")
    builder.add_task(Task("a", "op", devices=(cluster.devices[0].name,)), [])
    graph = builder.finalize([builder.add_tensor("a", num_bytes=4)])
    costs = build_table(graph, cluster, lambda *_: Cost.measured(100, 1))
    plan = Plan(graph.digest(), cluster.digest(), (Run(0, 0),), "test")
    solution = Solution(graph, cluster, costs, plan, 100, 100)
    assert costs.cost(0, 1).source == "excluded"
    assert solution_from_json(solution_to_json(solution)) == solution


def test_the_choice_of_precisions_is_read_back_and_told() -> None:
    layers = (
        LayerPrecision("a", "bf16", "", 0.004, 2, 9_000, 5_000),
        LayerPrecision("b", "float32", TOO_FAR_OFF, None, 1, 9_000, None),
    )
    solution = replace(chain(), precision_choice=PrecisionChoice(0.01, 0.004, layers))
    assert solution_from_json(solution_to_json(solution)) == solution
    assert precision_line(solution) == (
        "precision: 1 of 2 tasks that may be in bfloat16 are, which moves outputs by 0.004 of "
        "their largest value (max_error=0.01); in float32: 1 too far off (b no number)"
    )
    first, second = precision_table(solution).splitlines()[1:]
    assert first.split() == ["a", "bf16", "0.004", "1", "others", "9.00", "us", "5.00", "us"]
    assert second.split() == [
        "b",
        "float32",
        "too",
        "far",
        "off",
        "no",
        "number",
        "alone",
        "9.00",
        "us",
        "-",
    ]
    assert precision_json(chain())["precision_choice"] is None


def test_gap_is_relative_to_the_prediction() -> None:
    assert chain().gap_ratio == 0.5
    assert replace(chain(), bound_ns=10).gap_ratio == 0.0
    assert replace(chain(), predicted_ns=0, bound_ns=0).gap_ratio == 0.0


def test_devices_used_are_in_the_order_of_the_cluster() -> None:
    placement = chain()
    plan = replace(placement.plan, steps=(Run(0, 2), Run(1, 0)))
    assert replace(placement, plan=plan).devices_used == ("cpu.0", "cpu.all")
    assert placement.devices_used == ("cpu.0", "cpu.1")


def test_the_best_single_device_is_the_fastest_and_the_first_of_equals() -> None:
    placement = chain()
    assert placement.best_single is None
    singles = (("cpu.0", 10), ("cpu.1", 5), ("cpu.all", 5))
    assert replace(placement, singles=singles).best_single == ("cpu.1", 5)


def test_another_version_is_refused_with_both_numbers() -> None:
    value = json.loads(solution_to_json(chain())) | {"placement_version": 9}
    with pytest.raises(PlanError, match=f"here: placement version 9, .* {SOLUTION_VERSION}; place"):
        solution_from_json(json.dumps(value), "here")


@pytest.mark.parametrize("version", [True, 1.0, "1", None])
def test_what_equals_a_version_and_is_none_is_refused(version: object) -> None:
    kind = Versioned("thing", 1, "a thing", "make it again")
    with kind.read('{"thing_version": 1}', "here"):
        pass
    text = json.dumps({"thing_version": version})
    told = pytest.raises(PlanError, match=f"here: thing version {json.dumps(version)}, .* 1; make")
    with told, kind.read(text, "here"):
        pass


@pytest.mark.parametrize("field", json.loads(solution_to_json(chain())))
def test_a_missing_field_is_a_typed_error(field: str) -> None:
    value = json.loads(solution_to_json(chain()))
    del value[field]
    with pytest.raises(PlanError, match="not a placement that heteroplace wrote"):
        solution_from_json(json.dumps(value))


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "{", f'{{"placement_version": {SOLUTION_VERSION}}}']
)
def test_other_json_is_a_typed_error(text: str) -> None:
    with pytest.raises(PlanError, match="not a placement that heteroplace wrote"):
        solution_from_json(text)


def test_a_disturbed_measurement_is_a_note_that_travels_with_the_solution() -> None:
    disturbed = replace(chain(), others_cores=0.9)
    (note,) = (each for each in solution_notes(disturbed) if "Other programs" in each)
    assert note.startswith("Other programs used 0.9 cores while costs were measured")
    assert solution_from_json(solution_to_json(disturbed)) == disturbed
    value = solution_json(disturbed)
    assert (value["others_cores"], note in value["notes"]) == (0.9, True)
    assert not any("Other programs" in each for each in solution_notes(chain()))
