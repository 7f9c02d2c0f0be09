"""Type all commands of the README and of the tutorials, in order, where nothing is installed.

    python -m docs.type_commands                     # an empty environment and an empty home
    python -m docs.type_commands --chroot            # in a Debian made by debootstrap, as root
    python -m docs.type_commands --wheel FILE        # without make: from a wheel that there is

Each must end with 0 and print what the text shows, figures apart. What is left to others is named.
One line is printed for each command; the exit code is 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.newcomer.forms import differences
from docs.newcomer.sandbox import Finished, Sandbox
from docs.newcomer.texts import Command, readme_commands, tutorial_commands
from docs.pages.tutorials import ROOT

# Commands that take very long, or are typed elsewhere.
LEFT_OUT = {
    "make test": "CI types it",
    ".venv/bin/heteroplace run model.onnx --batch 1": "is for a model that leaves its batch open",
}
# What the README says has to be there, and what the page of tutorials says.
_PACKAGES = "apt-get install --yes python3-venv python3-dev g++ make"
_FOR_TUTORIALS = 'pip install "heteroplace[mpi,serve,torch]" matplotlib "tritonclient[http]"'
_SHOWN_LINES = 25


def main() -> None:
    """Type everything; end with 1 if a command failed or printed something else."""
    arguments = _arguments()
    kept = arguments.keep or Path(tempfile.mkdtemp(prefix="newcomer-"))
    sandbox = Sandbox(kept.resolve(), arguments.chroot, arguments.bind)
    try:
        passed, failed = _type_all(Newcomer(sandbox, arguments.only), arguments)
    finally:
        if not arguments.keep:
            shutil.rmtree(kept)
    print(f"{passed} passed, {failed} failed")
    sys.exit(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m docs.type_commands", description=__doc__)
    parser.add_argument("--chroot", action="store_true", help="in a Debian made by debootstrap")
    parser.add_argument(
        "--bind",
        metavar="FOLDER",
        type=Path,
        action="append",
        default=[],
        help="a folder of this machine that the Debian sees, such as certificates; repeated",
    )
    parser.add_argument("--wheel", type=Path, help="take this wheel; no command of make is typed")
    parser.add_argument("--python", default="python3", help="makes the environment")
    parser.add_argument("--only", metavar="REGEX", default="", help="tutorials of these names")
    parser.add_argument(
        "--keep", metavar="FOLDER", type=Path, help="work here and keep it, and outputs"
    )
    return parser.parse_args()


class Newcomer:
    """Types commands, says how each ended, counts."""

    def __init__(self, sandbox: Sandbox, only: str) -> None:
        self.sandbox, self.only = sandbox, re.compile(only)
        self.checkout = sandbox.home / "heteroplace"
        self.outputs = sandbox.folder / "outputs"
        self.passed = self.failed = 0

    def types(self, command: Command, folder: Path) -> Finished:
        """Type one command and judge it."""
        where, typed = command.where, command.typed
        done = self.sandbox.types(typed, folder)
        self.outputs.mkdir(exist_ok=True)
        (self.outputs / f"{self.passed + self.failed:02}.txt").write_text(done.printed)
        faults = differences(command.shown, done.printed, has_cuts=command.has_cuts)
        is_right = done.code == 0 and not faults
        self.passed, self.failed = self.passed + is_right, self.failed + (not is_right)
        told = "ok" if is_right else f"exit code {done.code}" if done.code else "prints other lines"
        times = f"waited {done.waited_s:.0f} s, {done.processor_s:.0f} s of CPU"
        print(f"{where}: {typed}: {told} ({times})", flush=True)
        if done.code:
            print("    " + "\n    ".join(done.printed.splitlines()[-_SHOWN_LINES:]), flush=True)
        for row in faults:
            print("    " + row, flush=True)
        return done

    def types_command(self, command: Command, folder: Path) -> None:
        """Type a command of a text, with the files that it needs beside it."""
        place = self.sandbox.on_host(folder)
        place.mkdir(parents=True, exist_ok=True)
        if command.program:
            (place / "program.py").write_text(command.program)
        if command.copied:
            shutil.copy(command.copied, place)
        self.types(command, folder)


def _type_all(newcomer: Newcomer, arguments: argparse.Namespace) -> tuple[int, int]:
    """Prepare the place, type README and tutorials; return how many commands passed and failed."""
    home = newcomer.sandbox.home
    if arguments.chroot:
        newcomer.types(Command("README.md", _PACKAGES), home)
    newcomer.types(Command("README.md", f"{arguments.python} -m venv env"), home)
    readme = readme_commands(ROOT / "README.md")
    # What takes a checkout comes first: the wheel is made there.
    if arguments.wheel:
        _copy(newcomer, [arguments.wheel], home / "work" / "dist")
    else:
        _clone(newcomer)
        _write_model(newcomer.sandbox.on_host(newcomer.checkout))
        for command in readme:
            if command.is_of_the_checkout and command.typed not in LEFT_OUT:
                newcomer.types_command(command, newcomer.checkout)
        built = newcomer.sandbox.on_host(newcomer.checkout / "dist").glob("*.whl")
        _copy(newcomer, list(built), home / "work" / "dist")
    _write_model(newcomer.sandbox.on_host(home / "work"))
    for command in readme:
        if command.typed in LEFT_OUT:
            print(f"{command.where}: {command.typed}: not typed, {LEFT_OUT[command.typed]}")
        elif not command.is_of_the_checkout:
            newcomer.types_command(command, home / "work")
    newcomer.types(Command("tutorials", _FOR_TUTORIALS), home)
    for command in tutorial_commands():
        if newcomer.only.search(command.where):
            newcomer.types_command(command, home / command.where)
    return newcomer.passed, newcomer.failed


def _clone(newcomer: Newcomer) -> None:
    """Put what git tracks of this checkout, as it is now, into the sandbox."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        target = newcomer.sandbox.on_host(newcomer.checkout) / name
        if name and (ROOT / name).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)


def _copy(newcomer: Newcomer, files: list[Path], folder: Path) -> None:
    place = newcomer.sandbox.on_host(folder)
    place.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, place)


def _write_model(folder: Path) -> None:
    """Write the user's `model.onnx`, a small CNN."""
    import onnx

    from tests.relay.onnx_models import tiny_cnn

    onnx.save(tiny_cnn(), folder / "model.onnx")


if __name__ == "__main__":
    main()
