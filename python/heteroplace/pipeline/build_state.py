"""What the stages of building hand on: the module, what it carries, and the executable."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from heteroplace.lower.executable import Executable
from heteroplace.pipeline.module_contents import ModuleContents, ModulePlan
from heteroplace.stage_log import StageLog


@dataclass(frozen=True)
class BuildState:
    """The state between two stages. A field is None before the stage that sets it."""

    mod: tvm.IRModule
    """Annotated, with a plan; where `contents` is known from the start, as it was given."""
    requested_verify: str | None
    """The option of `build_module`; None: as the module was placed."""
    log: StageLog
    plan: ModulePlan | None = None
    """What the annotations say of the plan."""
    contents: ModuleContents | None = None
    """Known from the start where the module was placed by the same caller."""
    executable: Executable | None = None

    @property
    def known_plan(self) -> ModulePlan:
        """The plan, after the stage `plan`."""
        assert self.plan is not None
        return self.plan

    @property
    def known_contents(self) -> ModuleContents:
        """What is built, after the stage `contents`."""
        assert self.contents is not None
        return self.contents

    @property
    def known_executable(self) -> Executable:
        """The executable, after the stage `build`."""
        assert self.executable is not None
        return self.executable

    @property
    def verify(self) -> str:
        """ "auto", "on" or "off"; "off" for a module that was not imported."""
        return self.requested_verify or self.known_contents.verify
