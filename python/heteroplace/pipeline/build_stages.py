"""An annotated module -> an executable, stage by stage; and a plan -> the annotated module."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import tvm

from heteroplace.errors import VerificationError
from heteroplace.lower.carried import with_kernels
from heteroplace.lower.compile import CompiledNetwork, task_targets
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.model.solution import Solution
from heteroplace.pipeline.build_state import BuildState
from heteroplace.pipeline.module_contents import read_contents, read_plan
from heteroplace.pipeline.stage import Stage, run_stages, with_added_stages
from heteroplace.place_options import read_options
from heteroplace.relay.annotate.moved import SplitPlan
from heteroplace.relay.annotate.requested_options import requested_value
from heteroplace.relay.annotate.tunings_attribute import with_tunings
from heteroplace.relay.annotate.writer import annotate as annotate_plan
from heteroplace.relay.module_source import with_source_of
from heteroplace.relay.output_names import read_output_names, with_output_names
from heteroplace.relay.source import Source
from heteroplace.stage_log import StageLog
from heteroplace.state_option import StateNames

_HERE = "heteroplace.pipeline.build_stages"

BUILD_STAGES: tuple[Stage[BuildState], ...] = (
    Stage(
        "plan",
        "Read the plan and compare it with the annotations.",
        f"{_HERE}:read",
        lambda state: state.contents is None,
    ),
    Stage(
        "place-again",
        "Make a new plan if annotations split a task of the old one.",
        "heteroplace.pipeline.placing_again:place_again",
        lambda state: isinstance(state.plan, SplitPlan),
    ),
    Stage(
        "contents",
        "Read the network and the kernels.",
        f"{_HERE}:read_network",
        lambda state: state.contents is None,
    ),
    Stage("build", "Compile the missing kernels and write the program.", f"{_HERE}:write"),
)
"""The core's stages, in the order in which an annotated module is built."""


def build_stages() -> tuple[Stage[BuildState], ...]:
    """Return the stages of the core and of the parts."""
    return with_added_stages(BUILD_STAGES, "build_stages")


def check_verifier(verify: str) -> None:
    """Raise VerificationError where verify='on' is requested and no part adds a stage `verify`."""
    if verify == "on" and not any(stage.name == "verify" for stage in build_stages()):
        raise VerificationError(
            "verify='on' cannot be done: no installed package adds the stage 'verify'; install "
            "heteroplace with its part `onnx`, or give verify='auto'"
        )


def annotate(compiled: CompiledNetwork, solution: Solution) -> tvm.IRModule:
    """Write a plan into the module, with its kernels if costing has lowered them."""
    extraction = compiled.network.extraction
    assert extraction is not None  # what is placed was cut here
    mod = annotate_plan(extraction, solution, compiled.network.model_digest)
    mod = with_tunings(mod, solution.cluster, compiled.network.tunings)
    placement = solution.plan.placement(len(compiled.graph.tasks))
    kernels = compiled.known_kernels(solution.cluster, placement)
    # Those of batches are compiled to be built.
    if kernels is None or solution.plan.items > 1:
        return mod
    targets = task_targets(compiled.graph, solution.cluster, placement)
    return with_kernels(mod, compiled.network.digest, targets, kernels)


def annotate_as(
    mod: tvm.IRModule, compiled: CompiledNetwork, solution: Solution, verify: str | None = None
) -> tvm.IRModule:
    """Annotate with the output names and the source of the module that was placed.

    Parameters
    ----------
    verify
        The option of the pass; None: it stays.
    """
    placed = with_output_names(annotate(compiled, solution), read_output_names(mod))
    return with_source_of(placed, mod, verify)


def build(
    compiled: CompiledNetwork,
    solution: Solution,
    log: StageLog | None = None,
    state: StateNames = MappingProxyType({}),
    max_sessions: int = 1,
) -> Executable:
    """Compile what is not compiled yet, and write the program of a plan.

    Parameters
    ----------
    state, max_sessions
        The options: what sessions keep, and how many there are.

    Raises
    ------
    LoweringError, InfeasibleError, SolverError
        See `write_programs`.
    """
    log = log or StageLog()
    kernels = compiled.kernels_of(solution.cluster, solution.plan, log.count)
    log.say("Linking")
    names = compiled.network.output_names
    source = Source(compiled.network.mod, tvm.transform.PassContext.current().opt_level)
    (executable,) = write_programs(kernels, [solution], (), names, state, max_sessions)
    manifest = replace(executable.manifest, model_digest=compiled.network.model_digest)
    return replace(executable, source=source, manifest=manifest)


def build_module(
    mod: tvm.IRModule,
    verify: str | None = None,
    log: StageLog | None = None,
) -> Executable:
    """Build a module that is placed; its annotations say where every op runs.

    Parameters
    ----------
    verify
        "auto", "on" or "off", as the option of the pass; None: as the module was placed.
    log
        Notes the time of each stage.

    Raises
    ------
    LoweringError
        The module is not annotated, or its annotations contradict each other; an op has no
        implementation on the target of its device.
    InfeasibleError
        The compiled program does not fit in some memory.
    VerificationError
        It was imported, and its outputs are not those of its source.
    """
    return run_build(BuildState(mod, verify, log or StageLog()))


def run_build(state: BuildState) -> Executable:
    """Run the stages of building; errors as of `build_module`."""
    return run_stages(build_stages(), state, state.log).known_executable


def read(state: BuildState) -> BuildState:
    """Read the plan, brought up to date with the annotations."""
    return replace(state, plan=read_plan(state.mod))


def read_network(state: BuildState) -> BuildState:
    """Read what else the module carries."""
    state = replace(state, contents=read_contents(state.mod, state.known_plan))
    check_verifier(state.verify)
    return state


def write(state: BuildState) -> BuildState:
    """Write the program."""
    contents = state.known_contents
    defaults: dict[str, Any] = {"state": {}, "max_sessions": 1}
    texts = {name: requested_value(state.mod, name, value) for name, value in defaults.items()}
    options, _ = read_options(texts)
    with state.log.stage("build", "Compiling kernels"):
        executable = build(
            contents.compiled, contents.solution, state.log, options.state, options.max_sessions
        )
    if contents.is_sharded:  # placed again, the module of a microbatch would not be the model
        executable = replace(executable, source=None)
    return replace(state, executable=executable)
