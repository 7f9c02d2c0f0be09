"""The pipeline is a list of stages: their order, their times, and one simulation of the plan."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

import heteroplace as hp
from heteroplace import pipeline
from heteroplace.cli.main import main
from heteroplace.entries import load_entry
from heteroplace.lower.executable import Executable
from heteroplace.model.plan import Plan
from heteroplace.model.timeline import Timeline
from heteroplace.pipeline.build_stages import build_stages
from heteroplace.pipeline.place_stages import place_stages
from heteroplace.relay.output_names import with_output_names
from heteroplace.simulate import simulator
from heteroplace.solve import network_solution
from heteroplace.stage_log import StageLog
from tests.relay.relay_models import cpu_cluster, random_costs, two_branches

README = Path(pipeline.__file__).with_name("README.md")
ALL_PLACE_STAGES, ALL_BUILD_STAGES = place_stages(), build_stages()
SKIPPED = {
    *("check-verify", "routes", "weights-file", "branches", "saved-kernels"),
    *("precision", "drop-kernels", "verify", "verify-inputs", "place-again"),
    *("state", "resident-state"),
}
"""By a plain Relay network without options."""


def test_every_stage_has_a_function_and_a_sentence() -> None:
    for stage in (*ALL_PLACE_STAGES, *ALL_BUILD_STAGES):
        assert callable(load_entry(stage.entry))
        assert stage.purpose.endswith(".")
    for stages in (ALL_PLACE_STAGES, ALL_BUILD_STAGES):
        assert len({stage.name for stage in stages}) == len(stages)


def test_the_readme_states_the_order_of_the_list() -> None:
    _, placing, building = re.split("## Order of .*", README.read_text())
    for text, stages in (
        (placing, ALL_PLACE_STAGES),
        (building.partition("##")[0], ALL_BUILD_STAGES),
    ):
        steps = re.findall(r"^\d+\. (.*?):", text, re.MULTILINE)
        names = [name for step in steps for name in re.findall("`(.*?)`", step)]
        assert names == [stage.name for stage in stages]


@pytest.mark.costly
def test_stages_run_in_their_order_and_those_without_use_are_skipped() -> None:
    log = StageLog()
    given = {"costs": "estimate", "progress": log}
    placed = pipeline.annotate_network(two_branches(), cpu_cluster(), given)
    pipeline.build_module(placed, log=log)
    placing = [stage.name for stage in ALL_PLACE_STAGES]
    building = [stage.name for stage in ALL_BUILD_STAGES]
    assert [time.name for time in log.times] == [*placing, "annotate", *building]
    assert {time.name for time in log.times if time.wall_s is None} == SKIPPED


@pytest.mark.costly
def test_what_is_compiled_at_once_is_not_written_into_the_module_and_read_again() -> None:
    log = StageLog()
    given = {"costs": "estimate", "progress": log}
    pipeline.compile_network(two_branches(), cpu_cluster(), given, log)
    stages = [stage.name for stage in (*ALL_PLACE_STAGES, *ALL_BUILD_STAGES)]
    assert [time.name for time in log.times] == stages
    skipped = {time.name for time in log.times if time.wall_s is None}
    assert skipped == SKIPPED | {"plan", "contents"}


@pytest.mark.costly
def test_a_plan_that_is_built_and_shown_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    simulate = simulator.simulate

    def count(*given: object, **options: object) -> Timeline:
        plans.extend(value for value in given if isinstance(value, Plan))
        return simulate(*given, **options)

    for module in (simulator, network_solution):
        monkeypatch.setattr(module, "simulate", count)
    executable = hp.build(two_branches(), cpu_cluster(), costs="estimate")
    executable.summary()
    executable.solution.diff(executable.solution)
    assert [plan.steps for plan in plans] == [executable.solution.plan.steps]


@pytest.mark.costly(3)
@pytest.mark.parametrize("options", [{"solver": "heft"}, {"items": 2}, {"objective": "throughput"}])
def test_the_executable_is_that_of_the_annotated_module(options: dict[str, object]) -> None:
    given = {"costs": random_costs, **options}
    mod = with_output_names(two_branches(), ["out"])
    with tvm.transform.PassContext(opt_level=3):
        direct = pipeline.compile_network(mod, cpu_cluster(), given)
        read = pipeline.build_module(pipeline.annotate_network(mod, cpu_cluster(), given))
    assert direct.solution == read.solution
    assert direct.solution.timeline == read.solution.timeline
    assert direct.manifest.outputs == read.manifest.outputs
    assert [name for name, _, _ in direct.manifest.outputs] == ["out"]
    assert programs_of([direct, read])[0] == programs_of([direct, read])[1]
    assert np.array_equal(direct.blob, read.blob)
    assert tvm.ir.structural_equal(direct.source.mod, read.source.mod, map_free_vars=True)


def programs_of(executables: list[Executable]) -> list[str]:
    # TVM numbers kernels of one name through all that a process compiles.
    texts = [executable.manifest.program_text for executable in executables]
    return [re.sub(r"^(kernel .*?)_\d+$", r"\1", text, flags=re.MULTILINE) for text in texts]


@pytest.mark.costly(4)
def test_compile_and_run_print_the_stages_with_their_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETEROPLACE_MODELS", str(tmp_path / "models"))
    value = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "m.onnx")
    options = ["m.onnx", "--costs", "estimate", "--verify", "off", "--stages"]
    expected = ["start", "import", *(stage.name for stage in ALL_PLACE_STAGES)]
    expected += [*(stage.name for stage in ALL_BUILD_STAGES), "write"]
    ran = ["load", "run"]
    for command, names in (("compile", expected), ("run", [*expected, *ran]), ("run", ran)):
        with tvm.transform.PassContext():
            assert main([command, *options]) == 0
        table = capsys.readouterr().out.partition("\n\n")[0].splitlines()
        assert table[0].split()[:3] == ["stage", "time", "CPU"]
        assert [line.split()[0] for line in table[1:]] == names
    with tvm.transform.PassContext():
        assert main(["run", *options, "--rebuild", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert [stage["name"] for stage in stages] == [*expected, *ran]
    assert all((stage["wall_s"] is None) == (stage["cpu_s"] is None) for stage in stages)
    assert all(stage["wall_s"] is None or stage["wall_s"] >= 0 for stage in stages)
