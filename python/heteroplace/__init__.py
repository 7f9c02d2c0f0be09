"""heteroplace: place one neural network over all the processors of a machine.

Importing it makes `relay.transform.HeteroPlace` exist in a TVM with Relay, which it does not load.
Without one, the planning layers (clusters, task graphs, solvers, reports) work all the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from heteroplace.errors import HeteroPlaceError
from heteroplace.kept_docstrings import keep_docstrings
from heteroplace.tvm_bridge import add_to_relay_transform, require_tvm
from heteroplace.tvm_import import keep_tvm_from_writing

if TYPE_CHECKING:
    from heteroplace.files.cluster import load_cluster, save_cluster
    from heteroplace.machine.local import local_cluster
    from heteroplace.model.cluster import Cluster, Device, Link, Memory
    from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
    from heteroplace.model.plan import Plan
    from heteroplace.model.timeline import Timeline

__version__ = "0.1.0"

_WITHOUT_TVM = {
    **dict.fromkeys(("Cluster", "Device", "Link", "Memory"), "heteroplace.model.cluster"),
    **dict.fromkeys(("Task", "TaskGraph", "TaskGraphBuilder"), "heteroplace.model.graph"),
    "Plan": "heteroplace.model.plan",
    "Timeline": "heteroplace.model.timeline",
    **dict.fromkeys(("load_cluster", "save_cluster"), "heteroplace.files.cluster"),
    "local_cluster": "heteroplace.machine.local",
}
"""Public names of the planning layers, and the module of each. They too are loaded when they are
asked for: the commands answer Ctrl-C only once this module is loaded."""
_PROFILE_PASSES = (
    "ChooseCapacities",
    "PlaceBranches",
    "PreloadWeights",
    "Specialise",
    "SpeculateRoutes",
)
_NEEDS_TVM = {
    **dict.fromkeys(_PROFILE_PASSES, "heteroplace.relay.routing.passes"),
    "DenseMasked": "heteroplace.relay.routing.dense",
    "FindRouters": "heteroplace.relay.routing.find",
    "Executable": "heteroplace.codegen.executable",
    "Executor": "heteroplace.run.executor",
    "HeteroPlace": "heteroplace.hetero_place",
    "Shard": "heteroplace.sharding.face",
    "build": "heteroplace.hetero_place",
    "frontend": "heteroplace.relay.frontend",
    "load": "heteroplace.loading",
    "routing": "heteroplace.relay.routing",
    "shard": "heteroplace.sharding.face",
    "tune": "heteroplace.tuner",
}
"""Public names that live in layers on top of TVM, and the module of each."""

__all__ = [
    "Cluster",
    "Device",
    "HeteroPlaceError",
    "Link",
    "Memory",
    "Plan",
    "Task",
    "TaskGraph",
    "TaskGraphBuilder",
    "Timeline",
    "load_cluster",
    "local_cluster",
    "save_cluster",
    *_NEEDS_TVM,
]


def __getattr__(name: str) -> Any:
    """Load a part when it is asked for; say how to get TVM if it needs one and there is none."""
    if name in _WITHOUT_TVM:
        globals()[name] = getattr(importlib.import_module(_WITHOUT_TVM[name]), name)
        return globals()[name]
    if name not in _NEEDS_TVM:
        raise AttributeError(f"module 'heteroplace' has no attribute {name!r}")
    require_tvm()
    module = importlib.import_module(_NEEDS_TVM[name])
    return module if name in ("frontend", "routing") else getattr(module, name)


_OPTIONS = "heteroplace.place_options"


def _config_types() -> Mapping[str, str]:
    types: Mapping[str, str] = importlib.import_module(_OPTIONS).pass_config_types()
    return types


keep_tvm_from_writing()
keep_docstrings()
# Make `relay.transform.HeteroPlace` and the others exist beside TVM's own passes.
add_to_relay_transform("HeteroPlace", lambda: __getattr__("HeteroPlace"), _config_types)
add_to_relay_transform("Shard", lambda: __getattr__("Shard"), dict)
add_to_relay_transform("DenseMasked", lambda: __getattr__("DenseMasked"), dict)
add_to_relay_transform("FindRouters", lambda: __getattr__("FindRouters"), dict)
for _name in _PROFILE_PASSES:
    add_to_relay_transform(_name, partial(__getattr__, _name), dict)
