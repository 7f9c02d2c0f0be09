"""README and tutorials -> the commands that they print, in order, with the outputs that they show.

In the README a command is a line that is indented by four spaces, a program in a fence of Python,
or `make NAME` in backticks. A fence without a language is the output of what stands before it: of
the program, or of the first line of the block. Comments behind `#` are not typed. A line
`...` of an output stands for lines that are left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from docs.pages.tutorials import OUTPUTS, tutorials

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MAKE = re.compile(r"`(make [\w-]+)`")
_PROGRAM = "program.py"


@dataclass
class Command:
    """One command as it is typed."""

    where: str
    """File and line, or the name of a tutorial."""
    typed: str
    """What bash gets."""
    shown: str = ""
    """The output that the text shows, "" if none; it may show only the end of it."""
    program: str = ""
    """A program that the text prints: written to `program.py`, which the command runs."""
    has_cuts: bool = False
    """Whether a line `...` of `shown` stands for any lines."""
    copied: Path | None = None
    """A file that lies beside the command, of the same name."""

    @property
    def is_of_the_checkout(self) -> bool:
        """Whether it is typed in a checkout: make, and what it has set up."""
        return self.typed.startswith(("make ", ".venv/"))


def readme_commands(readme: Path) -> list[Command]:
    """Return the commands of a README in the order of its text, each once.

    Parameters
    ----------
    readme
        The file.
    """
    text = readme.read_text()
    fences = {found.start(): found for found in _FENCE.finditer(text)}
    found: list[Command] = []
    block: list[Command] = []
    offset, fence_end, was_command = 0, 0, False
    for number, row in enumerate(text.splitlines(keepends=True), 1):
        where = f"{readme.name}:{number}"
        if offset in fences:
            language, code = fences[offset].groups()
            fence_end = fences[offset].end()
            if language == "python":
                block = [Command(where, f"python {_PROGRAM}", program=code)]
                found += block
            elif not language:
                block[0].shown, block[0].has_cuts = code, True
        elif offset >= fence_end and row.startswith("    ") and row.strip():
            if not was_command:
                block = []
            block.append(Command(where, row.partition(" #")[0].strip()))
            found.append(block[-1])
        elif offset >= fence_end:
            found += [Command(where, typed) for typed in _MAKE.findall(row)]
        was_command = row.startswith("    ")
        offset += len(row)
    once = {command.typed: command for command in reversed(found)}
    return [command for command in found if once[command.typed] is command]


def tutorial_commands() -> list[Command]:
    """Return a command for each tutorial, with all that it printed when it was recorded."""
    found = []
    for path in tutorials():
        told = json.loads((OUTPUTS / path.stem / "output.json").read_text())
        shown = "\n".join(block["printed"] for block in told["blocks"] if block["printed"])
        found.append(Command(path.stem, f"python {path.name}", shown, copied=path))
    return found
