"""What `bench prediction` can be asked for. Apart from the benchmark, as that imports TVM."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from heteroplace.errors import SolverError

DEFAULT_MODELS = ("resnet50", "inception_v2", "randomly_wired", "bert_base", "gpt2")


@dataclass(frozen=True)
class PredictionOptions:
    """What is run. Checked on construction: SolverError names the option."""

    only: str = ""
    """Regular expression for networks; "": DEFAULT_MODELS."""
    plans: int = 50
    """Random plans of each network."""
    budget_s: float = 2.0
    """Time limit of each solver; 0: no solver's plan."""
    all_devices: bool = False
    """Also the device of all cores; else only the parts of the CPU."""
    rounds: int = 21
    """Each plan has so many turns."""
    turn_ns: int = 40_000_000
    """See `time_in_turns`."""
    explain: bool = False
    """Say of the worst plans where prediction and run part."""
    plot: Path | None = None
    """Where the scatter plot goes."""
    seed: int = 0
    """Of plans, solvers, weights and inputs."""

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
    default = PredictionOptions()
    parser.add_argument(
        "--plans",
        type=int,
        default=default.plans,
        metavar="N",
        help=f"random plans of each network (default: {default.plans})",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=default.budget_s,
        metavar="S",
        help=f"seconds per solver, 0 for none (default: {default.budget_s:g})",
    )
    parser.add_argument(
        "--devices",
        choices=("parts", "all"),
        default="parts",
        help="parts: one device per core or group of cores; all: also that of all cores",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=default.rounds,
        metavar="N",
        help=f"turns of each plan (default: {default.rounds})",
    )
    parser.add_argument("--seed", type=int, default=default.seed, metavar="N")
    parser.add_argument(
        "--explain", action="store_true", help="where the worst plans part from their predictions"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="write a scatter plot (.svg, .png or .pdf)"
    )
    parser.epilog = f"Without --only: {', '.join(DEFAULT_MODELS)}."


def read_arguments(arguments: argparse.Namespace) -> PredictionOptions:
    """Return the options of a command line.

    Raises
    ------
    SolverError
        A number is out of range.
    """
    return PredictionOptions(
        only=arguments.only,
        plans=arguments.plans,
        budget_s=arguments.budget,
        all_devices=arguments.devices == "all",
        rounds=arguments.rounds,
        explain=arguments.explain,
        plot=arguments.plot,
        seed=arguments.seed,
    )
