"""The stages that compare with onnxruntime; a network that was not imported does not load them."""

from __future__ import annotations

from dataclasses import replace

from heteroplace.parts.onnx.prepare.onnx_source import parse_source, read_source
from heteroplace.parts.onnx.verify.executable_check import check_can_verify, verify_executable
from heteroplace.pipeline.build_state import BuildState
from heteroplace.pipeline.low_precision import max_error_of
from heteroplace.pipeline.place_state import PlaceState
from heteroplace.relay.module_source import read_input_sets


def check_place(state: PlaceState) -> PlaceState:
    """Raise if a module that is about to be placed cannot be verified."""
    options = state.options
    check_can_verify(options.verify, read_source(state.mod), state.cluster, options.exclude)
    return state


def check_build(state: BuildState) -> BuildState:
    """Raise if a module that is about to be built cannot be verified."""
    contents = state.known_contents
    solution = contents.solution
    source = parse_source(contents.source)
    check_can_verify(state.verify, source, solution.cluster, solution.devices_not_used)
    return state


def verify(state: BuildState) -> BuildState:
    """Compare runs of the executable with onnxruntime."""
    contents, executable = state.known_contents, state.known_executable
    source = parse_source(contents.source)
    assert source is not None  # else the stage does not apply
    with state.log.stage("verify", "Checking against onnxruntime"):
        outcome = verify_executable(
            *(executable, contents.network.mod, source, state.verify, max_error_of(state.mod)),
            read_input_sets(state.mod),
        )
    return replace(state, executable=executable.verified(outcome))
