"""Texts of the project -> the commands that they print, in order, as a reader would type them.

A command is a line of a shell fence, an indented line that begins with a program of ours, or such
a program in backticks. In backticks, a line is a command only if it is complete; a mention such as
`heteroplace place` names a subcommand or an option, which has to exist.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.command import make_parser as bench_parser
from docs.pages.commands import commands as parsers
from heteroplace.cli.main import make_parser
from heteroplace.command_parser import options_of

ROOT = Path(__file__).resolve().parent.parent
BENCH = ["python", "-m", "benchmarks"]
_FOLDERS = ("docs", "python/heteroplace", "benchmarks", "zoo", "tutorials", "examples")
_CODE = ("python/", "benchmarks/", "zoo/")
_MADE = (ROOT / "docs" / "generated", ROOT / "docs" / "outputs")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MODULES = r"python -m (?:heteroplace|benchmarks)[.\w]*"
_OURS = rf"(?:\.venv/bin/)?(?:heteroplace(?:-run)?|tvmc|mpiexec|{_MODULES})"
_INDENTED = re.compile(rf"^(?:#   )? {{4}}({_OURS} .*)$", re.MULTILINE)
_IN_BACKTICKS = re.compile(rf"(`{{1,2}})({_OURS} [^`\n]*(?:\n[^`\n]*)?)\1")
_STRINGS = re.compile(r'"""(.*?)"""|^((?:#[^\n]*\n)+)', re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"\.(onnx|so|json|npz|npy|pem|csv|html|svg)\b")
_PLACEHOLDER = re.compile(r"\b[A-Z]{4,}\b(?!\.md)|\.\.\.|[{}]")
_GRAMMAR = re.compile(r"\[-|\w\|\w|; | \\\\$|\b(?:FILE|REGEX|NAME|LIST|INSTANCE)\b")
"""What only a form of usage has, which folders' READMEs and docstrings show."""


_NAMES = frozenset({"heteroplace place"})
"""Names of commands that need a model or a graph, which their parsers do not demand."""


@dataclass(frozen=True)
class DocumentCommand:
    """A command as a text prints it."""

    page: str
    """Path of the text."""
    typed: str

    @property
    def words(self) -> list[str]:
        """Its words, without the folder of the program."""
        words = shlex.split(self.typed)
        return [words[0].removeprefix(".venv/bin/"), *words[1:]]

    @property
    def is_benchmark(self) -> bool:
        """Whether a benchmark is run."""
        return self.words[: len(BENCH)] == BENCH


def pages() -> list[Path]:
    """Return the texts by hand: Markdown, and modules with their docstrings."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".md", ".py") and not any(at in path.parents for at in _MADE):
                found.append(path)
    return found


@cache
def document_commands() -> tuple[DocumentCommand, ...]:
    """Return all commands, page by page, each once in a page."""
    found: dict[DocumentCommand, None] = {}
    for path in pages():
        page = str(path.relative_to(ROOT))
        for typed, is_line in _candidates(path):
            command = DocumentCommand(page, typed)
            if _is_command(command, is_line):
                found[command] = None
    return tuple(found)


@cache
def mentions() -> tuple[DocumentCommand, ...]:
    """Return what stands in backticks and is no command."""
    found: dict[DocumentCommand, None] = {}
    for path in pages():
        for typed, is_line in _candidates(path):
            command = DocumentCommand(str(path.relative_to(ROOT)), typed)
            if not is_line and not _is_command(command, is_line):
                found[command] = None
    return tuple(found)


def faults_of_words(command: DocumentCommand) -> str:
    """Return which subcommand or option of a mention does not exist; "": all do."""
    first, *rest = [word for word in command.words if not _PLACEHOLDER.search(word)]
    if first not in ("heteroplace", "tvmc"):
        return ""  # heteroplace-run, mpiexec and modules have no parser here
    name, known = first, dict(parsers())
    while rest and f"{name} {rest[0]}" in known:
        name = f"{name} {rest.pop(0)}"
    subcommands = [each for each in known if each.rpartition(" ")[0] == name]
    if first == "heteroplace" and rest and subcommands and not rest[0].startswith("-"):
        return f"{name} has no subcommand {rest[0]!r}"
    options = {word.partition("=")[0] for word in rest if word.startswith("--")}
    unknown = options - _options(name) if first == "heteroplace" else set()
    return f"{name} has no option {', '.join(sorted(unknown))}" if unknown else ""


_parser = cache(make_parser)
_bench_parser = cache(bench_parser)


@cache
def parser_says(command: DocumentCommand) -> str | None:
    """Return what the program's own parser says against a command; None: nothing, or no parser."""
    words = command.words
    parser: argparse.ArgumentParser
    if words[0] == "heteroplace":
        parser, words = _parser(), words[1:]
    elif command.is_benchmark:
        parser, words = _bench_parser(), words[len(BENCH) :]
    else:
        return None
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        try:
            parser.parse_args(words)
        except SystemExit as stopped:
            return printed.getvalue() if stopped.code else None
        except importlib.import_module("heteroplace.errors").HeteroPlaceError as fault:
            return str(fault)
    return None


def _options(name: str) -> set[str]:
    return set(options_of(dict(parsers())[name]))


def _is_command(command: DocumentCommand, is_line: bool) -> bool:
    if is_line:
        is_form = command.page.startswith(_CODE) and _GRAMMAR.search(command.typed)
        return not is_form
    if _PLACEHOLDER.search(command.typed) or command.typed in _NAMES:
        return False
    if _FILE.search(command.typed):
        return True
    is_parsed = command.words[0] == "heteroplace" or command.is_benchmark
    return is_parsed and parser_says(command) is None


def _candidates(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield what may be a command, and whether it is a line for itself."""
    text = path.read_text()
    if path.suffix == ".py":
        for docstring, comment in _STRINGS.findall(text):
            part = docstring or re.sub(r"^# ?", "", comment, flags=re.MULTILINE)
            yield from _lines(part)
        return
    text = re.sub(r" *\\\n\s*", " ", text)  # lines that go on in the next one
    for language, code in _FENCE.findall(text):
        if language == "sh":
            for row in code.splitlines():
                if typed := _typed(row):
                    yield typed, True
    yield from _lines(_FENCE.sub("", text))


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    found = [(match.start(), _typed(match[1]), True) for match in _INDENTED.finditer(text)]
    for match in _IN_BACKTICKS.finditer(text):
        found.append((match.start(), " ".join(match[2].replace("\\|", "|").split()), False))
    for _, typed, is_line in sorted(found):
        yield typed, is_line


def _typed(row: str) -> str:
    return re.split(r"\s#\s", row)[0].strip()
