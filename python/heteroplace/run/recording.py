"""The recording of an executor's route decisions, as its callers use it."""

from __future__ import annotations

from typing import Protocol


class Recording(Protocol):
    """Writes the decisions of calls to a file until it is closed; `with` closes it."""

    @property
    def num_dropped(self) -> int:
        """Calls so far whose decisions came too fast, and are not in the file."""

    def close(self) -> None:
        """End the recording; the file then has the decisions of all calls that have ended.

        Raises
        ------
        OSError
            The file could not be written.
        """

    def __enter__(self) -> Recording: ...

    def __exit__(self, *fault: object) -> None: ...
