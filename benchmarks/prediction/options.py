"""What `benchmarks prediction` can be asked for. Apart from the benchmark, as that imports TVM."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from heteroplace import options
from heteroplace.errors import SolverError
from heteroplace.options import option
from heteroplace.written_files import WrittenFile

DEFAULT_MODELS = ("resnet50", "inception_v2", "randomly_wired", "bert_base", "gpt2")


@dataclass(frozen=True)
class PredictionOptions:
    """What is run. Checked on construction: SolverError names the option."""

    only: str = ""
    """Regular expression for networks; "": DEFAULT_MODELS."""
    plans: int = option(50, "random plans of each network", metavar="N", parse=int)
    budget_s: float = option(
        2.0, "seconds per solver, 0 for none", name="budget", metavar="S", parse=float
    )
    devices: str = option(
        "parts",
        "parts: one device per core or group of cores; all: also that of all cores",
        choices=lambda: ("parts", "all"),
    )
    rounds: int = option(21, "turns of each plan", metavar="N", parse=int)
    turn_ns: int = 40_000_000
    """See `time_in_turns`."""
    explain: bool = option(False, "where the worst plans part from their predictions")
    plot: Path | None = option(
        None,
        "write a scatter plot (.svg, .png or .pdf)",
        metavar="FILE",
        parse=Path,
        action=WrittenFile,
    )
    seed: int = option(0, "of plans, solvers, weights and inputs", metavar="N", parse=int)

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("plans", self.plans >= 0, ">= 0"),
            ("budget", self.budget_s >= 0, ">= 0"),
            ("rounds", self.rounds >= 1, ">= 1"),
            ("seed", 0 <= self.seed < 2**31, "in 0..2**31-1"),
        ):
            if not is_right:
                raise SolverError(f"--{name} is out of range: expected {expected}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark; `--only` and `--json` are those of all benchmarks."""
    options.add_arguments(parser, PredictionOptions)
    parser.epilog = f"Without --only: {', '.join(DEFAULT_MODELS)}."


def read_arguments(arguments: argparse.Namespace) -> PredictionOptions:
    """Return the options of a command line; raises SolverError for a number out of range."""
    return options.from_arguments(PredictionOptions, arguments, only=arguments.only)
