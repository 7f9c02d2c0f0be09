"""What stands where a program was until it was closed: an error for whatever is asked of it."""

from __future__ import annotations

from typing import NoReturn, cast

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor as NativeExecutor


class ClosedProgram:
    """A program that is gone."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ExecutionError("the executor is closed; load the file again, or make a new Executor")


def closed_program() -> NativeExecutor:
    """Return what takes the place of a program in the core."""
    return cast(NativeExecutor, ClosedProgram())
