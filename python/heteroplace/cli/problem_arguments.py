"""The arguments of commands that take a cluster, a task graph with costs, or the store of costs."""

from __future__ import annotations

import argparse

from heteroplace.costs.store import PATH_VARIABLE
from heteroplace.machine.local import LOCAL
from heteroplace.place_options import cost_model_names


def add_cluster(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add --cluster: this machine by default, or None where a `note` in its help says when."""
    parser.add_argument(
        "--cluster",
        default=None if note else LOCAL,
        metavar="FILE|NAME",
        help="cluster (JSON), a ready-made one, or local: this machine"
        f"{note or '; default: local'}",
    )


def add_problem(parser: argparse.ArgumentParser, *, may_be_model: bool = False) -> None:
    """Add --graph, --cluster and --costs, of which `read_costs` makes a cost table.

    `may_be_model`: an ONNX model may be given in place of the graph.
    """
    models = cost_model_names() if may_be_model else ()
    words = f". Of a model: {', '.join(models)} or a file; default: measure"
    published = ", also in the form of Moirai or dnn-partitioning, with devices and times"
    parser.add_argument(
        "--graph",
        required=not may_be_model,
        metavar="FILE",
        help=f"task graph (JSON){published * may_be_model}",
    )
    add_cluster(parser, "; default of a model: local; left out where --graph has devices")
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help="cost table (JSON); default: the times in the graph file" + words * may_be_model,
    )


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add --store, of a command that needs one."""
    parser.add_argument(
        "--store",
        metavar="FILE",
        type=_store_file,
        help=f"the store of measured kernels; default: ${PATH_VARIABLE}, or in the user's cache "
        f"folder",
    )


def _store_file(text: str) -> str:
    if text in ("on", "off"):  # as the commands have it that can do without one
        raise argparse.ArgumentTypeError(
            f"{text!r} is no file; leave --store out for the usual store, or name another file to "
            f"measure anew"
        )
    return text
