"""`heteroplace solvers`: the solvers there are, and what each is for. No TVM."""

from __future__ import annotations

import argparse
import inspect
from typing import NamedTuple

from heteroplace.cli.shared import Parsers, add_command, add_json, show
from heteroplace.errors import MissingPackageError
from heteroplace.report.tables import format_table
from heteroplace.solve.solvers import SOLVERS, RegisteredSolver, Solver


class SolverRow(NamedTuple):
    """What is listed of one solver."""

    name: str
    objectives: tuple[str, ...]
    max_tasks: int | None
    """Tasks of the largest graph that it takes; None: any number."""
    text: str


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `solvers`."""
    parser = add_command(
        commands,
        "solvers",
        "list the solvers",
        run,
        description="List the solvers that --solver takes, what each can minimise, and how it "
        "works. The default, auto, runs several and keeps the best plan.",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print a row for each solver."""
    rows = [_row(name, solver) for name, solver in SOLVERS.items()]
    heads = ["solver", "objectives", "tasks", "how it works"]
    show(
        arguments,
        lambda: [row._asdict() for row in rows],
        lambda: format_table(
            heads,
            [
                [
                    row.name,
                    ", ".join(row.objectives) or "-",
                    "any" if row.max_tasks is None else f"<= {row.max_tasks}",
                    row.text,
                ]
                for row in rows
            ],
        ),
    )


def _row(name: str, solver: Solver) -> SolverRow:
    assert isinstance(solver, RegisteredSolver)
    try:
        return SolverRow(name, solver.objectives, solver.max_tasks, _sentence(solver.description))
    except MissingPackageError as fault:
        return SolverRow(name, (), None, str(fault))


def _sentence(text: str) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
