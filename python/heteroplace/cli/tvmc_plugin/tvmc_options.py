"""The options `--placement-*` of `tvmc compile`: their parser, their checks, their meaning."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from heteroplace.cli.shared import check_writable
from heteroplace.errors import (
    ArtifactError,
    ClusterError,
    HeteroPlaceError,
    MissingCostError,
)
from heteroplace.files.cluster import ready_made_clusters
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.sharding import ShardingRecord, load_sharding
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.options import add_arguments, pair, read_arguments
from heteroplace.place_options import COST_MODELS, OPTION_CLASSES, read_options
from heteroplace.run.devices import missing_devices
from heteroplace.written_files import WrittenFile

_FLAG_PREFIX, _ATTRIBUTE_PREFIX = "--placement-", "placement_"
HELPING = {"auto": None, "on": True, "off": False}
"""Words of `--placement-helping`, as `Executor` takes them."""
# Options of TVM's compile that mean the same with a placement; all others are refused.
_HONOURED = frozenset(
    {
        "desired_layout",
        "desired_layout_ops",
        "disabled_pass",
        "FILE",
        "input_shapes",
        "mixed_precision",
        "mixed_precision_acc_type",
        "mixed_precision_calculation_type",
        "mixed_precision_ops",
        "model_format",
        "opt_level",
        "output",
        "pass_config",
        "tuning_records",
        "verbose",
    }
)


_OF_A_PLAN = frozenset({"placement_dry_run", "placement_report", "placement_sign_with"})
"""Of the options of placement those that a finished plan can be compiled with."""
_MODEL_CHANGES = frozenset({"desired_layout", "mixed_precision", "tuning_records", "model_format"})


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of placement to TVM's parser of `compile`."""
    group = parser.add_argument_group(
        "placement", "place the model over several processors; takes the place of --target"
    )
    group.add_argument(
        "--placement",
        metavar="CLUSTER",
        help=f"cluster file (JSON), a ready-made cluster, or {LOCAL!r}: this machine, its GPUs "
        "too; or a plan that `heteroplace shard` wrote",
    )
    for cls in OPTION_CLASSES:
        add_arguments(group, cls, _FLAG_PREFIX, reads_texts=False)
    group.add_argument(
        "--placement-plan-out", action=WrittenFile, metavar="FILE", help="write the plan (JSON)"
    )
    group.add_argument(
        "--placement-report",
        action=WrittenFile,
        metavar="FILE",
        help="write a page that shows the plan (HTML)",
    )
    group.add_argument(
        "--placement-dry-run",
        action="store_true",
        default=None,
        help="place and print, but compile nothing",
    )
    group.add_argument(
        "--placement-with-source",
        action="store_true",
        default=None,
        help="write the Relay module too, so that the file can be placed again on another machine "
        "(tvmc run --placement-on-missing replan)",
    )
    group.add_argument(
        "--placement-sign-with",
        metavar="FILE",
        help="sign the file with this private key (Ed25519, PEM); make one by `openssl genpkey "
        "-algorithm ed25519 -out FILE`",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of placed files to TVM's parser of `run`."""
    group = parser.add_argument_group("placement", "for files that --placement has compiled")
    group.add_argument(
        "--placement-trusted-key",
        metavar="FILE",
        action="append",
        help="run nothing but what this key (public, Ed25519, PEM) has signed; may be repeated",
    )
    group.add_argument(
        "--placement-on-missing",
        choices=("error", "replan"),
        help="where this machine lacks a device of the plan: end with an error, or place the "
        "model in the file again (it has one if compiled by --placement-with-source)",
    )
    group.add_argument(
        "--placement-helping",
        choices=HELPING,
        help="whether a core that waits does parts of other cores' kernels; auto: those that share "
        "a cache do. Outputs are the same to the last bit",
    )
    group.add_argument(
        "--placement-hosts",
        metavar="B,A",
        help="of a file for several hosts, which is run by one rank each (mpiexec -n 2 tvmc run): "
        "the host of each rank; else in the order of the cluster",
    )
    group.add_argument(
        "--placement-trace",
        action=WrittenFile,
        metavar="FILE",
        help="record all runs, print how busy each queue was, and write a trace for "
        "https://ui.perfetto.dev",
    )


def given_options(
    parser: argparse.ArgumentParser, argv: Sequence[str], arguments: argparse.Namespace
) -> frozenset[str]:
    """Return the names (as attributes) of what stands on the command line.

    Parameters
    ----------
    parser
        Of the subcommand. It loses its defaults here: they hide what was given, and some come
        from TVM's configuration file.
    argv
        The whole command line.
    arguments
        What `argv` was parsed into.
    """
    parser.set_defaults(**dict.fromkeys(vars(arguments)))
    subcommand = parser.prog.split()[-1]
    found, _ = parser.parse_known_args(argv[argv.index(subcommand) + 1 :])
    return frozenset(name for name, value in vars(found).items() if value is not None)


def check_given(given: frozenset[str], is_placed: bool) -> None:
    """Raise HeteroPlaceError if the given options of `compile` do not go together."""
    written = given & {"placement_with_source", "placement_sign_with"}
    if "placement_dry_run" in given and written:
        raise HeteroPlaceError(
            f"{flags(written)} is about the file, and --placement-dry-run writes none; leave one "
            f"of them out"
        )
    ours = {name for name in given if name.startswith("placement")}
    if not is_placed and ours:
        raise HeteroPlaceError(
            f"{flags(ours)} needs --placement CLUSTER: a cluster file, {LOCAL!r}, or one of "
            f"{', '.join(ready_made_clusters())}"
        )
    if not is_placed:
        return
    if any(name == "target" or name.startswith("target_") for name in given):
        raise HeteroPlaceError(
            "--placement and --target exclude each other: the cluster says the target of each of "
            "its devices. Leave out --target, or write the target into the cluster file"
        )
    others = given - ours - _HONOURED
    if others:
        raise HeteroPlaceError(
            f"{flags(others)} cannot be used together with --placement; leave it out"
        )


def placement_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options as keywords of `HeteroPlace`.

    Raises
    ------
    MissingCostError
        There is no such cost table.
    SolverError
        A value is wrong.
    """
    options: dict[str, Any] = {}
    for cls in OPTION_CLASSES:
        options |= read_arguments(cls, arguments, _ATTRIBUTE_PREFIX, reads_texts=False)
    costs = options.get("costs")
    if costs is not None and costs not in COST_MODELS and not Path(costs).is_file():
        raise MissingCostError(
            f"--placement-costs {costs}: no such file; give {', '.join(COST_MODELS)}, or a cost "
            f"table"
        )
    # Wrong values are told before everything is measured.
    read_options(options)
    return options


def read_record(arguments: argparse.Namespace) -> ShardingRecord | None:
    """Return the plan of `heteroplace shard` that `--placement` names; None: it names a cluster.

    Raises
    ------
    HeteroPlaceError
        Another option would change the plan.
    PlanError
        The file has faults.
    """
    path = arguments.placement
    if not Path(path).is_file() or read_known_file(path)[0] != "sharding":
        return None
    given = {name for name, value in vars(arguments).items() if value}
    ours = {name for name in given if name.startswith(_ATTRIBUTE_PREFIX)}
    others = (ours | given & _MODEL_CHANGES) - _OF_A_PLAN
    if others:
        raise HeteroPlaceError(
            f"{flags(others)} would change nothing in a plan that is made already, or change the "
            f"model that it is for; leave it out, or run `heteroplace shard` again"
        )
    return load_sharding(path)


def read_cluster(arguments: argparse.Namespace) -> Cluster:
    """Return the cluster that `--placement` names.

    Raises
    ------
    ClusterError
        There is no such cluster, its file has faults, or it lacks a device that another option
        names.
    MissingCostError
        The costs shall be measured on a device that is not in this machine.
    """
    text = arguments.placement
    if text != LOCAL and Path(text).is_file():
        cluster = open_cluster(Path(text))
    elif text == LOCAL or text in ready_made_clusters():
        cluster = open_cluster(text)
    else:
        raise ClusterError(
            f"--placement {text}: no such file; give a cluster file (JSON), {LOCAL!r} for "
            f"this machine, or a ready-made cluster: {', '.join(ready_made_clusters())}"
        )
    for name in (
        *dict(map(pair, arguments.placement_pin or [])).values(),
        *(arguments.placement_exclude or []),
    ):
        cluster.device_id(name)
    excluded = arguments.placement_exclude or []
    used = [device.name for device in cluster.devices if device.name not in excluded]
    absent = missing_devices(cluster, used)
    if absent and arguments.placement_costs in (None, "measure", "isolated"):
        raise MissingCostError(
            f"costs cannot be measured on devices that are not in this machine: "
            f"{'; '.join(absent)}. Give --placement-costs predict or estimate, or a cost table "
            f"made on that machine, or here by `heteroplace profile --predict`"
        )
    return cluster


def check_outputs(*paths: str | None) -> None:
    """Raise HeteroPlaceError if a file cannot be written later."""
    for path in paths:
        if path is not None and not Path(path).parent.is_dir():
            raise ArtifactError(f"{path}: folder {Path(path).parent} does not exist; make it first")
    check_writable(*paths)


def flags(names: Iterable[str]) -> str:
    """Return attributes as they are written on the command line."""
    return ", ".join("--" + name.replace("_", "-") for name in sorted(names))
