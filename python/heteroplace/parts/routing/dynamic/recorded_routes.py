"""Route decisions, run by run -> the profile of a model; profiles -> one.

The reducer of the dynamic profile of Cui et al., Optimizing Dynamic Neural Networks with Brainstorm
(OSDI 2023). Everything is a sum of counts, so `merge_profiles` of the profiles of two traces equals
the profile of both traces.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from heteroplace.errors import RoutingError
from heteroplace.files.route_profile_file import load_route_profile
from heteroplace.files.routes_file import RoutesReader, is_routes_file
from heteroplace.model.routed.route_profile import (
    Cells,
    Histogram,
    Profile,
    RouteProfile,
    RouteRecord,
    RouterProfile,
    RouterShape,
    Transition,
    following_routers,
)
from heteroplace.terminal import listed

_MAX_TOLD = 4
_MAX_OPEN_RUNS = 1024


class _Runs:
    """Numbers of runs, most of them in a row, which takes no memory."""

    def __init__(self) -> None:
        self._row = range(0)
        self._others: set[int] = set()

    def __contains__(self, run: int) -> bool:
        return run in self._row or run in self._others

    def add(self, run: int) -> None:
        """Add one that is not there."""
        if not self._row:
            self._row = range(run, run)
        self._others.add(run)
        while self._row.stop in self._others:
            self._others.remove(self._row.stop)
            self._row = range(self._row.start, self._row.stop + 1)


class ProfileBuilder:
    """Adds up records of one model; not thread-safe.

    Records of a run may be apart, but not by 1,024 runs that are not complete: the oldest of these
    is then over, as one that has the decisions of all routers.

    Parameters
    ----------
    model_digest, routers
        Of the model; routers in the order in which they decide.
    """

    def __init__(self, model_digest: str, routers: Sequence[RouterShape]) -> None:
        self._digest = model_digest
        self._routers = tuple(routers)
        self._ids = {router.name: index for index, router in enumerate(routers)}
        self._loads = [
            [Counter[int]() for _ in range(router.num_branches)] for router in self._routers
        ]
        self._sets = [Counter[tuple[int, ...]]() for _ in self._routers]
        self._runs = [0] * len(self._routers)
        self._pairs = following_routers(self._routers)
        self._transitions = [Counter[tuple[int, int, int]]() for _ in self._pairs]
        self._transition_runs = [0] * len(self._pairs)
        self._open: dict[int, dict[int, Cells | None]] = {}
        """Decisions of the latest runs of which not all routers have come, by run and router."""
        self._over = _Runs()

    def add(self, record: RouteRecord) -> None:
        """Count a record.

        Raises
        ------
        RoutingError
            The model has no such router, it has other branches, or decides twice in this run, which
            is also said of a run that is over.
        """
        index = self._ids.get(record.router)
        if index is None or len(record.loads) != self._routers[index].num_branches:
            names = ", ".join(f"{r.name!r} of {r.num_branches}" for r in self._routers[:_MAX_TOLD])
            raise RoutingError(
                f"run {record.run}: the model has no router {record.router!r} of "
                f"{len(record.loads)} branches; it has {names}"
                f"{', ...' if len(self._routers) > _MAX_TOLD else ''}"
            )
        is_over = record.run in self._over
        if is_over or index in self._open.get(record.run, ()):
            apart = f" or {_MAX_OPEN_RUNS} runs later than others" * is_over
            raise RoutingError(
                f"run {record.run}: router {record.router!r} decides twice{apart}; profile each "
                f"recording by itself, and merge the profiles"
            )
        decided = self._open.setdefault(record.run, {})
        decided[index] = record.cells
        self._runs[index] += 1
        for counter, load in zip(self._loads[index], record.loads, strict=True):
            counter[load] += 1
        self._sets[index][record.active] += 1
        self._count_transitions(index, decided)
        if len(decided) == len(self._routers):
            self._end(record.run)
        elif len(self._open) > _MAX_OPEN_RUNS:
            self._end(next(iter(self._open)))

    def profile(self) -> RouteProfile:
        """Return the profile of what was added so far."""
        routers = tuple(
            RouterProfile(
                router.name,
                router.num_cells,
                router.num_branches,
                self._runs[index],
                tuple(_ascending(counter) for counter in self._loads[index]),
                tuple(sorted(self._sets[index].items())),
            )
            for index, router in enumerate(self._routers)
        )
        transitions = tuple(
            Transition(
                self._routers[src].name,
                self._routers[dst].name,
                runs,
                tuple(sorted((*key, count) for key, count in counter.items())),
            )
            for (src, dst), counter, runs in zip(
                self._pairs, self._transitions, self._transition_runs, strict=True
            )
            if runs
        )
        return RouteProfile(self._digest, routers, transitions)

    def _end(self, run: int) -> None:
        """Forget the decisions of a run, but not that it was there."""
        del self._open[run]
        self._over.add(run)

    def _count_transitions(self, index: int, decisions: Mapping[int, Cells | None]) -> None:
        """Count those of a run that the decision of router `index` makes complete."""
        for pair, (src, dst) in enumerate(self._pairs):
            before, after = decisions.get(src), decisions.get(dst)
            if index not in (src, dst) or before is None or after is None:
                continue
            self._transition_runs[pair] += 1
            counter = self._transitions[pair]
            for taken, others in zip(before, after, strict=True):
                for branch in taken:
                    for other in others:
                        counter[branch, other, len(others)] += 1


def read_profile(path: str | os.PathLike[str]) -> RouteProfile:
    """Return the profile in a file, or that of the records in it.

    Raises
    ------
    RoutingError
        The file cannot be read, is neither, or has faults (all are named).
    """
    if not is_routes_file(path):
        return load_route_profile(path)
    reader = RoutesReader(path)
    builder = ProfileBuilder(reader.model_digest, reader.routers)
    faults = []
    for record in reader.records():
        try:
            builder.add(record)
        except RoutingError as fault:
            faults.append(str(fault))
    if faults:
        raise RoutingError(f"{os.fspath(path)}: {listed(faults, '; ', _MAX_TOLD)}")
    return builder.profile()


def as_profile(profile: Profile) -> RouteProfile:
    """Return a profile, read from its file if it is a path; raises as `read_profile`."""
    return profile if isinstance(profile, RouteProfile) else read_profile(profile)


def merge_profiles(profiles: Iterable[RouteProfile]) -> RouteProfile:
    """Return the profile of all runs of several profiles of one model, at least one.

    Raises
    ------
    RoutingError
        They are of different models, or of different routers.
    """
    first, *others = profiles
    shapes = shapes_of(first)
    for other in others:
        other.check_model(first.model_digest)
        if shapes_of(other) != shapes:
            raise RoutingError(
                f"profiles of one model with different routers: {_shapes_text(shapes)} and "
                f"{_shapes_text(shapes_of(other))}; record both with the same heteroplace"
            )
    everything = [first, *others]
    routers = tuple(
        _merge_routers([profile.routers[index] for profile in everything])
        for index in range(len(shapes))
    )
    transitions = []
    for src, dst in following_routers(shapes):
        all_transitions = [p.transition(shapes[src].name, shapes[dst].name) for p in everything]
        present = [each for each in all_transitions if each is not None]
        if present:
            transitions.append(_merge_transitions(present))
    return RouteProfile(first.model_digest, routers, tuple(transitions))


def shapes_of(profile: RouteProfile) -> tuple[RouterShape, ...]:
    """Return what the routers of a profile decide about, in order."""
    return tuple(RouterShape(r.name, r.num_cells, r.num_branches) for r in profile.routers)


def _merge_routers(routers: Sequence[RouterProfile]) -> RouterProfile:
    first = routers[0]
    loads = tuple(
        merge_histograms(router.loads[branch] for router in routers)
        for branch in range(first.num_branches)
    )
    sets = Counter[tuple[int, ...]]()
    for router in routers:
        sets.update(dict(router.active_sets))
    return RouterProfile(
        first.name,
        first.num_cells,
        first.num_branches,
        sum(router.num_runs for router in routers),
        loads,
        tuple(sorted(sets.items())),
    )


def merge_histograms(histograms: Iterable[Histogram]) -> Histogram:
    """Return the histogram of all observations of several ones.

    >>> merge_histograms([((1, 2),), ((0, 1), (1, 3))])
    ((0, 1), (1, 5))
    """
    counter = Counter[int]()
    for histogram in histograms:
        counter.update(dict(histogram))
    return _ascending(counter)


def _merge_transitions(transitions: Sequence[Transition]) -> Transition:
    counter = Counter[tuple[int, int, int]]()
    for transition in transitions:
        for *key, count in transition.counts:
            counter[key[0], key[1], key[2]] += count
    first = transitions[0]
    runs = sum(transition.num_runs for transition in transitions)
    rows = tuple(sorted((*key, count) for key, count in counter.items()))
    return Transition(first.src, first.dst, runs, rows)


def _ascending(counter: Counter[int]) -> Histogram:
    return tuple(sorted(counter.items()))


def _shapes_text(shapes: Sequence[RouterShape]) -> str:
    texts = [f"{s.name!r} ({s.num_cells} cells, {s.num_branches} branches)" for s in shapes]
    return ", ".join(texts[:_MAX_TOLD]) + (", ..." if len(texts) > _MAX_TOLD else "")
