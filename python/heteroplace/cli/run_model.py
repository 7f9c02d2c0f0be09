"""`heteroplace run` and `heteroplace compile`: an ONNX model to its outputs, or to one file.

`run` keeps what it compiles (`models/cached_model.py`): the second time it only loads and runs.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from heteroplace.cli.models.cached_model import (
    WRITING,
    Program,
    chosen_cluster,
    compile_onnx,
    load_compiler,
    run_cached,
)
from heteroplace.cli.models.entry_sizes import (
    add_entries,
    chosen_entries,
    compile_entries,
    workload_json,
)
from heteroplace.cli.models.given_inputs import (
    InputSizes,
    add_input_sizes,
    input_arrays,
    input_shapes,
    input_sizes,
    left_inputs,
    measured_inputs,
)
from heteroplace.cli.models.model_arrays import Arrays
from heteroplace.cli.models.onnx_model import add_annotation_options, solution_json
from heteroplace.cli.models.peer_comparison import (
    SINGLE,
    Compare,
    PeerTime,
    ProgramRun,
    check_peers,
    compare_with_peers,
    peer_names,
)
from heteroplace.cli.place import KEPT, RENAMED
from heteroplace.cli.run_file import Ran, is_compiled, load_run, run_file
from heteroplace.cli.run_report import write_run_report
from heteroplace.cli.run_result import result_json, result_text
from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_json,
    add_output_file,
    add_stages,
    add_written,
    check_writable,
    given_flags,
    progress_of,
    show,
    stages_json,
    stages_text,
    written_text,
)
from heteroplace.command_parser import START
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.tokenizer_file import read_tokenizer
from heteroplace.model.units import format_bytes
from heteroplace.options import (
    Argument,
    add_arguments,
    count,
    options_of,
    read_arguments,
    seed_number,
)
from heteroplace.place_options import OPTION_CLASSES, read_options
from heteroplace.run.array_files import write_arrays
from heteroplace.stage_log import StageLog

_SUMMARY_ROWS = 10
_COMMON = (
    *("-o", "--input", "--cluster", "--batch", "--effort", "--solver", "--objective"),
    *("--pin", "--exclude", "--max-memory", "--budget", "--json"),
)
"""Options that --help shows first."""


def add_commands(commands: Parsers) -> None:
    """Add the subcommands `run` and `compile`."""
    _add_run(commands)
    _add_compile(commands)


def _add_run(commands: Parsers) -> None:
    names = peer_names()
    parser = add_command(
        commands,
        "run",
        "place, compile and run a model, and say how fast it is",
        run,
        description="Run an ONNX model over all processors of this machine: place it, compile it, "
        "keep that in the user's cache, run it, and say how fast it is and why. The second time it "
        "is only run. Also runs a compiled file; one for several hosts under mpiexec, on each.",
        group=START,
        common=("--runs", "--compare", "--report", *_COMMON),
    )
    parser.add_argument("model", metavar="MODEL", help="ONNX model, or a compiled file (.so)")
    parser.add_argument(
        "--input-seed",
        metavar="N",
        type=Argument(seed_number),
        default=0,
        help="of the inputs that are not given, which are made up; >= 0",
    )
    parser.add_argument(
        "--runs", metavar="N", type=count, help="runs to measure; default: half a second of them"
    )
    add_output_file(parser, "write the outputs", "FILE.npz")
    add_written(parser, "--report", metavar="FILE.html", help="write a page that shows the run")
    parser.add_argument(
        "--compare",
        metavar="NAME,NAME",
        type=Argument(_peers),
        default=[],
        help=f"measure other programs in turns with ours, on the same cores: {', '.join(names)}; "
        f"{SINGLE} is our plan for the best single device",
    )
    add_stages(parser)
    parser.add_argument(
        "--rebuild", action="store_true", help="compile again, with nothing from the cache"
    )
    parser.add_argument(
        "--trusted-key",
        metavar="KEY.pem",
        action="append",
        help="of a compiled file: run it only if this public key has signed it; may be repeated",
    )
    _add_build_options(parser, "to run with")


def _add_compile(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "compile",
        "place and compile a model to one file",
        run_compile,
        description="Place an ONNX model over a cluster and compile it to one file, which "
        "`heteroplace run`, `tvmc run`, heteroplace.load and heteroplace-run take.",
        group=START,
        common=("--stages", *_COMMON),
    )
    parser.add_argument("model", metavar="MODEL.onnx", help="the model")
    help = "default: the model's name, .so"
    add_output_file(parser, help, "FILE.so", default_name=_compiled_name)
    parser.add_argument(
        "--with-source",
        action="store_true",
        help="write the Relay module too, so that the file can be placed again elsewhere",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="tokenizer.json",
        help="the tokenizer of the model, which `heteroplace generate` then finds in the file",
    )
    add_stages(parser)
    add_entries(parser)
    _add_build_options(parser, "to measure kernels with")


def _peers(text: str) -> tuple[str, ...]:
    """Read NAME,NAME of --compare."""
    given = tuple(dict.fromkeys(text.split(",")))
    for name in given:
        if name not in peer_names():
            raise ValueError(
                f"{name!r}: expected some of {', '.join(peer_names())}, with commas between"
            )
    return given


def _flags_of(cls: type) -> list[str]:
    """The options of a class that are flags; `inputs` are the arrays of --input."""
    return [entry.name for entry in options_of(cls) if entry.name != "inputs"]


def _add_build_options(parser: argparse.ArgumentParser, arrays: str) -> None:
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="cluster (JSON), a ready-made one, or local: this machine (default)",
    )
    add_input_sizes(parser, arrays)
    add_annotation_options(parser, writes=False)
    group = parser.add_argument_group("placing", "as of the pass HeteroPlace")
    for cls in OPTION_CLASSES:
        add_arguments(group, cls, renamed=RENAMED, names=_flags_of(cls), own_names=KEPT)
    add_json(parser)


def _compiled_name(arguments: argparse.Namespace) -> str:
    """The compiled file of a model, where no name is given."""
    return f"{Path(arguments.model).stem}.so"


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of placing that were given, as keywords of `HeteroPlace`.

    Raises
    ------
    SolverError
        A value is wrong; checked before anything slow starts.
    """
    options: dict[str, Any] = {}
    for cls in OPTION_CLASSES:
        options |= read_arguments(cls, arguments, renamed=RENAMED, names=_flags_of(cls))
    read_options(options)
    return options


