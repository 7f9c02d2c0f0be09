"""`tvmc compile --placement CLUSTER`: a model file to one placed .so, with tables.

Loaded by `tvmc.py` once TVM is known to be there.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
from tvm.driver.tvmc import compiler, frontends
from tvm.driver.tvmc.pass_config import parse_configs
from tvm.driver.tvmc.transform import apply_graph_transforms, parse_graph_transform_args

import heteroplace
from heteroplace import pipeline
from heteroplace.cli.models.input_shapes import TVMC_OPTION, as_options, plain_shapes
from heteroplace.cli.models.onnx_model import solution_text
from heteroplace.cli.shared import check_writable
from heteroplace.cli.tvmc_plugin import tvmc_options
from heteroplace.cli.tvmc_plugin.tvmc_errors import LOADER_ERRORS, Command, one_line
from heteroplace.cli.tvmc_plugin.tvmc_tuning import tuned
from heteroplace.errors import ArtifactError, FrontendError, HeteroPlaceError, PlanError
from heteroplace.files.plan_file import save_plan
from heteroplace.files.sharding import ShardingRecord, told_text
from heteroplace.frontends import frontend_of
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_bytes
from heteroplace.native.compiled_file import sign_tail
from heteroplace.pipeline.model_import import check_costs
from heteroplace.place_options import CONFIG_PREFIX, read_options
from heteroplace.progress import ProgressDisplay, SolverProgress
from heteroplace.registry import load_plugin
from heteroplace.relay.annotate.annotation_reader import read_solution
from heteroplace.report.headline import solution_headline
from heteroplace.report.html.content import SolverPoint
from heteroplace.solve.solve_report import SolverRecord, write_report
from heteroplace.stage_log import StageLog
from heteroplace.tvm_bridge import pass_config
from heteroplace.written_files import overwriting


def extend(parser: argparse.ArgumentParser, argv: Sequence[str]) -> Command:
    """Add the options of placement to TVM's parser of `compile`; return what runs the command."""
    tvmc_options.add_options(parser)

    def run(arguments: argparse.Namespace) -> int:
        given = tvmc_options.given_options(parser, argv, arguments)
        tvmc_options.check_given(given, arguments.placement is not None)
        if arguments.placement is None:
            return int(compiler.drive_compile(arguments))
        if "output" not in given:
            arguments.output = f"{Path(arguments.FILE).stem}.so"
        fault = None if arguments.placement_dry_run else overwriting(parser, arguments)
        if fault is not None:
            raise HeteroPlaceError(fault)
        compile_placed(arguments)
        return 0

    return run


def compile_placed(arguments: argparse.Namespace) -> None:
    """Import, place, print, compile and write.

    Raises
    ------
    HeteroPlaceError
        See `Frontend.import_file`, `HeteroPlace` and `build`. What can be checked at once is
        checked before anything slow is done.
    """
    if not arguments.output.endswith(".so"):
        raise ArtifactError(
            f"--output {arguments.output}: a placed model is one shared library; give it a name "
            f"that ends in .so"
        )
    check_writable(arguments.output, arguments.placement_plan_out, arguments.placement_report)
    sharding = tvmc_options.read_record(arguments)
    if arguments.placement_sign_with is not None:
        sign_tail(arguments.placement_sign_with, b"")  # a wrong key is refused at once
    if sharding is not None:
        _compile_shared(arguments, sharding)
        return
    options = tvmc_options.read_pairs(arguments.placement_option or ())
    cluster = tvmc_options.read_cluster(arguments.placement)
    check_costs(cluster, options)
    mod, params = load_model(arguments.FILE, arguments.model_format, arguments.input_shapes)
    with (
        tuned(arguments.tuning_records) as tuned_config,
        tvm.transform.PassContext(
            opt_level=arguments.opt_level,
            config=parse_configs(arguments.pass_config) | tuned_config,
            disabled_pass=arguments.disabled_pass,
        ) as context,
    ):
        mod = apply_graph_transforms(mod, parse_graph_transform_args(arguments))
        with ProgressDisplay(sys.stderr) as display:
            record = SolverRecord(SolverProgress(display))
            log = StageLog(display=display)
            options |= {"params": params, "progress": log, "solver_progress": record}
            if arguments.placement_dry_run:
                given = pass_config(context, CONFIG_PREFIX) | options
                _, solution = pipeline.place(mod, cluster, *read_options(given))
            else:
                mod = heteroplace.HeteroPlace(cluster, **options)(mod)
                solution = _solution_of(mod, arguments.FILE)
        print(f"\n{solution_text(solution)}", flush=True)
        if arguments.placement_plan_out is not None:
            path = arguments.placement_plan_out
            save_plan(solution.plan, solution.graph, solution.cluster, path)
            print(f"plan: {path}")
        if arguments.placement_dry_run:
            _report(solution, arguments, record.points)
            print("dry run: nothing was compiled")
            return
        _build(mod, arguments, record.points)


