"""The options of `benchmarks conformance`; without TVM, so that the help needs none."""

from __future__ import annotations

import argparse
from pathlib import Path

from heteroplace.options import Argument, count
from heteroplace.written_files import WrittenFile

_NUM_WORKERS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark beside those of all."""
    parser.add_argument(
        "--share", type=Argument(_share), default=1.0, help="part of the cases, drawn at random"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument(
        "--workers", type=Argument(count), default=_NUM_WORKERS, help="processes that run cases"
    )
    parser.add_argument(
        "--page",
        action=WrittenFile,
        type=Path,
        metavar="FILE",
        help="write the table of ops there",
    )


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(f"expected a number above 0, up to 1, got {text!r}")
    return value