def run(arguments: argparse.Namespace) -> None:
    """Run a model, compiled before or now, and say how fast it is and why.

    Raises
    ------
    HeteroPlaceError
        An input or an option is wrong; the model cannot be placed or compiled.
    """
    model = Path(arguments.model)
    check_writable(arguments.output)
    check_writable(arguments.report)
    options, log = given_options(arguments), StageLog()
    if is_compiled(model):
        _check_run_only(model, options, arguments)
        program = Program(model, f"{model}: a compiled file")
        read = partial(input_arrays, arguments)  # of several hosts one has the arrays
        ran = _run_program(program, read, arguments, log)
    else:
        _check_unsigned(model, arguments)
        given = input_arrays(arguments)  # before anything slow
        sizes = input_sizes(model, given, arguments)
        inputs = left_inputs(given, sizes)
        program, ran = _run_compared(model, sizes, inputs, options, arguments, log)
    if ran is None:  # the rank that feeds the model tells all
        return
    if arguments.output:
        write_arrays(arguments.output, ran.outputs)
    if arguments.report:
        write_run_report(ran, arguments.report, arguments.model)
    written = written_text(outputs=arguments.output, report=arguments.report)
    text = partial(result_text, program, ran, arguments.batch)
    show(
        arguments,
        lambda: {**result_json(program, ran, arguments.batch), **stages_json(arguments, log)},
        lambda: f"{stages_text(arguments, log)}{text()}{written}",
    )