def _compile_shared(arguments: argparse.Namespace, record: ShardingRecord) -> None:
    """Compile a model as a plan of `heteroplace shard` says."""
    replay = load_plugin("sharding", "replay")
    with tvm.transform.PassContext(
        opt_level=arguments.opt_level,
        config=parse_configs(arguments.pass_config),
        disabled_pass=arguments.disabled_pass,
    ):
        shapes = plain_shapes(arguments.input_shapes)
        model = replay(Path(arguments.FILE), record, arguments.placement, shapes)
        print(f"\n{told_text(record.told)}\n{solution_headline(model.solution)}", flush=True)
        if arguments.placement_dry_run:
            _report(model.solution, arguments, ())
            print("dry run: nothing was compiled")
            return
        _build(model.to_module(), arguments)


def _report(
    solution: Solution, arguments: argparse.Namespace, progress: Sequence[SolverPoint]
) -> None:
    """Write the page of a plan that is not compiled."""
    path = arguments.placement_report
    if path is not None:
        command = shlex.join(sys.argv)
        write_report(solution, path, progress=progress, command=command, file=str(arguments.FILE))
        print(f"report: {path}; open it in a browser")


def _build(
    mod: tvm.IRModule, arguments: argparse.Namespace, progress: Sequence[SolverPoint] = ()
) -> None:
    """Compile a module that is placed, and write the file."""
    with ProgressDisplay(sys.stderr) as display:
        display.stage("Compiling kernels")
        executable = heteroplace.build(mod)
    if executable.verification is not None:
        print(executable.verification.text, flush=True)
    executable.export_library(
        arguments.output,
        with_source=bool(arguments.placement_with_source),
        sign_with=arguments.placement_sign_with,
    )
    report = arguments.placement_report
    if report is not None:
        command, file = shlex.join(sys.argv), str(arguments.FILE)
        executable.report(report, progress=progress, command=command, file=file)
        print(f"report: {report}; open it in a browser")
    size = format_bytes(Path(arguments.output).stat().st_size)
    command = shlex.join(["tvmc", "run", str(arguments.output)])
    print(f"compiled: {arguments.output} ({size}); next: {command}")


def _solution_of(mod: tvm.IRModule, path: str) -> Solution:
    solution = read_solution(mod)
    if solution is None:
        raise PlanError(f"{path}: the pass left no plan in the module")
    return solution


def load_model(
    path: str, model_format: str | None, input_shapes: Mapping[str, Sequence[int]] | None
) -> tuple[tvm.IRModule, Mapping[str, tvm.nd.NDArray]]:
    """Read a model: ONNX by our own importer, all other formats by TVM's driver.

    Raises
    ------
    FrontendError
        The file is missing, or is not what its format says.
    TVMCException
        TVM's driver does not know the format, or misses a package for it.
    """
    if not Path(path).is_file():
        raise FrontendError(f"{path}: no such file; give the path of a model")
    if model_format == "onnx" or (model_format is None and Path(path).suffix.lower() == ".onnx"):
        return _load_onnx(path, input_shapes)
    try:
        model = frontends.load_model(path, model_format, input_shapes)
    except LOADER_ERRORS as err:
        raise FrontendError(
            f"{path}: TVM's importer cannot read it: {one_line(err)}; check the file, "
            f"--model-format and --input-shapes"
        ) from err
    print(f"imported {path} by TVM's driver", flush=True)
    return model.mod, model.params


def _load_onnx(
    path: str, input_shapes: Mapping[str, Sequence[int]] | None
) -> tuple[tvm.IRModule, Mapping[str, tvm.nd.NDArray]]:
    with as_options(TVMC_OPTION):
        imported = frontend_of(path).import_file(Path(path), shapes=plain_shapes(input_shapes))
    print("\n  ".join((f"imported {path}", *imported.report)), flush=True)
    return imported.mod, imported.params
