"""The option `engine` -> what solves a mixed-integer program."""

from __future__ import annotations

import importlib.util

from heteroplace.entries import load_entry
from heteroplace.errors import SolverLicenceError
from heteroplace.solve.lp.gurobi import GurobiEngine, why_no_gurobi
from heteroplace.solve.lp.highs import HighsEngine
from heteroplace.solve.lp.linear_program import (
    FloatArray,
    MipAnswer,
    MipEngine,
    MipLimits,
    MixedProgram,
)
from heteroplace.solve.problem import SolveOptions

_CPSAT = "heteroplace.solve.lp.cpsat_program:CpSatEngine"
"""Loaded with OR-Tools."""


def mip_engines(
    options: SolveOptions, *, takes_whole_numbers: bool = False
) -> tuple[list[MipEngine], str]:
    """Return the engines in the order in which they are tried, and why Gurobi is left out.

    "auto" is Gurobi where its full licence is found, then HiGHS, for what the licence does not
    take; an engine that is asked for by name is the only one.

    Parameters
    ----------
    takes_whole_numbers
        All columns of the program may be whole numbers (`MixedProgram.parts`). CP-SAT, which takes
        a start, then stands in for HiGHS, and Gurobi goes first with any licence.
    """
    gurobi = GurobiEngine(options.threads, options.seed)
    if takes_whole_numbers and options.engine in ("auto", "cpsat"):
        cpsat: MipEngine = load_entry(_CPSAT)(options)
        is_here = options.engine == "auto" and importlib.util.find_spec("gurobipy") is not None
        return [gurobi, cpsat] if is_here else [cpsat], ""
    if options.engine == "gurobi":
        return [gurobi], ""
    if options.engine == "highs":
        return [HighsEngine()], f"left out: engine is {options.engine}"
    reason = why_no_gurobi()
    if reason is not None:
        return [HighsEngine()], f"left out: {reason}"
    return [gurobi, HighsEngine()], ""


class ChosenEngine:
    """The first of `mip_engines` whose licence takes the program."""

    def __init__(self, options: SolveOptions, *, takes_whole_numbers: bool = False) -> None:
        self._engines, _ = mip_engines(options, takes_whole_numbers=takes_whole_numbers)
        self.name = self._engines[0].name
        """Of the one that has solved the latest program, or is tried first."""

    def solve(
        self, program: MixedProgram, limits: MipLimits, start: FloatArray | None = None
    ) -> MipAnswer:
        """See `MipEngine.solve`.

        Raises
        ------
        SolverLicenceError, MissingPackageError
            The engine that was asked for by name has no licence for it, or is not installed.
        """
        *others, last = self._engines
        for engine in others:
            self.name = engine.name
            try:
                return engine.solve(program, limits, start)
            except SolverLicenceError:
                continue  # smaller models have a licence
        self.name = last.name
        return last.solve(program, limits, start)