def _run_compared(
    model: Path,
    sizes: InputSizes,
    inputs: Arrays,
    options: dict[str, Any],
    arguments: argparse.Namespace,
    own_log: StageLog,
) -> tuple[Program, Ran | None]:
    """Run a model, beside the programs of --compare; the best single device is compiled first."""
    names = arguments.compare
    check_peers(names)

    def run_ours(single: ProgramRun | None = None) -> tuple[Program, Ran | None]:
        def compare(ours: ProgramRun) -> list[PeerTime]:
            with progress_of(arguments) as log:
                log.say("Comparing in turns")
                return compare_with_peers(names, model, ours, single, sizes.values, log.count)

        def run(program: Program) -> Ran | None:
            compared = compare if names else None
            return _run_program(program, lambda: inputs, arguments, own_log, compared)

        return run_cached(model, sizes, options, arguments, run, own_log)

    if SINGLE not in names:
        return run_ours()
    seed = arguments.input_seed
    _, result = run_cached(
        model,
        sizes,
        {**options, "solver": SINGLE},
        arguments,
        lambda program: run_ours(load_run(program.path, inputs, program.legal, seed)),
        StageLog(),
    )
    return result


def _run_program(
    program: Program,
    read_inputs: Callable[[], Arrays],
    arguments: argparse.Namespace,
    log: StageLog,
    compare: Compare | None = None,
) -> Ran | None:
    seed, num_runs, keys = arguments.input_seed, arguments.runs, arguments.trusted_key
    return run_file(
        program.path,
        read_inputs,
        program.legal,
        seed,
        num_runs,
        keys,
        compare,
        is_timed=arguments.report is not None,
        log=log,
    )


def _check_unsigned(model: Path, arguments: argparse.Namespace) -> None:
    if arguments.trusted_key:
        raise HeteroPlaceError(
            f"{model}: --trusted-key is for compiled files, which may be signed, and this is a "
            f"model; leave it out, or give the compiled file"
        )


def _check_run_only(model: Path, options: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Raise HeteroPlaceError where something is said about compiling what is compiled."""
    flags = ("cluster", "batch", "size", "fix", "ignore-annotations", "rebuild", "compare")
    refused = given_flags(arguments, flags)
    refused += [
        f"--input {name}={','.join(map(str, shape))}"
        for name, shape in input_shapes(arguments).items()
    ]
    refused += [f"--{RENAMED.get(name, name).replace('_', '-')}" for name in options]
    if refused:
        raise HeteroPlaceError(
            f"{model}: is compiled already; {', '.join(sorted(refused))} for compiling would "
            f"change nothing: leave them out, or give the model"
        )


def run_compile(arguments: argparse.Namespace) -> None:
    """Place and compile a model, and write the file.

    Raises
    ------
    HeteroPlaceError
        As `run`.
    """
    model = Path(arguments.model)
    output = arguments.output or _compiled_name(arguments)
    check_writable(output)
    options, entries = given_options(arguments), chosen_entries(arguments)
    cluster = chosen_cluster(arguments)
    log, workload = StageLog(), None
    load_compiler(model, log)
    path = arguments.tokenizer
    tokenizer = None if path is None else read_tokenizer(path)
    begin = time.perf_counter()
    if entries:
        executable, workload = compile_entries(entries, cluster, options, arguments, log)
    else:
        arrays = input_arrays(arguments)
        sizes = input_sizes(model, arrays, arguments)
        chosen = {**options, **measured_inputs(arrays, sizes)}
        executable, _, _ = compile_onnx(model, sizes, cluster, chosen, arguments, log)
    seconds = time.perf_counter() - begin
    executable = executable.with_tokenizer(tokenizer)
    with log.timed(*WRITING):
        executable.export_library(output, with_source=arguments.with_source)
    size, command = Path(output).stat().st_size, shlex.join(["heteroplace", "run", output])
    together = "" if workload is None else f"\n\n{workload}"
    show(
        arguments,
        lambda: {
            "file": output,
            "bytes": size,
            "seconds": round(seconds, 3),
            "solution": solution_json(executable.solution),
            "entries": {
                name: solution_json(entry.solution) for name, entry in executable.entries.items()
            },
            "workload": workload and workload_json(workload),
            "lengths": executable.manifest.lengths and asdict(executable.manifest.lengths),
            "verification": executable.verification and asdict(executable.verification),
            **stages_json(arguments, log),
        },
        lambda: (
            f"{stages_text(arguments, log)}{executable.summary(_SUMMARY_ROWS)}{together}"
            f"\n\ncompiled in "
            f"{seconds:.1f} s: {output} ({format_bytes(size)}); next: {command}"
        ),
    )
