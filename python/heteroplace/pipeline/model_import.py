"""A model in a file or in memory -> its network in Relay, and options that the model adds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from heteroplace.errors import ClusterError, MissingCostError
from heteroplace.frontends import Frontend, Imported
from heteroplace.model.cluster import Cluster
from heteroplace.place_options import cost_model_names
from heteroplace.run.missing_devices import missing_devices
from heteroplace.state_option import StateNames

Say = Callable[[str], None]


def import_model(
    frontend: Frontend,
    model: object,
    *,
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Any],
    batch: int | None,
    say: Say,
    state: StateNames = "",
) -> Imported:
    """Import a model.

    Parameters
    ----------
    model
        The path of a file, or a model in memory that the front end reads.
    shapes, values, batch, state
        See `Frontend.import_file`; `values` win over `shapes`.

    Raises
    ------
    FrontendError
        The model cannot be read, or sizes are missing or wrong.
    """
    say(f"Reading {model_name(model)}")
    shapes = {name: shape for name, shape in shapes.items() if name not in values}
    if not state:
        return frontend.import_file(model, shapes=shapes, values=values, batch=batch)
    return frontend.import_file(model, shapes=shapes, values=values, batch=batch, state=state)


def model_name(model: object) -> str:
    """Return what messages call a model: its path, or "the model"."""
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else "the model"


def check_costs(cluster: Cluster, options: Mapping[str, Any]) -> None:
    """Raise MissingCostError where costs are no file, or to be measured on absent devices."""
    costs = options.get("costs", "measure")
    models = cost_model_names()
    if isinstance(costs, str) and costs not in models and not Path(costs).is_file():
        raise MissingCostError(
            f"costs={costs}: no such file; give {', '.join(models)}, or a cost table"
        )
    excluded = options.get("exclude", ())
    used = [device.name for device in cluster.devices if device.name not in excluded]
    absent = missing_devices(cluster, used)
    if absent and costs in ("measure", "isolated"):
        raise MissingCostError(
            f"costs cannot be measured on devices that are not in this machine: "
            f"{'; '.join(absent)}. Give costs predict or estimate, or a cost table made on that "
            f"machine, or here by `heteroplace profile --predict`"
        )


def with_annotations(
    frontend: Frontend,
    model: object,
    imported: Imported,
    cluster: Cluster,
    options: Mapping[str, Any],
    say: Say,
) -> dict[str, Any]:
    """Return the options with the devices that the model itself names for its nodes.

    What the caller says of a layer goes first. Nodes that are no longer there, since they were
    folded or fused away while importing, are left out.

    Raises
    ------
    ClusterError
        A node is for a device that the cluster does not have.
    """
    devices = frontend.read_devices(model)
    if not devices:
        return dict(options)
    names = {device.name for device in cluster.devices}
    for node, device in devices.items():
        if device not in names:
            raise ClusterError(
                f"{model_name(model)}: node {node!r} is annotated for device {device!r}, and "
                f"cluster {cluster.name!r} has {', '.join(sorted(names))}; give a cluster that has "
                f"it, or --ignore-annotations (in Python: ignore_annotations=True)"
            )
    there: set[str] = set()

    def visit(expr: tvm.relay.Expr) -> None:
        if isinstance(expr, tvm.relay.Call) and expr.span:
            there.add(expr.span.source_name.name)

    tvm.relay.analysis.post_order_visit(imported.mod["main"], visit)
    layers = {node: device for node, device in devices.items() if node in there}
    if layers:
        say(f"Keeping {len(layers)} nodes on the devices that the model names")
    return {**options, "layers": {**layers, **options.get("layers", {})}}
