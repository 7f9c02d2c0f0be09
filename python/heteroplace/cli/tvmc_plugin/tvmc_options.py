"""The options `--placement*` of `tvmc` -> keywords of `HeteroPlace`, and a cluster."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from heteroplace.argument_checks import did_you_mean
from heteroplace.cli.shared import add_written
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.cluster_file import ready_made_clusters
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.sharding import ShardingRecord, load_sharding
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.options import Option, options_of
from heteroplace.place_options import OPTION_CLASSES, read_options

_OPTIONS: dict[str, Option] = {o.name: o for cls in OPTION_CLASSES for o in options_of(cls)}
"""What `--placement-option` takes, by name."""
_OPTION_FLAG = "--placement-option"
HELPING = {"auto": None, "on": True, "off": False}
"""Words of `--placement-helping`, as `Executor` takes them."""
_HONOURED = frozenset(
    (
        *("FILE", "model_format", "input_shapes", "output", "opt_level", "verbose"),
        *("pass_config", "disabled_pass", "tuning_records", "desired_layout", "desired_layout_ops"),
        *("mixed_precision", "mixed_precision_acc_type", "mixed_precision_calculation_type"),
        "mixed_precision_ops",
    )
)
"""Options of TVM's compile that mean the same with a placement; all others are refused."""
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
    group.add_argument(
        _OPTION_FLAG,
        metavar="KEY=VALUE",
        action="append",
        help="option of the pass HeteroPlace, such as solver=heft or 'pin=nn.conv2d=gpu0'; may be "
        f"repeated. Keys: {', '.join(_OPTIONS)}. `heteroplace compile --help` explains each",
    )
    add_written(group, "--placement-plan-out", help="write the plan (JSON)")
    add_written(group, "--placement-report", help="write a page that shows the plan (HTML)")
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
    add_written(
        group,
        "--placement-trace",
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
    namespace_read, _ = parser.parse_known_args(argv[argv.index(subcommand) + 1 :])
    return frozenset(name for name, value in vars(namespace_read).items() if value is not None)


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


def read_pairs(texts: Iterable[str]) -> dict[str, Any]:
    """Read KEY=VALUE texts as keywords of `HeteroPlace`; keys of maps and lists add up.

    >>> read_pairs(["solver=heft", "threads=2", "pin=nn.conv2d=gpu0", "pin=*=cpu.0"])
    {'solver': 'heft', 'threads': 2, 'pin': ['nn.conv2d=gpu0', '*=cpu.0']}

    Raises
    ------
    HeteroPlaceError
        There is no such key, or its value cannot be read.
    SolverError
        A value is wrong, or options clash.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise HeteroPlaceError(f"{_OPTION_FLAG} {text!r}: expected KEY=VALUE, as solver=heft")
        entry = _OPTIONS.get(name)
        if entry is None:
            raise HeteroPlaceError(
                f"{_OPTION_FLAG} {text}: HeteroPlace has no option {name!r}"
                f"{did_you_mean(name, _OPTIONS)}; it has: {', '.join(_OPTIONS)}"
            )
        if entry.join is not None:
            options.setdefault(name, []).append(value)
            continue
        try:
            options[name] = entry.parse(value)
        except ValueError as err:
            raise HeteroPlaceError(f"{_OPTION_FLAG} {text}: {err}") from err
    read_options(options)  # a wrong value is refused before anything slow starts
    return options


def moved_option(flag: str, argv: Sequence[str]) -> str:
    """Return how an option that was a flag of its own is written now; "": it never was one.

    >>> moved_option("--placement-solver", ["--placement-solver", "heft"])
    '--placement-solver is no longer an option; write --placement-option solver=heft'
    """
    word, equals, value = flag.partition("=")
    name = word.removeprefix("--placement-").replace("-", "_")
    if not word.startswith("--placement-") or name not in _OPTIONS:
        return ""
    if not equals:
        value = next(iter(argv[list(argv).index(word) + 1 :]), "VALUE") if word in argv else "VALUE"
    return f"{word} is no longer an option; write {_OPTION_FLAG} {shlex.quote(f'{name}={value}')}"


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
    ours = {name for name in given if name.startswith("placement_")}
    others = (ours | given & _MODEL_CHANGES) - _OF_A_PLAN
    if others:
        raise HeteroPlaceError(
            f"{flags(others)} would change nothing in a plan that is made already, or change the "
            f"model that it is for; leave it out, or run `heteroplace shard` again"
        )
    return load_sharding(path)


def read_cluster(text: str) -> Cluster:
    """Return the cluster that `--placement` names: a file of any name, or as `open_cluster`."""
    return open_cluster(Path(text) if text != LOCAL and Path(text).is_file() else text)


def flags(names: Iterable[str]) -> str:
    """Return attributes as they are written on the command line."""
    return ", ".join("--" + name.replace("_", "-") for name in sorted(names))
