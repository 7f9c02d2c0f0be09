"""`tvmc run model.so`: runs a placed file as TVM's driver runs its packages.

Inputs are read or made by TVM's own functions, and the outputs have its names, so that both can be
compared file by file. Loaded by `tvmc.py` once TVM is known to be there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tvm.driver.tvmc import runner
from tvm.driver.tvmc.model import TVMCResult
from tvm.driver.tvmc.result_utils import get_top_results
from tvm.runtime.module import BenchmarkResult

import heteroplace
from heteroplace.cli.models.model_arrays import check_names, checked_input
from heteroplace.cli.shared import check_writable
from heteroplace.cli.tvmc_plugin.tvmc_errors import Command
from heteroplace.cli.tvmc_plugin.tvmc_options import (
    HELPING,
    add_run_options,
    flags,
    given_options,
)
from heteroplace.errors import ExecutionError, HeteroPlaceError
from heteroplace.files.manifest import is_library
from heteroplace.report.notes import notes_text
from heteroplace.report.tables import busy_table, device_table, placement_table
from heteroplace.run.array_files import read_arrays
from heteroplace.run.executor import Executor

_ARRAYS = ".npz"
# A placed file runs on the devices of its plan, in this process.
_NOT_OFFERED = ("end_to_end", "rpc_key", "rpc_tracker", "list_options", "project_option")


def extend(parser: argparse.ArgumentParser, argv: Sequence[str]) -> Command:
    """Add the options of placed files to TVM's parser of `run`; return what runs the command."""
    add_run_options(parser)

    def run(arguments: argparse.Namespace) -> int:
        given = given_options(parser, argv, arguments)
        # TVM's driver writes archives, never a bare library: a library is ours, or an error.
        path = Path(arguments.PATH)
        if not (path.is_file() and is_library(path)):
            ours = {name for name in given if name.startswith("placement")}
            if ours:
                raise HeteroPlaceError(
                    f"{flags(ours)} needs a placed file; {arguments.PATH} is none"
                )
            return int(runner.drive_run(arguments) or 0)
        refused = given.intersection(_NOT_OFFERED)
        if refused:
            raise HeteroPlaceError(
                f"{flags(refused)} cannot be used with a placed file ({arguments.PATH}): it runs "
                f"in this process, on the devices it was compiled for; leave it out"
            )
        if "device" in given:
            print(
                f"note: --device {arguments.device} is ignored: {arguments.PATH} itself says "
                f"which device runs what",
                file=sys.stderr,
            )
        run_placed(arguments)
        return 0

    return run


def run_placed(arguments: argparse.Namespace) -> None:
    """Load a placed file, set its inputs, run it, print and write what was asked for.

    Raises
    ------
    ArtifactError
        The file is damaged, or its outputs have nowhere to go.
    ExecutionError
        The inputs are wrong, or the file does not run on this machine.
    """
    outputs = arguments.outputs
    if outputs and not outputs.endswith(_ARRAYS):
        outputs += _ARRAYS  # as numpy does, which writes them
    check_writable(outputs, arguments.placement_trace)
    executor = heteroplace.load(
        arguments.PATH,
        helping=HELPING[arguments.placement_helping or "auto"],
        trusted_keys=arguments.placement_trusted_key,
        on_missing=arguments.placement_on_missing or "error",
        hosts=arguments.placement_hosts.split(",") if arguments.placement_hosts else (),
    )
    if not executor.is_feeding:
        executor.serve()
        return
    try:
        _run_loaded(executor, arguments)
    except HeteroPlaceError as err:
        executor.fail(str(err))  # else the ranks that serve it would end well
        raise
    finally:
        executor.close()


def _run_loaded(executor: Executor, arguments: argparse.Namespace) -> None:
    notes = notes_text(executor.solution)
    if notes:
        print(notes, file=sys.stderr)
    inputs = _inputs(executor, arguments)
    trace = executor.trace()
    if arguments.placement_trace:
        trace.start()
    values = executor.run(inputs)
    outputs = {f"output_{index}": value for index, value in enumerate(values)}
    times = None
    if arguments.print_time:
        times = _measure(executor, arguments.repeat, arguments.number)
    result = TVMCResult(outputs, times)
    if arguments.outputs:
        result.save(arguments.outputs)
    if arguments.placement_trace:
        trace.stop()
        trace.save(arguments.placement_trace)
        print(busy_table(trace.busy))
    if arguments.profile:
        print(_profile(executor))
    if times is not None:
        print(result.format_times())
    if arguments.print_top:
        print(_top(values[0], arguments.print_top))


def _inputs(executor: Executor, arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return all inputs: those of the file, as `heteroplace run` takes them, the others filled."""
    shapes = {name: shape for name, shape, _ in executor.inputs}
    dtypes = {name: dtype for name, _, dtype in executor.inputs}
    given = read_arrays(arguments.inputs) if arguments.inputs else {}
    check_names(executor.inputs, given)
    inputs = runner.make_inputs_dict(shapes, dtypes, given, arguments.fill_mode)
    return {
        name: checked_input(name, shapes[name], dtypes[name], np.asarray(given[name]))
        if name in given
        else np.asarray(value).astype(dtypes[name])
        for name, value in inputs.items()
    }


def _measure(executor: Executor, repeat: int, number: int) -> BenchmarkResult:
    """Time `repeat` times `number` runs; each result is the mean of `number`, as TVM's."""
    if repeat < 1 or number < 1:
        raise ExecutionError(f"--repeat {repeat} --number {number}: both must be at least 1")
    times_ns = np.array(executor.benchmark(repeat * number)).reshape(repeat, number)
    return BenchmarkResult([float(mean) for mean in times_ns.mean(axis=1) * 1e-9])


def _top(output: np.ndarray, count: int) -> object:
    """The largest values of the first row of an output, and where they are, as TVM prints them.

    TVM takes the first axis for that of rows; without one all of the output is a row.
    """
    rows = np.atleast_2d(output)
    if not len(rows):
        return "output_0 has no rows"
    return get_top_results(TVMCResult({"output_0": rows}, None), count)


def _profile(executor: Executor) -> str:
    """Return the tables of one measured run."""
    solution, timeline = executor.solution, executor.timeline()
    tables = (placement_table, device_table)
    return "\n\n".join(
        table(solution.graph, solution.cluster, solution.plan, timeline) for table in tables
    )
