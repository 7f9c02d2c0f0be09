"""A model at several sizes, and how often each is called -> its modules in Relay, one an entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heteroplace.argument_checks import check_mapping, did_you_mean, is_list
from heteroplace.entry_calls import Calls, num_calls
from heteroplace.errors import FrontendError
from heteroplace.listed_sizes import ListedSizes, read_listed
from heteroplace.model.cluster import Cluster
from heteroplace.model_network import GivenSizes, read_network
from heteroplace.pipeline.workload_stages import EntryModule

EntrySizes = Mapping[str, Mapping[str, int | Sequence[int]]]
"""By the names of entries their sizes, by name, and shapes of their inputs."""
_FORM = "{'token': {'sequence_length': 1}}"
_WORKLOAD_FORM = "{'token': 128, 'prompt': 8}"


@dataclass(frozen=True)
class ModelEntries:
    """A model at several sizes."""

    modules: dict[str, EntryModule]
    """By the names of the entries."""
    listed: ListedSizes | None
    """The size that calls choose, whose values the entries are for; None: they choose entries."""


def model_entries(
    model: object,
    cluster: Cluster,
    entries: EntrySizes | None,
    workload: Mapping[str, Calls] | None,
    sizes: GivenSizes,
    options: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    *,
    ignore_annotations: bool = False,
) -> ModelEntries:
    """Return the model at the sizes of each entry; parameters and errors as of `compile`."""
    listed = _listed(sizes, entries, options)
    if listed is not None:
        entries = listed.entries
    modules = {}
    for name, calls in _entry_calls(entries, workload).items():
        entry = (entries or {})[name]
        own = replace(
            sizes,
            shapes={**(sizes.shapes or {}), **_shapes(entry)},
            named={**(sizes.named or {}), **_named(entry)},
        )
        network = read_network(model, cluster, params, own, options, ignore_annotations)
        modules[name] = EntryModule(network.mod, network.keywords, calls)
    return ModelEntries(modules, listed)


def _listed(
    sizes: GivenSizes, entries: EntrySizes | None, options: Mapping[str, Any]
) -> ListedSizes | None:
    """The size that has several values; None: all have one."""
    named = sizes.named or {}
    check_mapping("sizes", named, "a map by the names of free sizes", FrontendError)
    if not any(map(is_list, named.values())):
        return None
    has_state = bool(options.get("state"))
    return read_listed(named, has_entries=entries is not None, has_state=has_state)


def _entry_calls(
    entries: EntrySizes | None, workload: Mapping[str, Calls] | None
) -> dict[str, int]:
    """How often each entry is called: once where no workload is given.

    Raises
    ------
    FrontendError
        There is no entry, one has no sizes, or the workload does not name all of them.
    """
    check_mapping("entries", entries, f"sizes by the names of entries: {_FORM}", FrontendError)
    if not entries:
        raise FrontendError(f"entries is empty; name at least one: {_FORM}")
    for name, entry in entries.items():
        check_mapping(f"entries[{name!r}]", entry, "sizes by their names", FrontendError)
    if workload is None:
        return dict.fromkeys(entries, 1)
    expected = f"calls by the names of entries: {_WORKLOAD_FORM}"
    check_mapping("workload", workload, expected, FrontendError)
    for name in workload:
        if name not in entries:
            near = did_you_mean(str(name), entries)
            raise FrontendError(
                f"workload: there is no entry {name!r}{near or '.'} "
                f"Entries are {', '.join(entries)}"
            )
    missing = [name for name in entries if name not in workload]
    if missing:
        raise FrontendError(
            f"workload does not say how often {missing[0]!r} is called; give {expected}"
        )
    return {
        name: num_calls(workload[name], entry, f"workload[{name!r}]")
        for name, entry in entries.items()
    }


def _named(entry: Mapping[str, int | Sequence[int]]) -> dict[str, int]:
    return {name: int(size) for name, size in entry.items() if not isinstance(size, Sequence)}


def _shapes(entry: Mapping[str, int | Sequence[int]]) -> dict[str, Sequence[int]]:
    return {name: shape for name, shape in entry.items() if isinstance(shape, Sequence)}
