"""Compiled models in the user's cache, found again by a digest of all that they depend on. No TVM.

A model is kept in a folder called by the digest of the model file, the cluster, the options and
heteroplace's own files, so that after an update it is compiled again. Beside `model.so` lies
`about.json`: the other files that were read (weights of their own) and TVM's library, which are
compared when it is looked up, and what inputs are legal.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import heteroplace
from heteroplace.costs.store import user_cache_folder
from heteroplace.errors import FrontendError, HeteroPlaceError
from heteroplace.model.cluster import Cluster

CACHE_VARIABLE = "HETEROPLACE_MODELS"
"""Of the environment: the folder of compiled models, if it is not the user's."""
_BLOCK_BYTES = 2**22
_MODEL, _ABOUT = "model.so", "about.json"

Stamp = tuple[int, int]
"""Bytes and time of the last change, in ns, of a file."""


@dataclass(frozen=True)
class About:
    """What is known of a compiled model beside what its file says."""

    legal: Mapping[str, tuple[float, float]]
    """By input: the least and the largest number that the ops which read it admit; inputs that are
    not named take any."""
    others: Mapping[str, Stamp]
    """Files that were read beside the model, and TVM's library."""
    seconds: float
    """Wall time that it took to make."""


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


def model_key(path: Path, cluster: Cluster, options: Mapping[str, Any]) -> str:
    """Return the digest of a model file and of what it is compiled for, in hex.

    Raises
    ------
    FrontendError
        The file cannot be read.
    """
    told = {"heteroplace": _own_digest(), "cluster": cluster.digest()}
    told["options"] = json.dumps(dict(options), sort_keys=True, default=str)
    told["model"] = file_digest(path)
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _own_digest() -> str:
    """Digest of the version and of names, sizes and times of all program files, in hex.

    A version alone does not tell: between two of them any of these may change what is compiled.
    """
    digest = hashlib.sha256(heteroplace.__version__.encode())
    for folder in map(Path, heteroplace.__path__):
        for pattern in ("*.py", "*.so"):
            for path in sorted(folder.rglob(pattern)):
                digest.update(f"{path.relative_to(folder)} {stamp(path)}\n".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return the digest of what a file holds, in hex.

    Raises
    ------
    FrontendError
        The file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as err:
        raise FrontendError(f"{path}: cannot be read: {err.strerror}") from err
    return digest.hexdigest()


def stamp(path: str | os.PathLike[str]) -> Stamp:
    """Return what tells whether a file has changed."""
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


def look_up(key: str) -> tuple[Path, About] | None:
    """Return a compiled model that is kept, and what is known of it; None: it has to be made."""
    folder = cache_folder() / key
    try:
        value = json.loads((folder / _ABOUT).read_text())
        legal = {name: _range(*ends) for name, ends in value["legal"].items()}
        others = {name: (int(a), int(b)) for name, (a, b) in value["others"].items()}
        about = About(legal, others, float(value["seconds"]))
        is_current = all(stamp(path) == known for path, known in others.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not there, of another version, or damaged: it is made again
    if not is_current or not (folder / _MODEL).is_file():
        return None
    return folder / _MODEL, about


def _ends(low: float, high: float) -> tuple[float | None, float | None]:
    """A range as JSON has it, which has no infinity: None where it has no end."""
    return None if math.isinf(low) else low, None if math.isinf(high) else high


def _range(low: float | None, high: float | None) -> tuple[float, float]:
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


class NewEntry:
    """A compiled model that is being made; `with` makes its folder, `keep` puts it in its place."""

    def __init__(self, key: str) -> None:
        self._final = cache_folder() / key

    def __enter__(self) -> NewEntry:
        try:
            self._final.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=self._final.parent, prefix=".new-"))
        except OSError as err:
            raise HeteroPlaceError(
                f"{self._final.parent}: compiled models cannot be kept there ({err.strerror}); "
                f"name another folder in {CACHE_VARIABLE}, or compile to a file: heteroplace "
                f"compile MODEL.onnx -o model.so"
            ) from err
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def path(self) -> Path:
        """Where to write the compiled model."""
        return self._folder / _MODEL

    def keep(self, about: About) -> Path:
        """Put it in its place, for others to find; return the path that it has then.

        Whoever is later replaces what an earlier one has made: both are of the same digest.
        """
        value = asdict(about) | {"legal": {name: _ends(*of) for name, of in about.legal.items()}}
        (self._folder / _ABOUT).write_text(json.dumps(value, allow_nan=False))
        if self._final.exists():
            shutil.rmtree(self._final, ignore_errors=True)
        try:
            self._folder.rename(self._final)
        except OSError:  # another process was quicker
            if look_up(self._final.name) is None:
                raise
        return self._final / _MODEL
