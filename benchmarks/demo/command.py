"""`python -m benchmarks.demo`: commands that a newcomer would type, with what they print.

A trained model from a wheel of the package index, or the user's own, then a network in which
placing pays. Comparisons with other runtimes come last, and each may take 30 s.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from heteroplace.errors import HeteroPlaceError
from zoo.models.wired import wired_onnx
from zoo.trained import TRAINED, DownloadError, trained_model

_TRAINED = "ppocr_direction"
_PEERS = ("onnxruntime", "openvino")
_PEER_LIMIT_S = 30
_LINE_LENGTH = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code: 0, or 1 if one of our commands failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="an ONNX model of your own")
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo"), metavar="DIR", help="default: build/demo"
    )
    options = parser.parse_args(arguments)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        demos = list(_demos(options.model, options.output))
    except (HeteroPlaceError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    codes = [_show(title, model, options.output) for title, model in demos]
    for title, model in demos:
        print(f"\n# {title}, compared with other runtimes")
        for peer in _PEERS:
            _compare(model, peer)
    return int(any(codes))


def _demos(own: Path | None, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the title and file of each model; our own files are written first."""
    if own is not None:
        yield str(own), own
        return
    path = folder / f"{_TRAINED}.onnx"
    try:
        onnx.save(trained_model(_TRAINED), path)
        yield f"{TRAINED[_TRAINED].title}, a trained model", path
    except DownloadError as fault:
        print(f"{TRAINED[_TRAINED].title} is left out: {fault}")
    path = folder / "wired.onnx"
    onnx.save(wired_onnx(), path)
    yield "A randomly wired network with 32 branches", path


def _show(title: str, model: Path, folder: Path) -> int:
    """Run a model, ask why and what if, write the report; return the first bad exit code."""
    print(f"\n# {title}")
    page = folder / f"{model.stem}.html"
    commands = (
        ("run", str(model), "--compare", "single"),
        ("explain", str(model)),
        ("simulate", str(model), "--add-device", "another=cpu.0", "--solve", "--budget", "2"),
        ("report", str(model), "-o", str(page)),
    )
    return next(filter(None, map(_type, commands)), 0)


def _compare(model: Path, peer: str) -> None:
    """Compare a model with a runtime, if that is installed and takes no longer than its limit."""
    if importlib.util.find_spec(peer) is None:
        print(f"{peer} is not installed: pip install {peer}")
        return
    code = _type(
        ("run", str(model), "--compare", peer), only=f"as fast as {peer}", limit_s=_PEER_LIMIT_S
    )
    if code:
        print(f"{peer} is left out: it failed, or took more than {_PEER_LIMIT_S} s")


def _type(words: Sequence[str], only: str = "", limit_s: float | None = None) -> int:
    """Print a command and, of its lines, those with `only`; return its exit code."""
    print(f"\n$ {shlex.join(['heteroplace', *words])}", flush=True)
    command = [sys.executable, "-m", "heteroplace.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        timer = None if limit_s is None else threading.Timer(limit_s, program.kill)
        if timer is not None:
            timer.start()
        assert program.stdout is not None
        for line in program.stdout:
            text = line.rstrip("\n")
            if only in text:
                is_long = len(text) > _LINE_LENGTH and not only
                print(f"{text[: _LINE_LENGTH - 3]}..." if is_long else text, flush=True)
        if timer is not None:
            timer.cancel()
    return program.returncode


if __name__ == "__main__":
    sys.exit(main())
