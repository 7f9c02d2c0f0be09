"""The parsers of the command line and the options of a placement -> their pages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from heteroplace.cli.main import EXIT_CODES, make_parser
from heteroplace.options import options_of
from heteroplace.place_options import OPTION_CLASSES


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command with its parser, those below others after them."""
    yield from _below("heteroplace", make_parser())


def _below(
    name: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner, below in action.choices.items():
                yield from _below(f"{name} {inner}", below)


def command_pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    text = (
        f"# Commands\n\n{EXIT_CODES} "
        "`tvmc` is TVM's own with `--placement` added (`tvmc compile --help`).\n\n"
    )
    for name, parser in commands():
        parser.formatter_class = _Narrow
        text += f"## {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n\n"
    return {"commands.md": text, "options.md": _options()}


class _Narrow(argparse.HelpFormatter):
    """The same text whatever the width of the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=96, max_help_position=28)


def _options() -> str:
    text = (
        "# Options of a placement\n\nEach is one field, which may be given in four ways: as a "
        "keyword of `HeteroPlace`, as the key `relay.HeteroPlace.NAME` in the `config` of a "
        "PassContext, as `--placement-option NAME=VALUE` of `tvmc compile`, and as `--NAME` of "
        "`heteroplace compile`, `run` and `place` (with `-` for `_`; `time_limit` also as "
        "`--budget`, the arrays of `inputs` by `--input`; `place` builds nothing and has no "
        "`--verify`). In a PassContext a "
        'map is a list of texts, `{"relay.HeteroPlace.pin": ["nn.conv2d*=cpu.0"], '
        '"relay.HeteroPlace.max_memory": ["gpu0=10GiB"]}`; on command lines the option is '
        "repeated. What can have no effect is refused with the reason, before anything is "
        "measured.\n\n"
        "| option | what it says | default | values |\n|---|---|---|---|\n"
    )
    for cls in OPTION_CLASSES:
        for entry in options_of(cls):
            default = entry.default() if callable(entry.default) else entry.default
            values = ", ".join(f"`{one}`" for one in entry.choices()) if entry.choices else ""
            told = entry.help.replace("|", "\\|").replace("%%", "%")
            text += f"| `{entry.name}` | {told} | `{default}` | {values} |\n"
    return text
