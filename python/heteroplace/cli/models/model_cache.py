"""Compiled models in the user's cache, by a digest of everything that decides their results.

The key of an entry covers, by content: the model file and its external weights, the cluster and
its processors, the options and the files that they name, and the programs that compile. No path of
a model is trusted, and no date that a program can choose. Digests of programs and of large files
are kept by their state (`program_state`). Which external files a model has depends on its bytes
alone; a list of them lies next to the entries, so that a look-up needs no reader of ONNX models. No
TVM.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import heteroplace
from heteroplace.costs.store import user_cache_folder
from heteroplace.errors import ArtifactError, ClusterError, CostStoreError, FrontendError
from heteroplace.files.digest import digest_by_blocks, program_digest, program_state
from heteroplace.files.output import json_text, write_text
from heteroplace.files.working_folders import make_locked_folder, remove_unlocked_folders
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.model.cluster import Cluster, Device
from heteroplace.registry import added_modules

CACHE_VARIABLE = "HETEROPLACE_MODELS"
"""Environment variable with the folder of compiled models, if it is not in the user's cache."""
MODEL = ""
"""Location of the model file itself among `Digests`."""

_MODEL, _ABOUT = "model.so", "about.json"
_NEW = ".new-"
_KEPT = "digests.json"
_SETTLED_NS = 2 * 10**9
"""The digest of what changed less long ago is not kept: it may change once more at the same time of
the system's clock."""
_LARGE_BYTES = 2**20
"""The digests of smaller files take about a millisecond, and are not kept."""
_PACKAGES = ("numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "ortools", "scipy", "protobuf")
_VARIABLES = {"TOPHUB_LOCATION": "NONE"}
"""Environment variables that change what TVM compiles, with their values where they are not set."""

Digests = Mapping[str, str]
"""SHA-256 of the model file and of its external files, by location relative to its folder."""


@dataclass(frozen=True)
class About:
    """Notes on a compiled model that its file does not hold."""

    legal: Mapping[str, tuple[float, float]]
    """By input: the least and the largest number that the ops which read it admit; inputs that are
    not named take any."""
    seconds: float
    """Wall time of the compilation."""
    notes: tuple[str, ...] = ()
    """Whole sentences: what was chosen where the model and the options say nothing."""


def cache_folder() -> Path:
    """Return $HETEROPLACE_MODELS, or "models" in heteroplace's folder of the user's cache.

    Raises
    ------
    CostStoreError
        The user has no home.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return user_cache_folder() / "models"


def settings_digest(cluster: Cluster, options: Mapping[str, Any]) -> str:
    """Return the digest of what a model is compiled for and by, in hex: all but its own files."""
    parts = {
        "programs": programs_digest(),
        "cluster": cluster.digest(),
        "processors": {device.name: _processor(device) for device in cluster.devices},
        "options": json.dumps(dict(options), sort_keys=True, default=str),
    }
    return _digest(parts)


def programs_digest() -> str:
    """Return the digest of all programs that compile models, in hex: heteroplace, TVM, plugins of
    other packages, and the libraries that they use."""
    parts = {
        "programs": _code_digests(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "variables": {name: os.environ.get(name, value) for name, value in _VARIABLES.items()},
    }
    return _digest(parts)


def _programs() -> list[tuple[str, str]]:
    """The folders and files with code; none of it is imported for it."""
    programs = [(f"heteroplace {at}", folder) for at, folder in enumerate(heteroplace.__path__)]
    for name in ("tvm", *added_modules()):
        spec = find_spec(name)
        if spec is not None:
            paths = spec.submodule_search_locations or filter(None, [spec.origin])
            programs += [(f"{name} {at}", path) for at, path in enumerate(paths)]
    return programs


def _code_digests() -> dict[str, str]:
    """The digest of each program by its name."""
    programs = _programs()
    digests = _kept_digests([path for _, path in programs])
    return {name: digest for (name, _), digest in zip(programs, digests, strict=True)}


def _kept_digests(paths: Sequence[str]) -> list[str]:
    """The digests of programs and files. Where one has not changed since an earlier command, its
    digest was kept next to the models: to compute it takes 0.2 s for TVM, or for 350 MB."""
    entries, digests, is_new = _read_digests(), list[str](), False
    for path in paths:
        state, changed_ns = program_state(path)  # before the bytes are read
        is_kept = path in entries and entries[path][0] == state
        digests.append(entries[path][1] if is_kept else _new_digest(path))
        if not is_kept and time.time_ns() - changed_ns > _SETTLED_NS:
            entries[path] = state, digests[-1]
            is_new = True
    if is_new:
        with contextlib.suppress(OSError, CostStoreError):  # the next command computes them again
            cache_folder().mkdir(parents=True, exist_ok=True)
            there = {path: entry for path, entry in entries.items() if Path(path).exists()}
            write_text(json_text(there), cache_folder() / _KEPT)
    return digests


def _read_digests() -> dict[str, tuple[str, str]]:
    """State and digest of programs and files by their paths; empty: none were kept."""
    try:
        read = json.loads((cache_folder() / _KEPT).read_text())
        return {path: (str(state), str(digest)) for path, (state, digest) in read.items()}
    except (OSError, CostStoreError, ValueError, TypeError, AttributeError):
        return {}


def _new_digest(path: str) -> str:
    return program_digest(path) if Path(path).is_dir() else digest_by_blocks(path)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor(device: Device) -> str:
    """Fingerprint of a device of this machine, on which its costs are measured."""
    try:
        return device_fingerprint(device)
    except ClusterError:  # it is elsewhere: nothing is measured on it here
        return "not here"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest_of(path: Path) -> str:
    """Return the digest of a file, in hex.

    Raises
    ------
    FrontendError
        The file cannot be read.
    """
    try:
        return _file_digest(path)
    except OSError as err:
        raise FrontendError(f"{path}: cannot be read: {err.strerror}") from err


def _file_digest(path: Path) -> str:
    """The digest of a file, which is kept if it is large."""
    with path.open("rb") as file:  # opened, it has its true state on network file systems too
        is_large = os.fstat(file.fileno()).st_size >= _LARGE_BYTES
        return _kept_digests([str(path.absolute())])[0] if is_large else _new_digest(str(path))


def look_up(model: Path, settings: str) -> tuple[Path, About] | None:
    """Return the compiled form of a model in the cache; None: it has to be compiled.

    Parameters
    ----------
    settings
        See `settings_digest`.

    Raises
    ------
    FrontendError
        The model file cannot be read.
    """
    digest = digest_of(model)
    try:
        cache = cache_folder()
        locations: list[str] = json.loads(_locations_file(cache, settings, digest).read_text())
        digests = {place: _file_digest(model.parent / place) for place in locations}
        folder = cache / _entry_key(settings, {**digests, MODEL: digest})
        value = json.loads((folder / _ABOUT).read_text())
        legal = {name: _range(*ends) for name, ends in value["legal"].items()}
        about = About(legal, float(value["seconds"]), tuple(map(str, value["notes"])))
    except (OSError, CostStoreError, ValueError, KeyError, TypeError, AttributeError):
        return None  # it is missing, of another version, or damaged
    return (folder / _MODEL, about) if (folder / _MODEL).is_file() else None


def _locations_file(cache: Path, settings: str, model_digest: str) -> Path:
    return cache / f"{_digest([settings, model_digest])}.json"


def _entry_key(settings: str, digests: Digests) -> str:
    return _digest([settings, dict(digests)])


def _ends(low: float, high: float) -> tuple[float | None, float | None]:
    """A range in JSON, which has no infinity: None for an open end."""
    return None if math.isinf(low) else low, None if math.isinf(high) else high


def _range(low: float | None, high: float | None) -> tuple[float, float]:
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


class NewEntry:
    """A compiled model that is being written; `with` makes its folder and removes the rest.

    The cache only saves time: if it cannot be written, the model lies in a temporary folder until
    the block ends, and `problem` says why.
    """

    def __init__(self) -> None:
        self.problem = ""
        """Why the model is not in the cache; "": nothing has failed."""
        self._folder: Path | None = None
        self._lock: int | None = None

    def __enter__(self) -> NewEntry:
        try:
            cache = cache_folder()
            cache.mkdir(parents=True, exist_ok=True)
            remove_unlocked_folders(cache, _NEW)
            self._folder, self._lock = make_locked_folder(cache, _NEW)
        except (OSError, CostStoreError) as err:
            self._use_temporary(err)
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._folder = self._lock = None

    def _use_temporary(self, err: Exception) -> None:
        self._remove()
        self.problem = str(err)
        self._folder = Path(tempfile.mkdtemp(prefix="heteroplace-"))

    @property
    def path(self) -> Path:
        """The file of the compiled model, until `keep` moves it."""
        assert self._folder is not None  # within the block
        return self._folder / _MODEL

    def write(self, export: Callable[[Path], None]) -> None:
        """Let `export` write the compiled model.

        Raises
        ------
        ArtifactError
            Neither the cache nor a temporary folder has room for it.
        """
        try:
            export(self.path)
        except ArtifactError as err:
            if self.problem:
                raise
            self._use_temporary(err)
            export(self.path)

    def keep(self, settings: str, digests: Digests, about: About) -> Path:
        """Move the model to its place in the cache, and return its path.

        The last of several processes wins: all of them wrote the same model.

        Parameters
        ----------
        settings, digests
            What it was compiled for, and the bytes that it was made of.
        """
        if self.problem:
            return self.path
        value = asdict(about) | {"legal": {name: _ends(*of) for name, of in about.legal.items()}}
        folder = self.path.parent
        final = folder.with_name(_entry_key(settings, digests))
        locations = _locations_file(folder.parent, settings, digests[MODEL])
        try:
            write_text(json_text(value), folder / _ABOUT)
            write_text(json_text(sorted(set(digests) - {MODEL})), locations)
            shutil.rmtree(final, ignore_errors=True)
            folder.rename(final)
        except OSError as err:
            if not (final / _MODEL).is_file():  # else another process was quicker
                self.problem = str(err)
                return self.path
        return final / _MODEL
