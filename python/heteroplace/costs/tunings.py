"""What the store keeps of tuning: for each fused function on a processor, what a tuner has found.

`found` is the best schedule so far by its time alone, where a search goes on; `kept` the one that
was faster than our own kernel in a run of the whole network, which alone is used. A schedule is a
text (`parts/kernels/tuned/tuned_kernels.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from heteroplace.errors import CostStoreError

if TYPE_CHECKING:
    from heteroplace.costs.store import CostStore

TABLE = """
    digest TEXT NOT NULL CHECK (typeof(digest) = 'text' AND digest <> ''),
    target TEXT NOT NULL CHECK (typeof(target) = 'text' AND target <> ''),
    device TEXT NOT NULL CHECK (typeof(device) = 'text' AND device <> ''),
    op TEXT NOT NULL CHECK (typeof(op) = 'text'),
    shapes TEXT NOT NULL CHECK (typeof(shapes) = 'text'),
    trials INTEGER NOT NULL CHECK (typeof(trials) = 'integer' AND trials >= 0),
    found TEXT NOT NULL CHECK (typeof(found) = 'text'),
    found_ns INTEGER NOT NULL CHECK (typeof(found_ns) = 'integer' AND found_ns >= 0),
    kept TEXT NOT NULL CHECK (typeof(kept) = 'text'),
    own_ns INTEGER NOT NULL CHECK (typeof(own_ns) = 'integer' AND own_ns >= 0),
    kept_ns INTEGER NOT NULL CHECK (typeof(kept_ns) = 'integer' AND kept_ns >= 0),
    measured_at TEXT NOT NULL CHECK (measured_at GLOB '????-??-??T??:??:??*'),
    PRIMARY KEY (digest, target, device)"""
"""Columns of the table `tunings`."""
_FIELDS = (
    *("digest", "op", "shapes", "trials", "found", "found_ns"),
    *("kept", "own_ns", "kept_ns", "measured_at"),
)
# Of two processes that tune one function each adds its trials, and the better schedule stays. What
# was measured beside the new one, and lost, goes, however short it was at another time, or on more
# cores.
_ADD = """
    INSERT INTO tunings (digest, target, device, op, shapes, trials, found, found_ns,
                         kept, own_ns, kept_ns, measured_at)
    VALUES (:digest, :target, :device, :op, :shapes, :trials, :found, :found_ns, '', 0, 0,
            :measured_at)
    ON CONFLICT (digest, target, device) DO UPDATE SET
        trials = trials + excluded.trials,
        measured_at = excluded.measured_at,
        found = CASE WHEN excluded.found <> ''
                AND (found IN ('', :beaten) OR excluded.found_ns < found_ns)
                THEN excluded.found ELSE found END,
        found_ns = CASE WHEN excluded.found <> ''
                   AND (found IN ('', :beaten) OR excluded.found_ns < found_ns)
                   THEN excluded.found_ns ELSE found_ns END"""
_KEEP = """
    UPDATE tunings SET kept = ?, own_ns = ?, kept_ns = ?
    WHERE digest = ? AND target = ? AND device = ?"""


@dataclass(frozen=True)
class Tuning:
    """Of one fused function, on the processor that it was tuned on."""

    digest: str
    """Of the function; see `tuning_digest`."""
    op: str
    shapes: str
    trials: int
    """Schedules that were measured."""
    found: str
    """The schedule that was fastest alone; "": none ran."""
    found_ns: int
    kept: str
    """The schedule that was faster than our kernel in place; "": none was."""
    own_ns: int
    """Of all calls of our kernel in the network in which `kept` was measured; 0: never."""
    kept_ns: int
    """The same of `kept`."""
    measured_at: str
    """Date of the last trial, ISO 8601 in UTC."""


@dataclass(frozen=True)
class TunedPlace:
    """Where schedules hold."""

    target: str
    """TVM target string of the device."""
    device: str
    """Fingerprint of the processor."""


def add_trials(
    store: CostStore, place: TunedPlace, tuning: Tuning, beaten: str | None = None
) -> None:
    """Add trials to what is known of a function; the better of two schedules stays.

    Parameters
    ----------
    tuning
        Its `trials` are those to add; `kept` is not looked at.
    beaten
        The schedule that was tried beside `found` and is not better: it goes even where it was
        stored with a shorter time, of another moment or of more cores. None: there was none.

    Raises
    ------
    CostStoreError
        The store cannot be written.
    """
    with store.transaction("IMMEDIATE") as connection:
        values = {**asdict(tuning), "target": place.target, "device": place.device}
        connection.execute(_ADD, {**values, "beaten": beaten})


def keep_schedule(
    store: CostStore, place: TunedPlace, digest: str, schedule: str, own_ns: int, kept_ns: int
) -> None:
    """Note what was measured in place, and the schedule that is used from now on; "": none.

    Raises
    ------
    CostStoreError
        The store cannot be written.
    """
    with store.transaction("IMMEDIATE") as connection:
        values = (schedule, own_ns, kept_ns, digest, place.target, place.device)
        connection.execute(_KEEP, values)


def find_tunings(store: CostStore, place: TunedPlace) -> dict[str, Tuning]:
    """Return all that is known of functions on a processor, by digest.

    Raises
    ------
    CostStoreError
        The store cannot be read.
    """
    query = f"SELECT {', '.join(_FIELDS)} FROM tunings WHERE target = ? AND device = ?"
    with store.transaction("DEFERRED") as connection:
        rows = connection.execute(query, (place.target, place.device)).fetchall()
    tunings = [Tuning(*row) for row in rows]
    for tuning in tunings:
        # The text itself is read where it is replayed, and told there if it is damaged.
        if tuning.kept and not tuning.kept.startswith("["):
            raise CostStoreError(
                f"{store.path}: the schedule of {tuning.op} {tuning.shapes} is damaged; remove "
                f"what was tuned: heteroplace costs forget --tuned"
            )
    return sorted_by_digest(tunings)


def sorted_by_digest(tunings: Iterable[Tuning]) -> dict[str, Tuning]:
    """Return tunings by digest, in its order."""
    return {each.digest: each for each in sorted(tunings, key=lambda tuning: tuning.digest)}


def kept_digest(store: CostStore) -> str:
    """Return what tells whether other schedules are kept than before; "": none are."""
    query = "SELECT digest, target, device, kept FROM tunings WHERE kept <> '' ORDER BY 1, 2, 3"
    with store.transaction("DEFERRED") as connection:
        rows = connection.execute(query).fetchall()
    return blake2b(repr(rows).encode(), digest_size=16).hexdigest() if rows else ""


def count_tunings(store: CostStore) -> int:
    """Return of how many functions something was tuned."""
    with store.transaction("DEFERRED") as connection:
        return int(connection.execute("SELECT count(*) FROM tunings").fetchone()[0])


def forget_tunings(store: CostStore) -> int:
    """Remove all that was tuned, and return of how many functions that was."""
    with store.transaction("IMMEDIATE") as connection:
        return connection.execute("DELETE FROM tunings").rowcount
