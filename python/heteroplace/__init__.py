"""heteroplace: place one neural network over all the processors of a machine.

Importing it makes `relay.transform.HeteroPlace` exist in a TVM with Relay, which it does not load.
Without one, the planning layers (clusters, task graphs, solvers, reports) work all the same.

Every command imports this module before it can answer Ctrl-C. So it loads no other module, not even
`typing`; public names are loaded at their first use, and the hooks of TVM when TVM is imported.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it
if TYPE_CHECKING:
    from typing import Any

    from heteroplace.errors import HeteroPlaceError
    from heteroplace.files.cluster_file import load_cluster, save_cluster
    from heteroplace.machine.local import local_cluster
    from heteroplace.model.cluster import Cluster, Device, Link, Memory
    from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
    from heteroplace.model.plan import Plan
    from heteroplace.model.timeline import Timeline

__version__ = "0.1.0"

_REGISTRY, _TVM_BRIDGE = "heteroplace.registry", "heteroplace.tvm_bridge"
_TVM_HOOKS = "heteroplace.tvm_hooks"
_WITHOUT_TVM = {
    **dict.fromkeys(("Cluster", "Device", "Link", "Memory"), "heteroplace.model.cluster"),
    **dict.fromkeys(("Task", "TaskGraph", "TaskGraphBuilder"), "heteroplace.model.graph"),
    "Plan": "heteroplace.model.plan",
    "Timeline": "heteroplace.model.timeline",
    **dict.fromkeys(("load_cluster", "save_cluster"), "heteroplace.files.cluster_file"),
    "local_cluster": "heteroplace.machine.local",
    "HeteroPlaceError": "heteroplace.errors",
}
"""Public names of the planning layers, and the module of each."""
_NEEDS_TVM = {
    "Executable": "heteroplace.lower.executable",
    "Executor": "heteroplace.run.executor",
    "HeteroPlace": "heteroplace.hetero_place",
    "build": "heteroplace.hetero_place",
    "load": "heteroplace.loading",
}
"""Public names that live in layers on top of TVM, and the module of each."""
_PASSES_OF_PARTS = (
    "ChooseCapacities",
    "DenseMasked",
    "FindRouters",
    "PlaceBranches",
    "PreloadWeights",
    "Shard",
    "Specialise",
    "SpeculateRoutes",
)
_OF_PARTS = (*_PASSES_OF_PARTS, "frontend", "routing", "shard", "tune")
"""Public names that parts define; the seam `public_names` of the registry has their entries."""

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
    *_OF_PARTS,
]


def __getattr__(name: str) -> Any:
    """Load a part when it is asked for; say how to get TVM if it needs one and there is none."""
    if name in _WITHOUT_TVM:
        globals()[name] = getattr(import_module(_WITHOUT_TVM[name]), name)
        return globals()[name]
    if name not in (*_NEEDS_TVM, *_OF_PARTS):
        raise AttributeError(f"module 'heteroplace' has no attribute {name!r}")
    import_module(_TVM_BRIDGE).require_tvm()
    if name in _OF_PARTS:
        return import_module(_REGISTRY).load_plugin("public_names", name)
    return getattr(import_module(_NEEDS_TVM[name]), name)


class _TVMHooks:
    """A finder that finds nothing: it adds the hooks of `tvm_hooks.py` when TVM is imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "tvm":
            sys.meta_path.remove(_TVMHooks)
            _add_tvm_hooks()


def _add_tvm_hooks() -> None:
    names = ("HeteroPlace", *_PASSES_OF_PARTS)
    import_module(_TVM_HOOKS).add_tvm_hooks(names, __getattr__)


if "tvm" in sys.modules:
    _add_tvm_hooks()
else:
    sys.meta_path.insert(0, _TVMHooks)
