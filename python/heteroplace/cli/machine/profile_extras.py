"""What `heteroplace profile` finds out beside the times of kernels. Loaded late: it needs TVM."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from heteroplace.cli.profile_command import Extras
from heteroplace.costs.standard_evaluation import estimate_costs
from heteroplace.errors import HeteroPlaceError, SolverError
from heteroplace.files.measurements import Note, date_text
from heteroplace.frontends import Imported
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.batches import BatchMeasurement, measure_batches
from heteroplace.measure.devices_under_test import find_devices_under_test
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, TableBuilder, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.simulate.interference import Interference

SMALL_BATCHES = (1, 2, 4)
"""From which a larger batch is estimated."""

_NOT_OVER_HOSTS = {
    "sequential_order": "--sequential",
    "predicts_absent": "--predict",
    "has_interference": "--interference",
    "estimated_batch": "--estimate-batch",
    "remotes": "--rpc",
}
"""What of `Extras` one process does over all devices."""


def check_over_hosts(extras: Extras) -> None:
    """Raise HeteroPlaceError for what is not measured over hosts."""
    set_options = [name for field, name in _NOT_OVER_HOSTS.items() if getattr(extras, field)]
    if set_options:
        raise HeteroPlaceError(
            f"{', '.join(set_options)}: one process does it over all devices; "
            f"leave it out under mpiexec"
        )


def check_estimated_batch(large: int, batches: Sequence[int]) -> None:
    """Raise SolverError unless a batch can be estimated beside the `batches` that are measured."""
    if large <= SMALL_BATCHES[-1]:
        raise SolverError(
            f"a batch of {large} is not estimated but measured: use --batch {large}; larger than "
            f"{SMALL_BATCHES[-1]} can be estimated"
        )
    if large in batches:
        raise SolverError(
            f"a batch of {large} is to be measured and estimated: leave out --estimate-batch, or "
            f"{large} from --batch"
        )


def estimate_batch(
    imported: Imported,
    graph: TaskGraph,
    cluster: Cluster,
    large: int,
    options: ProfileOptions,
) -> tuple[CostTable, dict[str, int]]:
    """Estimate the costs of a batch from small ones (Celeritas' Standard Evaluation, step 1).

    Returns
    -------
    costs, peak_bytes
        A table for one batch of `large` items, whose cells are "regressed", on every device in this
        machine; and what the network needs there in memory, by the name of the device measured.

    Raises
    ------
    UnsupportedRelayError, LoweringError, InfeasibleError, CostMismatchError
        See `measure_batches`.
    """
    say = options.progress or (lambda line: None)
    measurements: list[BatchMeasurement] = []
    peaks = {}
    for under_test in find_devices_under_test(graph, cluster, (), options.skips_absent):
        name = cluster.devices[under_test.device].name
        say(f"Measuring batches {', '.join(map(str, SMALL_BATCHES))} on {name}")
        measured = measure_batches(
            imported.mod,
            imported.params,
            cluster,
            under_test.device,
            SMALL_BATCHES,
            large,
            tuple(imported.inputs),
        )
        measurements.append(measured)
        peaks[name] = measured.large_peak_bytes
    large_graph = measurements[0].large_graph
    tables = {
        size: _known_cells([each.tables[size] for each in measurements]) for size in SMALL_BATCHES
    }
    estimated = estimate_costs(large_graph, cluster, tables, large)
    return table_from_rows(graph, cluster, estimated.rows), peaks


def _known_cells(tables: list[CostTable]) -> CostTable:
    """One table of what each of several tables of the same tasks and devices knows."""
    builder = TableBuilder(tables[0].tasks, tables[0].devices)
    for rows in zip(*(table.rows for table in tables), strict=True):
        for cells in zip(*rows, strict=True):
            builder.add(_known(cells))
    return builder.finalize()


def _known(cells: Sequence[Cost]) -> Cost:
    return next((cost for cost in cells if cost.source != "unknown"), cells[0])


def interference_notes(
    graph: TaskGraph, cluster: Cluster, interference: Interference
) -> list[Note]:
    """Return what was measured of interference as notes of the store, one device after the other.

    Slowdowns are means over the tasks of the network; the scatter is that of the slowest tenth of
    the runs of a task over its median.
    """
    now = date_text(time.time())
    notes = []
    for index, device in enumerate(cluster.devices):
        figures = {
            "slowdown beside other devices": float(np.mean(interference.slowdown[:, index])),
            "slowdown beside copies": float(np.mean(interference.copy_slowdown[:, index])),
            "slowest tenth": float(np.quantile(interference.scatter[index], 0.9)),
        }
        fingerprint = device_fingerprint(device)
        under_test = f"{device.name}, {graph.name}"
        notes += [
            Note("interference", under_test, fingerprint, quantity, value, "", now)
            for quantity, value in figures.items()
        ]
    for quantity, value, unit in (
        ("core to core", float(interference.core_to_core_ns), "ns"),
        ("fetch", interference.fetch_ns_per_byte, "ns/B"),
    ):
        fingerprint = device_fingerprint(cluster.devices[0])
        notes.append(Note("interference", "cores", fingerprint, quantity, value, unit, now))
    return notes
