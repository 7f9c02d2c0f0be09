"""The package -> a page of its public names, and a page for each folder of its other modules.

The search finds the public names. Pages of other modules are left out of it.
"""

from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path

import heteroplace
from docs.pages.rooms import NO_SEARCH, room_page

PACKAGE = Path(heteroplace.__file__).parent
INTERNALS = "modules"
"""Folder of the pages that the search leaves out."""
_SECTIONS = {
    "Place, compile and run": (
        "place", "place_workload", "compile", "load", "Executor", "Executable", "Solution",
        "WorkloadSolution", "InferenceSession", "tune"),
    "Models": ("frontend",),
    "Clusters": (
        "local_cluster", "load_cluster", "save_cluster", "Cluster", "Device", "Link", "Memory"),
    "Relay passes": ("HeteroPlace", "build", "read_solution"),
    "Several devices for one batch": ("Shard", "shard"),
    "Plans and task graphs": (
        "load_solution", "Plan", "Timeline", "Task", "TaskGraph", "TaskGraphBuilder"),
}  # fmt: skip
_ELSEWHERE = ("HeteroPlaceError", "routing")
_WHOLE = ("costs", "files", "machine", "measure", "model", "questions", "report", "run",
          "parts/parallel/sharding", "parts/parallel/transforms", "parts/routing/dynamic",
          "simulate")  # fmt: skip
"""Folders whose modules are all told, with those below them."""
_MODULES = {
    "": ("compiling", "errors", "frontends", "hetero_place", "loading", "option_keywords",
         "options", "place_options", "registry", "stats", "tvm_bridge"),
    "demo": ("networks",),
    "lower": ("executable", "kernel_provider"),
    "coarsen": ("breakpoints", "coarse", "fusion_rules", "topo"),
    "solve": ("feasibility", "judge", "objective", "plan_in", "plan_reasons", "portfolio",
              "problem", "refinement", "network_solution", "solvers"),
    "solve.list": ("scheduler_solver", "single"),
    "native": ("list",),
    "relay.annotate": ("annotation_reader", "sharded_attribute", "writer"),
    "relay.axes": ("rules",),
    "parts.kernels.tuned": ("tuner",),
    "parts.hosts": ("machines", "messages", "mpi", "ranked_executor"),
    "parts.onnx": ("importer", "imported_model"),
    "parts.exports": ("exporting",),
    "parts.serving": ("inference_session",),
    "parts.text": ("decoder_session", "generator", "sampling", "text_tokenizer"),
    "parts.torch": ("dynamo_backend",),
    "parts.routing.find": ("find_routers",),
    "parts.routing.relay": ("api", "cells", "decision_ops", "dense", "loops", "passes",
                            "protocols"),
    "parts.onnx.verify": ("executable_check",),
    "parts.parallel.shard": ("labels",),
}  # fmt: skip
"""Of other folders, what is called or registered from outside."""


def api_modules() -> dict[str, list[str]]:
    """Return the modules of each folder that has a page, both by their dotted names."""
    folders: dict[str, list[str]] = {}
    for folder, names in _MODULES.items():
        inside = ".".join(("heteroplace", *filter(None, [folder])))
        folders[inside] = [f"{inside}.{name}" for name in names]
    for room in _WHOLE:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            parts = ("heteroplace", *path.relative_to(PACKAGE).with_suffix("").parts)
            if parts[-1] not in ("__main__", "__init__"):
                folders.setdefault(".".join(parts[:-1]), []).append(".".join(parts))
    return dict(sorted(folders.items()))


def api_pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    folders = api_modules()
    pages = {f"{INTERNALS}/{folder}.md": _page(folder, names) for folder, names in folders.items()}
    pages[f"{INTERNALS}/index.md"] = (
        f"{NO_SEARCH}# Modules\n\nWhat is called or registered from outside, folder by folder. "
        "Programs use the [public names](../api.md), which stay; modules may move.\n\n"
        "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(sorted(folders)) + "\n```\n"
    )
    pages["api.md"] = _public_page()
    return pages


def _page(folder: str, modules: list[str]) -> str:
    text = f"{NO_SEARCH}# {folder}\n"
    room = room_page(folder)
    if room is not None:
        text += f"\nWhat the folder is for, and its decisions: [{room.title}](../{room.name}).\n"
    for module in modules:
        text += f"\n## {module.rpartition('.')[2]}\n\n"
        options = "   :members:\n   :ignore-module-all:\n"
        text += f"```{{eval-rst}}\n.. automodule:: {module}\n{options}```\n"
    return text


def _public_page() -> str:
    text = (
        "# Python API\n\nEverything that `import heteroplace` offers. Errors are on a "
        "[page of their own](errors.md).\n"
    )
    listed = [name for names in _SECTIONS.values() for name in names]
    sections = {**_SECTIONS, "More": sorted({*heteroplace.__all__} - {*listed, *_ELSEWHERE})}
    for title, names in sections.items():
        text += f"\n## {title}\n\n" if names else ""
        text += "".join(_directives(name) for name in names)
    text += "\n## Routed networks\n\n`from heteroplace import routing`.\n\n"
    return text + _directives("routing")


def _directives(name: str) -> str:
    """Return what shows the docstring of a public name, or of each name of a public module."""
    value = attrgetter(name)(heteroplace)
    if inspect.ismodule(value):
        return "".join(_directives(f"{name}.{inner}") for inner in value.__all__)
    is_class = inspect.isclass(value)
    directive = f".. auto{'class' if is_class else 'function'}:: heteroplace.{name}\n"
    return f"```{{eval-rst}}\n{directive}{'   :members:' if is_class else ''}\n```\n\n"
