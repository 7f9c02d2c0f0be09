"""The option `engine`: what solves the programmes of exact solvers, and what is said of it."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from heteroplace.errors import MissingPackageError, SolverError, SolverLicenceError
from heteroplace.solve import SOLVERS, SolveOptions, get_solver
from heteroplace.solve.lp import engines, gurobi
from heteroplace.solve.lp.cpsat_program import CpSatEngine
from heteroplace.solve.lp.engines import ChosenEngine, mip_engines
from heteroplace.solve.lp.highs import HighsEngine
from heteroplace.solve.lp.linear_program import (
    INFEASIBLE,
    FloatArray,
    MipAnswer,
    MipLimits,
    MixedProgram,
)
from heteroplace.solve.problem import ENGINES, OBJECTIVES
from tests.exact_engines import needs_gurobi
from zoo.graphs.catalogue import layered
from zoo.graphs.layered import Layered

PROBLEM = layered(Layered(6), fill=0.2)
MILPS = [
    ("moirai", SolveOptions(iterations=2000)),
    ("throughput", SolveOptions("throughput", iterations=2000)),
    ("pipeline", SolveOptions("throughput", iterations=2000)),
    ("divi", SolveOptions(items=2, iterations=200)),
    ("split", SolveOptions(items=2, iterations=200)),
    ("auto", SolveOptions(items=2, iterations=200)),
]


def asked(solver: str, options: SolveOptions, engine: str) -> SolveOptions:
    fields = {"objective", "items", "iterations"}
    given = {name: getattr(options, name) for name in fields}
    return SolveOptions(**given, time_limit_s=20.0, threads=1, engine=engine)


@pytest.mark.costly
@pytest.mark.parametrize(("solver", "options"), MILPS, ids=[name for name, _ in MILPS])
@pytest.mark.parametrize("engine", ["highs", pytest.param("gurobi", marks=needs_gurobi)])
def test_the_engine_that_is_asked_for_solves_and_is_named(
    solver: str, options: SolveOptions, engine: str
) -> None:
    found = get_solver(solver).solve(PROBLEM, asked(solver, options, engine))
    usual = get_solver(solver).solve(PROBLEM, options)
    assert found.bound_ns <= usual.objective_ns
    assert usual.bound_ns <= found.objective_ns
    told = " ".join(f"{name} {note}".lower() for name, _, note in found.candidates)
    assert engine in told


def test_moirai_takes_cpsat_where_no_licence_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    result = get_solver("moirai").solve(PROBLEM, asked("moirai", MILPS[0][1], "auto"))
    notes = {name: note for name, _, note in result.candidates}
    assert "gurobipy is not installed" in notes["Gurobi"]
    assert "CP-SAT" in notes
    assert "HiGHS" not in notes


def test_cpsat_solves_the_formulation_of_moirai() -> None:
    found = get_solver("moirai").solve(PROBLEM, asked("moirai", MILPS[0][1], "cpsat"))
    assert "CP-SAT" in [name for name, _, _ in found.candidates] or found.gap == 0
    assert found.bound_ns <= found.objective_ns


@pytest.mark.parametrize(("solver", "options"), MILPS, ids=[name for name, _ in MILPS])
def test_an_engine_that_is_not_here_is_an_error_and_no_other_is_taken(
    solver: str, options: SolveOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(MissingPackageError, match="gurobipy is not installed"):
        get_solver(solver).solve(PROBLEM, asked(solver, options, "gurobi"))


def test_a_programme_that_the_licence_does_not_take_goes_to_the_next_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Limited:
        name = "Gurobi"

        def solve(
            self, program: MixedProgram, limits: MipLimits, start: FloatArray | None
        ) -> MipAnswer:
            raise SolverLicenceError("too large")

    both = [Limited(), HighsEngine()]
    monkeypatch.setattr(engines, "mip_engines", lambda *_, **__: (both, ""))
    program = MixedProgram()
    program.add_column(1.0, 2.0, cost=1.0)
    chosen = ChosenEngine(SolveOptions())
    assert chosen.name == "Gurobi"
    assert chosen.solve(program, MipLimits(1.0, 0.0, None)).values == [1.0]
    assert chosen.name == "HiGHS"
    monkeypatch.setattr(engines, "mip_engines", lambda *_, **__: ([Limited()], ""))
    with pytest.raises(SolverLicenceError):
        ChosenEngine(SolveOptions()).solve(program, MipLimits(1.0, 0.0, None))


def test_gurobi_goes_first_where_its_full_licence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "why_no_gurobi", lambda: None)
    assert [one.name for one in mip_engines(SolveOptions())[0]] == ["Gurobi", "HiGHS"]
    assert [one.name for one in mip_engines(SolveOptions(engine="highs"))[0]] == ["HiGHS"]


def test_cpsat_stands_in_for_highs_where_columns_may_be_whole_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    for engine in ("auto", "cpsat"):
        asked_for = mip_engines(SolveOptions(engine=engine), takes_whole_numbers=True)
        assert [one.name for one in asked_for[0]] == ["CP-SAT"]
    highs, _ = mip_engines(SolveOptions(engine="highs"), takes_whole_numbers=True)
    assert [one.name for one in highs] == ["HiGHS"]


def whole_program(parts: int | None) -> MixedProgram:
    """Minimise x + 2 y, x >= 1.5 - y, y 0 or 1: x = 0.5 and y = 1, or x = 1.5 and y = 0."""
    program = MixedProgram()
    x, y = program.add_column(0.0, 9.0, cost=1.0), program.add_binary()
    program.cost[y] = 2.0
    program.add_row([(x, 1.0), (y, 1.0)], 1.5)
    program.parts = parts
    return program


def test_cpsat_counts_columns_in_parts_of_their_units() -> None:
    limits = MipLimits(10.0, 0.0, None)
    engine = CpSatEngine(SolveOptions(threads=1))
    start = np.array([9.0, np.nan])
    answer = engine.solve(whole_program(2), limits, start)
    assert answer.values is not None
    assert (answer.values.tolist(), answer.bound, answer.status) == ([1.5, 0.0], 1.5, "optimal")
    with pytest.raises(SolverError, match="has columns that are none; use the engine 'highs'"):
        engine.solve(whole_program(None), limits)
    impossible = whole_program(2)
    impossible.add_row([(0, 1.0)], -np.inf, -1.0)
    assert engine.solve(impossible, limits).status == "infeasible"


def test_options_that_cpsat_does_not_know_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpSatEngine, "_parameters", lambda *_: "no_such_parameter: 1")
    with pytest.raises(SolverError, match="CP-SAT refuses the program"):
        CpSatEngine(SolveOptions()).solve(whole_program(2), MipLimits(10.0, 0.0, None))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_solver_says_which_engines_it_takes(objective: str) -> None:
    for name, solver in SOLVERS.items():
        assert set(solver.engines(objective)) <= set(ENGINES[1:]), name
        if objective in solver.objectives and not solver.engines(objective):
            with pytest.raises(SolverError, match=f"solver '{name}' solves no programme by engine"):
                solver.check(SolveOptions(objective, engine="highs"))


class FakeModel:
    """What `GurobiEngine` uses of a model: the first solve tells infeasible from unbounded not."""

    def __init__(self, env: object) -> None:
        self.Params = SimpleNamespace(DualReductions=1)
        self.Status, self.SolCount, self.ObjBound, self.NodeCount = 0, 0, 0.0, 1

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def addMVar(self, *_: object, **__: object) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace()

    def addMConstr(self, *_: object) -> None:  # noqa: N802
        pass

    def optimize(self) -> None:
        self.Status = GRB.INF_OR_UNBD if self.Params.DualReductions else GRB.INFEASIBLE


GRB = SimpleNamespace(
    OPTIMAL=2, INFEASIBLE=3, INF_OR_UNBD=4, NODE_LIMIT=8, TIME_LIMIT=9, INTERRUPTED=11
)


def test_gurobi_solves_again_where_its_presolve_leaves_open_whether_a_programme_is_infeasible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = SimpleNamespace(
        GRB=GRB, GurobiError=ZeroDivisionError, Env=lambda params: nullcontext(), Model=FakeModel
    )
    monkeypatch.setattr(gurobi, "_gurobipy", lambda: fake)
    program = MixedProgram()
    program.add_column(0.0, 1.0)
    program.add_row([(0, 1.0)], 2.0, 3.0)
    found = gurobi.GurobiEngine(1, 0).solve(program, MipLimits(1.0, 0.0, None), None)
    assert (found.status, found.values) == (INFEASIBLE, None)
