"""A wheel of heteroplace -> the wheel heteroplace-runtime, which loads, runs and serves files.

`make runtime-wheel` runs it. The small wheel has the same modules under the same names, but only
those that need no compiler and no solver: numpy and msgspec are all that they require. Modules
that are loaded late, by a text "module:name", are in it if they need no more than that.
"""

from __future__ import annotations

import argparse
import ast
import base64
import csv
import email
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

DISTRIBUTION = "heteroplace_runtime"
ALLOWED = {
    *("msgspec", "numpy"),
    *("uvicorn", "httptools", "uvloop", "prometheus_client"),  # the extra `serve`
    *("tokenizers", "mpi4py"),
}
"""Packages that its modules may import."""
COMPILING = tuple(
    f"heteroplace.{name}." for name in ("solve", "coarsen", "costs", "relay", "pipeline")
)
"""Modules that only planning and compiling need."""
MAX_BYTES = 5 << 20
"""A larger wheel is refused: it is for small machines."""
_ROOTS = (
    *("heteroplace.loading", "heteroplace.run.executor"),
    *("heteroplace.cli.console_scripts", "heteroplace.cli.show"),
)
_PARTS = tuple(f"heteroplace/parts/{part}" for part in ("serving", "text", "hosts", "routing"))
"""Parts that take part in a run."""
_SEAMS = tuple(f"{part}/entry_points.txt" for part in _PARTS)
_MODULE = re.compile(r"heteroplace(\.\w+)+")
_METADATA = """\
Metadata-Version: 2.1
Name: heteroplace-runtime
Version: {version}
Summary: Loads, runs and serves what heteroplace has compiled; needs no compiler
"""
_EXTRAS = ("serve", "generate", "mpi")
_REQUIREMENT = re.compile(r"(?P<name>[\w-]+)[^;]*(?:;.*extra == ['\"](?P<extra>\w+)['\"])?")
_SCRIPTS = "[console_scripts]\nheteroplace = heteroplace.cli.console_scripts:heteroplace\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the small wheel beside the large one; 1 if it is larger than `MAX_BYTES`."""
    parser = argparse.ArgumentParser(prog="python -m tools.runtime_wheel", description=__doc__)
    parser.add_argument("wheels", nargs="+", type=Path, help="wheels of heteroplace")
    sizes = [_write_beside(wheel) for wheel in parser.parse_args(arguments).wheels]
    return int(max(sizes) > MAX_BYTES)


def _write_beside(wheel: Path) -> int:
    """Write the small wheel of a large one; return its bytes."""
    _, version, tags = wheel.stem.split("-", 2)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        files = {name: archive.read(name) for name in names}
    metadata = files[f"heteroplace-{version}.dist-info/METADATA"].decode()
    path = wheel.with_name(f"{DISTRIBUTION}-{version}-{tags}.whl")
    write_wheel(path, runtime_files(files), runtime_metadata(metadata, version), version, tags)
    num_bytes = path.stat().st_size
    print(f"{path}: {num_bytes / (1 << 20):.1f} MiB")
    return num_bytes


def runtime_metadata(metadata: str, version: str) -> str:
    """Return the metadata of the small wheel, which requires some of what the large one does."""
    lines = []
    for field, value in email.message_from_string(metadata).items():
        requirement = _REQUIREMENT.match(value)
        name, extra = ("", None) if requirement is None else requirement.group("name", "extra")
        is_required = extra in _EXTRAS or (extra is None and name in ALLOWED)
        if (
            field in ("License", "License-Expression", "Requires-Python")
            or (field == "Provides-Extra" and value in _EXTRAS)
            or (field == "Requires-Dist" and is_required)
        ):
            lines.append(f"{field}: {value}\n")
    return _METADATA.format(version=version) + "".join(lines)


