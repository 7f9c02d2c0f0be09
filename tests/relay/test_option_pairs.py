"""Any two options of a placement work together, or are refused with the reason at once."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm
from onnx_models import random_inputs, run_onnxruntime
from option_pairs import (
    DIMENSIONS,
    REFUSED,
    WITHOUT_PAIRS,
    Case,
    Rule,
    Setup,
    cases,
    cluster_of,
    is_slow,
    keywords_of,
    make_setup,
    network,
    refusal,
)

import heteroplace as hp
from heteroplace import options
from heteroplace.model.implementations import base_names
from heteroplace.model.plan import Run
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.parts.onnx.imported_model import ImportedModel
from heteroplace.parts.onnx.prepare.onnx_source import with_source
from heteroplace.place_options import OPTION_CLASSES, read_options
from heteroplace.relay.annotate.annotation_reader import read_solution

ALL = dict(cases())
REFUSED_CASES = {name: case for name, case in ALL.items() if refusal(case) is not None}
WORKING = {name: case for name, case in ALL.items() if name not in REFUSED_CASES}
_PART = 16
"""One of so many working pairs that compile nothing to find a plan is tried in every run."""
QUICK = dict([pair for pair in WORKING.items() if not is_slow(pair[1])][::_PART])


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return make_setup(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def imported(setup: Setup) -> ImportedModel:
    return hp.frontend.from_onnx(setup.model)


def place(case: Case, setup: Setup, imported: ImportedModel) -> tvm.IRModule:
    """Place the network as the case says."""
    mod = imported.mod if case["model"].name == "onnx" else with_source(imported.mod, None)
    keywords = keywords_of(case, setup)
    with tvm.transform.PassContext(opt_level=3):
        return hp.HeteroPlace(cluster_of(case), params=imported.params, **keywords)(mod)


def check_plan_of(case: Case, mod: tvm.IRModule) -> None:
    """The plan keeps what the case demands of it."""
    solution = read_solution(mod)
    assert solution is not None
    devices = base_names(solution.cluster)  # kernels=best adds twins
    used = [
        (solution.graph.tasks[step.task].name, devices[step.device], item)
        for step in solution.plan.steps
        if isinstance(step, Run)
        for item in step.items
    ]
    assert solution.plan.items == (2 if case["items"].name == "two" else 1)
    if case["pin"].name == "op":
        assert {name for task, name, _ in used if task.startswith("conv2d")} == {"cpu.0"}
    excluded = {"one": "cpu.all", "pinned": "cpu.0"}.get(case["exclude"].name)
    assert excluded not in {name for _, name, _ in used}
    if case["no_split"].name == "all" or case["solver"].name == "single":
        for item in range(solution.plan.items):
            assert len({name for _, name, of in used if of == item}) == 1


def test_every_option_has_a_dimension_or_a_reason_to_have_none() -> None:
    names = [entry.name for cls in OPTION_CLASSES for entry in options.options_of(cls)]
    unknown = [name for name in names if name not in DIMENSIONS and name not in WITHOUT_PAIRS]
    assert not unknown, "say in option_pairs.py what they mean beside the others"
    # The others are the cluster and the model.
    assert set(DIMENSIONS) - set(names) == {"device", "model"}
    assert set(WITHOUT_PAIRS) < set(names)


@pytest.mark.parametrize("rule", REFUSED, ids=lambda rule: " ".join(rule.held.values()))
def test_every_rule_decides_some_pair(rule: Rule) -> None:
    assert any(refusal(case) is rule for case in ALL.values())


def test_what_the_options_alone_refuse_is_refused_by_them(setup: Setup) -> None:
    """Of all pairs, those that compile and measure too: that is told before anything is opened."""
    for case in ALL.values():
        rule = refusal(case)
        if rule is None:
            read_options(keywords_of(case, setup))
        elif set(rule.held) <= {"inputs", "costs", "missing"}:
            with pytest.raises(rule.error, match=rule.match):
                read_options(keywords_of(case, setup))


def _check_refused(name: str, setup: Setup, imported: ImportedModel) -> None:
    case = ALL[name]
    rule = refusal(case)
    assert rule is not None

    def measured(*_: object, **__: object) -> None:
        # An error that TVM carries through a pass, as pytest's own is not.
        raise AssertionError(f"{name}: a kernel was run before it was refused")

    _replace_executors(NativeExecutor, measured)
    try:
        with pytest.raises(rule.error, match=f"(?s){rule.match}"):
            place(case, setup, imported)
    finally:  # also in modules that were loaded meanwhile
        _replace_executors(measured, NativeExecutor)


def _replace_executors(old: object, new: object) -> None:
    """Replace the executor in all modules that have it."""
    for module in [it for key, it in sys.modules.items() if key.startswith("heteroplace.")]:
        for attribute in ("Executor", "NativeExecutor"):
            if getattr(module, attribute, None) is old:
                setattr(module, attribute, new)


QUICK_REFUSED = {name: case for name, case in REFUSED_CASES.items() if not is_slow(case)}


@pytest.mark.costly
@pytest.mark.parametrize("dimension", sorted({name.split("=")[0] for name in QUICK_REFUSED}))
def test_what_does_not_go_together_is_refused_before_anything_is_measured(
    dimension: str, setup: Setup, imported: ImportedModel
) -> None:
    """The pairs that begin with this dimension, but those with costs by a file or a model."""
    for name in QUICK_REFUSED:
        if name.startswith(f"{dimension}="):
            _check_refused(name, setup, imported)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in REFUSED_CASES if name not in QUICK_REFUSED])
def test_no_cost_is_measured_for_what_is_refused(
    name: str, setup: Setup, imported: ImportedModel
) -> None:
    _check_refused(name, setup, imported)


@pytest.mark.parametrize("name", QUICK)
def test_a_part_of_the_pairs_has_a_plan(name: str, setup: Setup, imported: ImportedModel) -> None:
    check_plan_of(ALL[name], place(ALL[name], setup, imported))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKING)
def test_every_other_pair_is_built_and_gives_the_right_numbers(
    name: str, setup: Setup, imported: ImportedModel
) -> None:
    case = ALL[name]
    mod = place(case, setup, imported)
    check_plan_of(case, mod)
    solution = read_solution(mod)
    assert solution is not None
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod)
    is_compared = case["verify"].name != "off" and case["model"].name == "onnx"
    assert (executable.verification is not None) == is_compared
    if any(name.partition(":")[0] == "far" for name in solution.devices_used):
        assert executable.verification is None or not executable.verification.is_verified
        return
    if executable.verification is not None:
        assert executable.verification.is_verified
    items = solution.plan.items
    each = [random_inputs(network(), seed) for seed in range(items)]
    inputs = {name: np.concatenate([item[name] for item in each]) for name in each[0]}
    expected = np.concatenate([run_onnxruntime(network(), item)[0] for item in each])
    (actual,) = hp.Executor(executable).run(**inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
