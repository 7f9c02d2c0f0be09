"""An ONNX file at several sizes and a cluster -> one placement or executable. Needs TVM."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from heteroplace.cli.models.entry_sizes import EntryOptions
from heteroplace.cli.models.model_builder import import_file, model_digests, with_free_sizes
from heteroplace.errors import FrontendError
from heteroplace.frontends import frontend_of
from heteroplace.interrupts import interruptible
from heteroplace.listed_sizes import ListedSizes
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster
from heteroplace.model.workload_solution import WorkloadSolution
from heteroplace.pipeline.model_import import check_costs, with_annotations
from heteroplace.pipeline.workload_stages import EntryModule, compile_workload, place_workload
from heteroplace.stage_log import StageLog

_LOG = logging.getLogger("heteroplace")


@interruptible
def place_model_entries(
    path: Path,
    entries: Mapping[str, EntryOptions],
    cluster: Cluster,
    log: StageLog,
    *,
    is_annotated: bool,
) -> WorkloadSolution:
    """Place all entries of a model file together.

    Parameters
    ----------
    log
        Shows the stages, and notes the time of each.
    is_annotated
        Devices that the model names for its nodes hold.

    Raises
    ------
    HeteroPlaceError
        See `pipeline.workload_stages.place_workload`.
    """
    return place_workload(_modules(path, entries, cluster, log, is_annotated), cluster)


@interruptible
def compile_model_entries(
    path: Path,
    entries: Mapping[str, EntryOptions],
    cluster: Cluster,
    log: StageLog,
    *,
    is_annotated: bool,
    listed: ListedSizes | None = None,
) -> tuple[Executable, WorkloadSolution]:
    """Place all entries of a model file together, and compile them into one executable.

    Parameters are those of `place_model_entries`, and `listed` as of `compile_workload`.

    Raises
    ------
    FrontendError
        The model or its weights change in the meantime.
    HeteroPlaceError
        See `pipeline.workload_stages.compile_workload`.
    """
    digests = model_digests(path)
    with log.timed("import", "Read the model at each size."):
        modules = _modules(path, entries, cluster, log, is_annotated)
    executable, solution = compile_workload(modules, cluster, log, listed)
    if model_digests(path) != digests:
        raise FrontendError(
            f"{path}: the model or its weights changed while it was compiled; run it again"
        )
    return executable, solution


def _modules(
    path: Path,
    entries: Mapping[str, EntryOptions],
    cluster: Cluster,
    log: StageLog,
    is_annotated: bool,
) -> dict[str, EntryModule]:
    """The model at the sizes of each entry."""
    modules = {}
    for name, entry in entries.items():
        check_costs(cluster, entry.options)
        sizes, notes = with_free_sizes(path, entry.sizes)
        for note in notes:
            _LOG.warning("%s, entry %s: %s", path, name, note)
        imported = import_file(path, sizes, log)
        options = entry.options
        if is_annotated:
            reader = frontend_of(path)
            options = with_annotations(reader, path, imported, cluster, options, log.detail)
        keywords = {"params": imported.params, "progress": log, **options}
        modules[name] = EntryModule(imported.mod, keywords, entry.calls)
    return modules
