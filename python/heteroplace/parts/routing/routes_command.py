"""`heteroplace routes ACTION`: recorded route decisions and their profiles. Needs no TVM."""

from __future__ import annotations

import argparse
from pathlib import Path

from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_json,
    add_output_file,
    add_written,
    check_writable,
    given_flags,
    plural,
    show,
)
from heteroplace.errors import RoutingError
from heteroplace.files.route_profile_file import save_route_profile
from heteroplace.files.routes_file import LEVELS, RoutesWriter
from heteroplace.model.routed.route_profile import RouteProfile, RouterProfile, RouterShape
from heteroplace.options import Argument, add_arguments, count, from_arguments
from heteroplace.parts.routing.dynamic.recorded_routes import (
    ProfileBuilder,
    merge_profiles,
    read_profile,
    shapes_of,
)
from heteroplace.parts.routing.dynamic.sizes import MIN_RUNS
from heteroplace.parts.routing.dynamic.specialise import mean_active
from heteroplace.parts.routing.dynamic.speculated_routes import predict
from heteroplace.parts.routing.dynamic.traces import TraceOptions, synthesise
from heteroplace.report.tables import format_table

_RECORDS = ".jsonl"
_MAX_BRANCHES_SHOWN = 8
_HEADERS = ("router", "cells", "branches", "runs", "active", "mean load", "largest", "predicted")


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `routes` with its own subcommands."""
    parser = add_command(
        commands,
        "routes",
        "show, merge, check or make up route decisions of routed networks",
        description="Route decisions: what executor.record wrote (JSON Lines), and profiles, which "
        "count them (JSON).",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    table = add_command(actions, "show", "show how routers are used", run_show)
    table.add_argument("file", metavar="FILE", help="a recording or a profile")
    add_json(table)
    merge = add_command(
        actions,
        "merge",
        "add up recordings and profiles of one model",
        run_merge,
        description="Add up recordings and profiles of one model; of a single recording this makes "
        "its profile.",
    )
    merge.add_argument("files", nargs="+", metavar="FILE", help="recordings or profiles")
    add_output_file(merge, "profile (JSON)", required=True)
    add_json(merge)
    check = add_command(
        actions,
        "check",
        "check a recording or a profile and name its faults",
        run_check,
    )
    check.add_argument("file", metavar="FILE", help="a recording or a profile")
    check.add_argument(
        "--like", metavar="FILE", help="a recording or profile of the model that it must be of"
    )
    add_json(check)
    _add_synthesise(actions)


def _add_synthesise(actions: Parsers) -> None:
    parser = add_command(
        actions,
        "synthesise",
        "make up decisions with stated skew and co-activation",
        run_synthesise,
        description="Make up decisions with stated skew and co-activation, as a recording "
        "(FILE.jsonl) or as its profile.",
    )
    add_written(parser, "file", help="what to write")
    parser.add_argument(
        "--like", metavar="FILE", help="take model and routers from a recording or a profile"
    )
    for flag, default, what in (
        ("routers", 2, "routers, one behind the other"),
        ("branches", 16, "branches of each"),
        ("cells", 256, "cells that each decides about"),
    ):
        parser.add_argument(
            f"--{flag}", type=Argument(count), metavar="N", help=f"{what}; default: {default}"
        )
    parser.add_argument(
        "--level", type=int, choices=LEVELS, default=2, help="1: loads alone; default: 2"
    )
    add_json(parser)
    add_arguments(parser, TraceOptions)


def run_show(arguments: argparse.Namespace) -> None:
    """Print a row per router, or JSON."""
    profile = read_profile(arguments.file)
    show(
        arguments,
        lambda: {
            "model": profile.model_digest,
            "routers": [_router_to_json(router) for router in profile.routers],
        },
        lambda: profile_text(profile),
    )


def run_merge(arguments: argparse.Namespace) -> None:
    """Write the profile of all files together."""
    check_writable(arguments.output)
    profile = merge_profiles(read_profile(path) for path in arguments.files)
    save_route_profile(profile, arguments.output)
    _say(arguments, arguments.output, profile, f"{arguments.output}: {described_profile(profile)}")


def run_check(arguments: argparse.Namespace) -> None:
    """Print one line about a good file; the faults of a bad one are raised."""
    profile = read_profile(arguments.file)
    if arguments.like is not None:
        merge_profiles([read_profile(arguments.like), profile])
    text = f"{arguments.file}: {described_profile(profile)}: no faults"
    _say(arguments, arguments.file, profile, text)


def run_synthesise(arguments: argparse.Namespace) -> None:
    """Write a recording or a profile."""
    check_writable(arguments.file)
    options = from_arguments(TraceOptions, arguments)
    digest, shapes = _routers(arguments)
    records = synthesise(shapes, options)
    builder = ProfileBuilder(digest, shapes)
    is_recording = Path(arguments.file).suffix == _RECORDS
    if is_recording:
        with RoutesWriter(arguments.file, digest, arguments.level, shapes) as writer:
            for record in records:
                writer.write(record)
                builder.add(record.at_level(arguments.level))
    else:
        for record in records:
            builder.add(record.at_level(arguments.level))
    profile = builder.profile()
    if not is_recording:
        save_route_profile(profile, arguments.file)
    kind = "recording" if is_recording else "profile"
    _say(
        arguments,
        arguments.file,
        profile,
        f"{arguments.file}: {kind} of {described_profile(profile)}",
    )


def _routers(arguments: argparse.Namespace) -> tuple[str, tuple[RouterShape, ...]]:
    """The model's digest and its routers."""
    given = given_flags(arguments, ("routers", "branches", "cells"))
    if arguments.like is not None:
        if given:
            raise RoutingError(f"{', '.join(given)}: --like says that; leave it out, or --like")
        profile = read_profile(arguments.like)
        return profile.model_digest, shapes_of(profile)
    cells, branches = arguments.cells or 256, arguments.branches or 16
    names = [f"router.{index}" for index in range(arguments.routers or 2)]
    return "synthetic", tuple(RouterShape(name, cells, branches) for name in names)


