"""The exception types -> the page of errors: what each means, who raises it, how to mend it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import heteroplace
from heteroplace import errors

PACKAGE = Path(heteroplace.__file__).parent


def error_types() -> list[type[Exception]]:
    """Return the exception types in the order of `errors.py`."""
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value)
        and issubclass(value, errors.HeteroPlaceError)
        and value.__module__ == errors.__name__
    ]


def raised_in(name: str) -> list[str]:
    """Return the folders of the package that raise an error of this name."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if re.search(rf"\braise {name}\(", path.read_text()):
            inner = path.relative_to(PACKAGE).parent.as_posix()
            found.add(inner if inner != "." else path.name)
    return sorted(found)


def error_pages() -> dict[str, str]:
    """Return the page by its name."""
    from heteroplace.cli.main import exit_code

    text = (
        "# Errors\n\nA message says what is wrong, where (file and path in it, task, device, "
        "step), what was expected and found, and how to mend it. All are below "
        "`heteroplace.errors.HeteroPlaceError`; a command prints the code of the type behind its "
        "message and ends with its exit code; `heteroplace doctor CODE` says what is here. "
        "The exit codes here are those of `heteroplace` and `tvmc`; `heteroplace-run` has its own, "
        "where 3, 5 and 6 mean other things: `heteroplace-run --help` lists them.\n\n"
    )
    for error in error_types():
        parent = error.__mro__[1].__name__
        cause = " ".join(inspect.cleandoc(error.__doc__ or "").split())
        text += f"## {error.__name__}\n\n`{error.code}`: {cause}\n\nTo mend it: {error.remedy}.\n\n"
        places = ", ".join(f"`{place}`" for place in raised_in(error.__name__))
        text += f"Below `{parent}`; exit code {exit_code(error())}"
        text += f"; raised in {places}.\n\n" if places else ".\n\n"
    return {"errors.md": text}
