"""The state of the machine while something is measured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

import tvm

from heteroplace.costs.measurement import Conditions
from heteroplace.machine.usage import Usage


@dataclass(frozen=True)
class Watch:
    """Notes how busy the machine is from its making to `conditions`. Any thread may use it."""

    _begin: Usage

    @classmethod
    def start(cls) -> Watch:
        """Begin to watch."""
        return cls(Usage.now())

    def conditions(self, hop_ns: int | None) -> Conditions:
        """Return what was seen so far, with the date of now.

        Parameters
        ----------
        hop_ns
            Time of a cache line between two cores, if it is known.
        """
        others_cores = round(Usage.now().others_since(self._begin), 3)
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Conditions(date, tvm.__version__, hop_ns, others_cores)
