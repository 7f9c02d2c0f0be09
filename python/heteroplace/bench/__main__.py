"""`python -m heteroplace.bench`: the benchmarks, each a subcommand."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from heteroplace import HeteroPlaceError
from heteroplace.bench import compile as compile_bench
from heteroplace.bench import run as run_bench
from heteroplace.bench.stock import silence_tuning_hint

USAGE = 2
_BENCHMARKS = {
    "compile": (compile_bench, "processor time of import and compilation, against stock TVM"),
    "run": (run_bench, "run time of plans, against stock TVM and onnxruntime"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark: 0 done, 1 after an error of ours, 2 wrong usage."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.benchmark is None:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        re.compile(options.only)
    except re.error as err:
        parser.error(f"--only {options.only!r} is not a regular expression: {err}")
    silence_tuning_hint()
    module, _ = _BENCHMARKS[options.benchmark]
    try:
        rows = module.run(options.only, lambda line: print(line, file=sys.stderr, flush=True))
    except HeteroPlaceError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    if not rows:
        parser.error(f"--only {options.only!r} matches no network")
    print(module.table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m heteroplace.bench",
        description="Benchmarks on this machine. Without a subcommand: this text.",
    )
    commands = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK")
    for name, (_, text) in _BENCHMARKS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--only", default="", metavar="REGEX", help="only networks whose name matches"
        )
        command.add_argument("--json", type=Path, metavar="FILE", help='write {"rows": [...]}')
    return parser


if __name__ == "__main__":
    sys.exit(main())
