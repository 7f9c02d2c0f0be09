"""The stages of verification, each with its place among the stages of the core.

The entry points `onnx` of the groups `heteroplace.place_stages` and `heteroplace.build_stages`.
"""

from __future__ import annotations

from heteroplace.pipeline.build_state import BuildState
from heteroplace.pipeline.place_state import PlaceState
from heteroplace.pipeline.stage import AddedStage, Stage

_STAGES = "heteroplace.parts.onnx.verification_stages"

PLACE_STAGES: tuple[AddedStage[PlaceState], ...] = (
    AddedStage(
        Stage(
            "check-verify",
            "Refuse verify='on' where no comparison is possible.",
            f"{_STAGES}:check_place",
            lambda state: state.options.verify == "on",
        ),
        before="read",
    ),
)
BUILD_STAGES: tuple[AddedStage[BuildState], ...] = (
    AddedStage(
        Stage(
            "check-verify",
            "Refuse verify='on' where no comparison is possible.",
            f"{_STAGES}:check_build",
            lambda state: state.verify == "on",
        ),
        before="build",
    ),
    AddedStage(
        Stage(
            "verify",
            "Compare runs with onnxruntime.",
            f"{_STAGES}:verify",
            lambda state: state.known_contents.source is not None and state.verify != "off",
        ),
        before=None,
    ),
)