def profile_text(profile: RouteProfile) -> str:
    """Return a profile as a table with a row for each router."""
    rows = [_row(router) for router in profile.routers]
    table = format_table(_HEADERS, rows, "<>>>>>>>")
    return f"model {profile.model_digest}, {described_profile(profile)}\n\n{table}"


def _say(arguments: argparse.Namespace, path: str, profile: RouteProfile, text: str) -> None:
    value = {
        "file": path,
        "model": profile.model_digest,
        "routers": len(profile.routers),
        "runs": max((router.num_runs for router in profile.routers), default=0),
        "transitions": len(profile.transitions),
    }
    show(arguments, lambda: value, lambda: text)


def described_profile(profile: RouteProfile) -> str:
    """Return in a few words what is in a profile."""
    runs = max((router.num_runs for router in profile.routers), default=0)
    level = "cell by cell" if profile.transitions else "loads"
    return f"{plural(len(profile.routers), 'router')} in {plural(runs, 'run')}, {level}"


def _row(router: RouterProfile) -> list[str]:
    prediction = predict(router)
    note = f"fewer than {MIN_RUNS} runs" if router.num_runs < MIN_RUNS else "-"
    if prediction is not None and prediction.probability is not None:
        shown = ", ".join(map(str, prediction.branches[:_MAX_BRANCHES_SHOWN]))
        more = ", .." if len(prediction.branches) > _MAX_BRANCHES_SHOWN else ""
        note = f"{100 * prediction.probability:.1f} % {shown}{more}"
    loads = [router.mean_load(branch) for branch in range(router.num_branches)]
    return [
        router.name,
        str(router.num_cells),
        str(router.num_branches),
        str(router.num_runs),
        f"{mean_active(router):.1f}",
        f"{sum(loads) / len(loads):.1f}",
        f"{max(loads):.1f}",
        note,
    ]


def _router_to_json(router: RouterProfile) -> dict[str, object]:
    prediction = predict(router)
    branches = range(router.num_branches)
    return {
        "router": router.name,
        "cells": router.num_cells,
        "runs": router.num_runs,
        "mean_loads": [router.mean_load(branch) for branch in branches],
        "max_loads": [router.max_load(branch) for branch in branches],
        "activations": [router.activation(branch) for branch in branches],
        "predicted": None if prediction is None else list(prediction.branches),
        "hit_probability": None if prediction is None else prediction.probability,
    }
