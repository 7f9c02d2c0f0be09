"""`heteroplace explain`, `diff` and `simulate`: questions about plans that are made. No TVM."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from heteroplace.cli.open_solution import add_solution_options, read_solution
from heteroplace.cli.place import KEPT, RENAMED
from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_json,
    add_output_file,
    check_writable,
    progress_display,
    show,
    written_text,
)
from heteroplace.command_parser import ASK
from heteroplace.errors import HeteroPlaceError
from heteroplace.model.answers import WhatIf
from heteroplace.model.demands import layers_of
from heteroplace.model.plan import Run
from heteroplace.model.solution import Solution
from heteroplace.options import (
    Argument,
    add_arguments,
    from_arguments,
    key_value,
    named_pairs,
    read_arguments,
)
from heteroplace.place_options import PlaceOptions
from heteroplace.progress import SolverProgress
from heteroplace.questions.explain import explain_tasks
from heteroplace.questions.names import find_tasks
from heteroplace.solve import SolveOptions

_PLAN = "model, compiled model, solution, or plan with --graph and --cluster"
_SOLVING = ("time_limit", "iterations", "seed", "threads", "coarsening", "engine")
"""Of `SolveOptions`, those that say how, not what for."""
_MAX_ANSWERS = 20


def add_commands(commands: Parsers) -> None:
    """Add the subcommands `explain`, `diff` and `simulate`."""
    parser = add_command(
        commands,
        "explain",
        "say why a task runs where it does, and what moving it would cost",
        run_explain,
        description="Say of a task what it takes on each device, why it is where it is, what "
        "moving it would cost (simulated), what it waits for and what waits for it.",
        group=ASK,
    )
    parser.add_argument("plan", metavar="PLAN", help=_PLAN)
    parser.add_argument(
        "--op",
        metavar="NAME",
        help="task, layer of the model, op, or a pattern of them such as 'encoder.3.*'; default: "
        "the task that takes longest",
    )
    add_solution_options(parser)
    add_json(parser)
    parser = add_command(
        commands,
        "diff",
        "compare two plans",
        run_diff,
        description="Say in what a plan differs from one before it: time, tasks that moved, "
        "copies, memory.",
        group=ASK,
    )
    parser.add_argument("before", metavar="A", help=_PLAN)
    parser.add_argument("now", metavar="B", help="the same, made later")
    add_solution_options(parser)
    add_json(parser)
    _add_simulate(commands)


def _add_simulate(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "simulate",
        "predict a plan on other hardware",
        run_simulate,
        description="Say what a plan would take if the cluster were another one, or the items "
        "more: the same plan is simulated; with --solve the network is also placed again. None of "
        "the hardware is needed.",
        group=ASK,
    )
    parser.add_argument("plan", metavar="PLAN", help=_PLAN)
    group = parser.add_argument_group("what is other")
    group.add_argument(
        "--add-device",
        metavar="NAME=LIKE",
        type=Argument(key_value("NAME=LIKE, such as 'gpu1=gpu0'")),
        action="append",
        default=[],
        help="another device like one that there is, e.g. gpu1=gpu0; may be repeated",
    )
    group.add_argument(
        "--drop-device",
        metavar="NAME",
        action="append",
        default=[],
        help="a device that is not there; may be repeated",
    )
    group.add_argument(
        "--scale-link",
        metavar="NAME=FACTOR",
        type=Argument(key_value("NAME=FACTOR, such as 'pcie=0.5'", float)),
        action="append",
        default=[],
        help="bandwidth of a link or channel, or of a pattern of them, times FACTOR; may be "
        "repeated",
    )
    group.add_argument(
        "--memory",
        metavar="NAME=SIZE",
        type=Argument(key_value("NAME=SIZE, such as 'gpu0=8GiB'")),
        action="append",
        default=[],
        help="size of a memory, or of a device's, e.g. gpu0=8GiB; may be repeated",
    )
    group.add_argument("--batch", metavar="N", type=int, help="N items at once")
    group = parser.add_argument_group("to place it again")
    group.add_argument("--solve", action="store_true", help="also place the network again")
    add_arguments(group, PlaceOptions, names=("solver",))
    add_arguments(group, SolveOptions, renamed=RENAMED, own_names=KEPT, names=_SOLVING)
    add_output_file(group, "write the new plan with all it refers to (JSON)")
    add_solution_options(parser)
    add_json(parser)


def run_explain(arguments: argparse.Namespace) -> None:
    """Print what there is to say about every task that is meant."""
    solution = read_solution(arguments.plan, arguments)
    op = longest_task(solution) if arguments.op is None else arguments.op
    show(
        arguments,
        lambda: {"tasks": list(map(asdict, solution.explain(op)))},
        lambda: _explanation(solution, op),
    )


def _explanation(solution: Solution, op: str) -> str:
    tasks = find_tasks(solution.graph, op)
    shown, rest = tasks[:_MAX_ANSWERS], tasks[_MAX_ANSWERS:]
    text = "\n\n".join(map(str, explain_tasks(solution, shown)))
    if not rest:
        return text
    names = ", ".join(solution.graph.tasks[task].name for task in rest[:_MAX_ANSWERS])
    return f"{text}\n\n... and {len(rest)} more tasks: {names}"


def longest_task(solution: Solution) -> str:
    """Return the name of the task whose run takes longest; ties: the first.

    Raises
    ------
    HeteroPlaceError
        The plan runs nothing.
    """
    times = solution.timeline.step_times
    runs = [
        (times[index][0] - times[index][1], step.task)
        for index, step in enumerate(solution.plan.steps)
        if isinstance(step, Run) and index in times
    ]
    if not runs:
        raise HeteroPlaceError("the plan runs no task, so there is nothing to explain")
    return solution.graph.tasks[min(runs)[1]].name


def run_diff(arguments: argparse.Namespace) -> None:
    """Print in what the later plan differs."""
    before = read_solution(arguments.before, arguments)
    difference = before.diff(read_solution(arguments.now, arguments))
    show(arguments, lambda: asdict(difference), lambda: str(difference))


def run_simulate(arguments: argparse.Namespace) -> None:
    """Print what the plan would take, and write the new one if it is asked for."""
    if not arguments.solve:
        _check_no_solving(arguments)
    check_writable(arguments.output)
    solution = read_solution(arguments.plan, arguments)
    unit = "" if solution.item_ns is None else " per item"
    with progress_display(arguments) as display:
        options = from_arguments(
            SolveOptions, arguments, RENAMED, progress=SolverProgress(display, unit)
        )
        if arguments.solve:
            display.stage("Placing", options.time_limit_s)
        answer = solution.what_if(
            add_device=named_pairs("--add-device", arguments.add_device),
            drop_device=tuple(arguments.drop_device),
            scale_link=named_pairs("--scale-link", arguments.scale_link),
            memory=named_pairs("--memory", arguments.memory),
            batch=arguments.batch,
            solve=arguments.solve,
            solver=arguments.solver or "auto",
            options=options,
        )
    if arguments.output and answer.solution is not None:
        answer.solution.save(arguments.output)
    written = written_text(solution=arguments.output)
    show(arguments, lambda: _what_if_json(answer), lambda: f"{answer}{written}")


def _check_no_solving(arguments: argparse.Namespace) -> None:
    """Raise HeteroPlaceError where something is said about a search that is not asked for."""
    if arguments.output:
        raise HeteroPlaceError("--output writes what --solve finds; add --solve, or leave it out")
    given = read_arguments(PlaceOptions, arguments, names=("solver",))
    given |= read_arguments(SolveOptions, arguments, renamed=RENAMED, names=_SOLVING)
    if given:
        flags = ", ".join(f"--{RENAMED.get(name, name)}" for name in given)
        raise HeteroPlaceError(
            f"{flags}: how --solve places the network again; add --solve, or leave it out"
        )


def _what_if_json(answer: WhatIf) -> dict[str, object]:
    value: dict[str, object] = {
        "changes": list(answer.changes),
        "before_ns": answer.before_ns,
        "same_ns": answer.same_ns,
        "same_note": answer.same_note,
        "is_per_item": answer.is_per_item,
        "items": answer.items,
        "devices": [device.name for device in answer.cluster.devices],
        "solved": None,
    }
    if answer.solution is not None:
        solved = answer.solution
        devices = solved.plan.devices_of_tasks(len(solved.graph.tasks))
        value["solved"] = {
            "objective_ns": solved.objective_ns,
            "bound_ns": solved.bound_ns,
            "placement": {
                task.name: [solved.cluster.devices[device].name for device in devices[index]]
                for index, task in enumerate(solved.graph.tasks)
            },
            "layers": {task.name: list(layers_of(task)) for task in solved.graph.tasks},
        }
    return value
