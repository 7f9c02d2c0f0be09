"""JSON of one version, which heteroplace wrote itself -> its value, or what is wrong with it.

Nobody writes these files by hand, so one fault is told, not all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heteroplace.errors import PlanError
from heteroplace.files.faults import show
from heteroplace.files.reader import parse_json, unreadable


@dataclass(frozen=True)
class Versioned:
    """A kind of file."""

    name: str
    """Its version is under the key "NAME_version"."""
    version: int
    """Which is read."""
    what: str
    """For messages: what such a file is."""
    mend: str
    """For messages: what to do about one that is not."""

    @contextmanager
    def read(self, text: str, source: str) -> Iterator[Any]:
        """Yield the parsed JSON; what it lacks may be looked for inside.

        Raises
        ------
        PlanError
            Another version, no JSON, or a field that was looked for is missing or wrong.
        """
        try:
            value: Any = parse_json(text)
            version = value[f"{self.name}_version"]
            # true and 1.0 equal 1, and no file that was written here has them.
            if type(version) is not int or version != self.version:
                raise PlanError(
                    f"{source}: {self.name} version {show(version)}, this heteroplace reads "
                    f"{self.version}; {self.mend}"
                )
            yield value
        except (KeyError, TypeError, ValueError) as err:
            raise PlanError(f"{source}: not {self.what} ({err}); {self.mend}") from err


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text in a file; raises PlanError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as fault:
        raise PlanError(unreadable(path, fault)) from fault
    except ValueError as fault:  # also of a path that no file has
        raise PlanError(f"{os.fspath(path)!a}: is no text: {fault}") from fault
