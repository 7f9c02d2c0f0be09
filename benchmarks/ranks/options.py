"""Options of `benchmarks ranks`; they need no TVM."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from heteroplace.options import add_arguments, count, option, seconds


@dataclass(frozen=True)
class RanksOptions:
    """How much is measured."""

    plans: int = option(3, "random plans of each network on this machine", parse=count)
    shaped_plans: int = option(16, "random plans of each network over shaped links", parse=count)
    budget: float = option(3.0, "time for each solver", metavar="SECONDS", parse=seconds)
    quick: bool = option(False, "probe links with fewer and smaller messages, and fewer rounds")


def add_ranks_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `run` reads."""
    add_arguments(parser, RanksOptions)
