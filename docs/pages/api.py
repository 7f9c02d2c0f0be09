"""The modules that are called or registered from outside -> a page for each of their folders."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import heteroplace
from docs.pages.rooms import room_page

PACKAGE = Path(heteroplace.__file__).parent
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
    "parts.serving": ("inference_session",),
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
    pages = {f"api/{folder}.md": _page(folder, modules) for folder, modules in folders.items()}
    pages["api/index.md"] = _index(sorted(folders))
    return pages


def _page(folder: str, modules: list[str]) -> str:
    text = f"# {folder}\n"
    room = room_page(folder)
    if room is not None:
        text += f"\nWhat the folder is for, and its decisions: [{room.title}](../{room.name}).\n"
    for module in modules:
        text += f"\n## {module.rpartition('.')[2]}\n\n"
        text += f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n"
    return text


def _index(folders: list[str]) -> str:
    text = (
        "# API\n\nWhat `import heteroplace` offers, then every module, folder by folder.\n\n"
        "| name | what it is |\n|---|---|\n"
    )
    for name in sorted(heteroplace.__all__):
        text += f"| {_linked(name)} | {_first_sentence(getattr(heteroplace, name))} |\n"
    text += "\n```{toctree}\n:maxdepth: 1\n\n" + "\n".join(folders) + "\n```\n"
    return text


def _linked(name: str) -> str:
    value = getattr(heteroplace, name)
    if inspect.ismodule(value):
        module = value.__name__
        page = module if module in api_modules() else module.rpartition(".")[0]
        return f"[`{name}`](<{page}.md>)"
    return f"{{py:obj}}`{name} <{value.__module__}.{value.__qualname__}>`"


def _first_sentence(value: object) -> str:
    told = inspect.getdoc(value) or ""
    return " ".join(told.partition("\n\n")[0].split()).replace("|", "\\|")


def public_names(module: str) -> list[str]:
    """Return the public functions and classes that a module defines, in order."""
    loaded = importlib.import_module(module)
    return [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
    ]
