"""A command line -> an error where it gives options that what is asked for does not read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

from heteroplace.errors import SolverError


def refuse_ignored(
    arguments: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    kind: str,
    reads: Collection[str] = (),
) -> None:
    """Refuse what differs from its default and is not read.

    Parameters
    ----------
    add_arguments
        Adds the options of the benchmark, which are compared with their defaults.
    kind
        The option that asks for something of its own, without its dashes.
    reads
        Names of the others that it reads.

    Raises
    ------
    SolverError
        Others are given.
    """
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    ignored = [
        f"--{name.replace('_', '-')}"
        for name, default in vars(parser.parse_args([])).items()
        if name not in (kind, *reads) and getattr(arguments, name) != default
    ]
    if ignored:
        raise SolverError(f"--{kind} does not read {', '.join(ignored)}: leave out the rest")
