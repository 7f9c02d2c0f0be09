"""`python -m benchmarks.demo`: two networks over the CPU of this machine, against what is usual.

Each network is imported, placed, built into one file, run from that file, and compared with stock
TVM and onnxruntime. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.demo.report import (
    plan_row,
    plan_text,
    summary_row,
    times_text,
    verdict_text,
    write_page,
    write_solution,
    write_summary,
    write_timelines,
)
from benchmarks.peers.stock import silence_tuning_hint
from benchmarks.run.comparison import (
    CHOSEN,
    CORES,
    Comparison,
    ComparisonOptions,
    compare_plans,
    place_on,
    plan_names,
    prepare_model,
)
from heteroplace import Cluster, HeteroPlaceError, load
from heteroplace.interrupts import Interrupts
from heteroplace.machine.local import local_cluster
from heteroplace.progress import Screen
from heteroplace.report.headline import solution_headline
from zoo.models.catalogue import Model, load_model

MODELS: tuple[tuple[str, str], ...] = (
    ("inception_v2", "Inception-v2, an ONNX file with random weights"),
    ("randomly_wired", "a randomly wired network, WS(4, 0.75) of 32 nodes, written in Relay"),
)

CHAIN = ("resnet50", "ResNet-50, almost a chain: placed, not run")
Maker = Callable[[], Model]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code: 0, or 1 after an error of ours."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo"), metavar="DIR", help="default: build/demo"
    )
    parser.add_argument("--rounds", type=int, default=21, help="rounds of measurement; default: 21")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="of the solver, for each plan; default: 5",
    )
    parser.add_argument(
        "--chain",
        action="store_true",
        help="also place ResNet-50, which has little to run side by side",
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    silence_tuning_hint()
    measured = [(title, partial(load_model, name)) for name, title in MODELS]
    placed = [(CHAIN[1], partial(load_model, CHAIN[0]))] if options.chain else []
    screen = Screen(sys.stdout)
    try:
        with Interrupts():
            run_demo(measured, placed, options.output, options.rounds, options.time_limit, screen)
    except HeteroPlaceError as fault:
        screen.close()
        print(f"error: {fault}", file=sys.stderr)
        return 1
    finally:
        screen.close()
    return 0


def run_demo(
    measured: Sequence[tuple[str, Maker]],
    placed: Sequence[tuple[str, Maker]],
    folder: Path,
    num_rounds: int,
    time_limit_s: float,
    screen: Screen,
) -> None:
    """Show each model and write `summary.json`.

    Parameters
    ----------
    measured, placed
        Title of each model, and what makes it; the second ones are placed, but neither run nor
        compared.
    folder
        Where the files go.
    num_rounds, time_limit_s
        See `ComparisonOptions`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise HeteroPlaceError(
            f"{folder}: the folder cannot be made: {err.strerror}; name another one by --output"
        ) from err
    cluster = local_cluster(has_gpus=False)
    names = ", ".join(f"{d.name} ({_cores(len(d.cores))})" for d in cluster.devices)
    screen.title("heteroplace: one network over all the processors of a machine")
    screen.print(f"devices: {names}; target {cluster.devices[0].target}")
    rows, placed_rows = [], []
    for title, make in measured:
        screen.title(title)
        screen.step("importing")
        result = measure_model(make(), cluster, num_rounds, time_limit_s, screen)
        show(result, folder, screen)
        rows.append(summary_row(result))
    for title, make in placed:
        screen.title(title)
        screen.step("importing")
        prepared = prepare_model(make(), cluster, screen.step)
        names_allowed = plan_names(cluster)[CHOSEN]
        screen.step(f"placing {len(prepared.graph.tasks)} tasks")
        solution = place_on(prepared, names_allowed, time_limit_s).solution
        screen.print(f"\n{solution_headline(solution)}")
        placed_rows.append(plan_row(prepared.model.name, solution))
    write_summary(rows, placed_rows, folder / "summary.json")
    screen.print(f"\nall figures: {folder / 'summary.json'}")


def measure_model(
    model: Model, cluster: Cluster, num_rounds: int, time_limit_s: float, screen: Screen
) -> Comparison:
    """Place, build and measure one model, with a bar for the rounds of measurement."""
    options = ComparisonOptions(
        time_limit_s=time_limit_s,
        num_rounds=num_rounds,
        say=screen.step,
        on_round=lambda done: screen.done(done, num_rounds),
    )
    return compare_plans(model, cluster, options)


def show(result: Comparison, folder: Path, screen: Screen) -> None:
    """Print the result of one model and write its files."""
    name = result.model.name
    executable = result.executables[CHOSEN]
    solution = executable.solution
    library, trace = folder / f"{name}.so", folder / f"{name}.trace.json"
    full, page = folder / f"{name}.placement.txt", folder / f"{name}.html"
    screen.step(f"writing {library}")
    executable.export_library(library)
    executor = load(library)
    executor.run(result.model.inputs)
    measured = executor.timeline()
    write_timelines(solution, measured, trace)
    write_solution(solution, full)
    write_page(result, measured, page)
    screen.print(f"\n{solution_headline(solution)}")
    if CORES in result.executables:
        cores = result.executables[CORES].solution
        screen.print(f"without the device of all cores: {solution_headline(cores)}")
    screen.print(f"\n{plan_text(solution, full)}")
    screen.print(f"\n{times_text(result)}")
    screen.print(f"\n{verdict_text(result, solution.timeline, measured)}")
    screen.print(f"\nopen it in a browser: {page}")
    screen.print(f"files: {library}, {trace} (open it at https://ui.perfetto.dev), {full}")


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