def runtime_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what of a wheel's files is needed to load, run and serve compiled files.

    Parameters
    ----------
    files
        Content of each file by its path in the wheel.
    """
    modules = {_module(path): path for path in files if path.endswith(".py")}
    trees = {name: ast.parse(files[path]) for name, path in modules.items()}
    seams = [path for path in _SEAMS if path in files]
    runnable = _runnable(trees)
    roots = [*_ROOTS, *(name for path in seams for _, name in _entries(files[path]))]
    reached = _reached(roots, trees, runnable)
    result = {path: files[path] for path in sorted(modules[name] for name in reached)}
    folders = {str(PurePosixPath(path).parent) for path in result}
    for path, content in files.items():
        if path in seams:
            text = _entries_of(reached, content)
            result.update({path: text} if text else {})
        elif ".data/" in path or (_is_data(path) and str(PurePosixPath(path).parent) in folders):
            result[path] = content
    return result


def write_wheel(
    path: Path, files: Mapping[str, bytes], metadata: str, version: str, tags: str
) -> None:
    """Write a wheel with these files.

    Parameters
    ----------
    metadata
        The content of its file METADATA.
    tags
        As in its name, "cp312-abi3-linux_x86_64".
    """
    info = f"{DISTRIBUTION}-{version}.dist-info"
    python, abi, platforms = tags.split("-")
    tag_lines = "".join(f"Tag: {python}-{abi}-{each}\n" for each in platforms.split("."))
    wheel = f"Wheel-Version: 1.0\nGenerator: {DISTRIBUTION}\nRoot-Is-Purelib: false\n{tag_lines}"
    # Scripts, headers and libraries lie in a folder that is named as the wheel is.
    written = {
        re.sub(r"^heteroplace-[^/]*\.data/", f"{DISTRIBUTION}-{version}.data/", name): content
        for name, content in files.items()
    }
    written[f"{info}/METADATA"] = metadata.encode()
    written[f"{info}/WHEEL"] = wheel.encode()
    written[f"{info}/entry_points.txt"] = _SCRIPTS.encode()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in written.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(content)))
    rows.writerow((f"{info}/RECORD", "", ""))
    written[f"{info}/RECORD"] = record.getvalue().encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in written.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            archive.writestr(entry, content)


def _is_data(path: str) -> bool:
    return not path.endswith((".py", ".pyi", ".md", "/entry_points.txt"))


def _module(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _runnable(trees: Mapping[str, ast.Module]) -> set[str]:
    """The modules that import only what is allowed, themselves and through others."""
    needs = {name: set(_needs(name, tree, trees)) for name, tree in trees.items()}
    runnable = {name for name in trees if not name.startswith(COMPILING)}
    while True:
        lost = {
            name
            for name in runnable
            if any(
                other not in runnable for other in needs[name] if other.startswith("heteroplace")
            )
            or not {other for other in needs[name] if "." not in other} <= {*ALLOWED, "heteroplace"}
        }
        if not lost:
            return runnable
        runnable -= lost


def _needs(name: str, tree: ast.Module, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """The modules of heteroplace that importing a module imports, and packages of others."""
    if "." in name:
        yield name.rpartition(".")[0]
    for imported in _imports(tree.body):
        top = imported.partition(".")[0]
        if top != "heteroplace":
            yield from () if top in sys.stdlib_module_names else (top,)
        elif imported in trees:
            yield imported
        elif (parent := imported.rpartition(".")[0]) in trees:
            yield parent  # a name in it


def _imports(body: Iterable[ast.stmt]) -> Iterator[str]:
    """What statements import when a module is loaded, names behind `from` as "module.name"."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Try):
            yield from _imports(node.body)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            yield from _imports([*node.body, *node.orelse])


def _reached(roots: Iterable[str], trees: Mapping[str, ast.Module], runnable: set[str]) -> set[str]:
    """The runnable modules that others import, or load late by a text "module:name"."""
    reached: set[str] = set()
    waiting = [name for name in roots if name in runnable]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        texts = (node.value for node in ast.walk(trees[name]) if isinstance(node, ast.Constant))
        late = (str(text).partition(":")[0] for text in texts)
        named = [text for text in late if _MODULE.fullmatch(text)]
        waiting += [
            other for other in (*_needs(name, trees[name], trees), *named) if other in runnable
        ]
    return reached


def _entries(content: bytes) -> Iterator[tuple[str, str]]:
    """Each line of a file of entry points that registers something, with its module."""
    for line in content.decode().splitlines():
        _, separator, value = line.partition(" = ")
        if separator:
            yield line, value.partition(":")[0]


def _entries_of(modules: set[str], content: bytes) -> bytes:
    """A file of entry points without those of other modules; empty: there is no other."""
    left_out = {line for line, name in _entries(content) if name not in modules}
    lines = [line for line in content.decode().splitlines() if line not in left_out]
    return "\n".join([*lines, ""]).encode() if any(" = " in line for line in lines) else b""


if __name__ == "__main__":
    sys.exit(main())
