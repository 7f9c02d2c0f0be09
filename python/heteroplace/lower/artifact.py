"""Write the compiled file: kernels, weights, needs, program, manifest and source, in this order.

The layout is that of `src/exec/file/parts.h`. The library of kernels comes first, so that the file
is a shared library to whoever looks at it; the weights come behind it and not inside, so that they
may be of any size, are written straight from their arrays, and can be mapped where they lie.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from heteroplace.argument_checks import check_path
from heteroplace.errors import ArtifactError
from heteroplace.files.manifest import FORMAT_VERSION, Manifest
from heteroplace.files.output import final_path, is_replaceable, put_in_place
from heteroplace.lower.library import temporary_folder
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.needs import needs_text
from heteroplace.lower.program import in_pages
from heteroplace.native.compiled_file import SIGNATURE_BYTES, sign_tail
from heteroplace.relay.targets import USES_AMX

CHUNK_BYTES = 4 << 20
"""Bytes of weights under one digest."""

_MAGIC = b"HETEROPLACE\0"
_ROW = struct.Struct("<QQQ32s")
_TAIL = struct.Struct("<12sIQQ32s")


def weight_chunks(lowered: Lowered) -> Iterator[np.ndarray]:
    """Yield the weights chunk by chunk: arrays of `CHUNK_BYTES` bytes, the last may be shorter.

    An array may be filled anew for the next chunk; a weight that fills one is not copied.
    """
    weights = iter(sorted(lowered.weights.items(), key=lambda item: item[0]))
    buffer = np.zeros(CHUNK_BYTES, dtype=np.uint8)
    content, offset = np.zeros(0, dtype=np.uint8), 0
    for begin in range(0, lowered.blob_bytes, CHUNK_BYTES):
        end = min(begin + CHUNK_BYTES, lowered.blob_bytes)
        if offset <= begin and end <= offset + len(content):
            yield content[begin - offset : end - offset]
            continue
        buffer[:] = 0
        at = begin
        while at < end:
            if offset + len(content) <= at:
                weight = next(weights, None)
                if weight is None:
                    break
                offset, content = weight[0], weight[1].content
            at = max(at, offset)
            count = min(offset + len(content), end) - at
            if count > 0:
                buffer[at - begin : at - begin + count] = content[at - offset : at - offset + count]
                at += count
        yield buffer[: end - begin]


def write_artifact(
    path: str | os.PathLike[str],
    image: bytes,
    lowered: Lowered,
    manifest: Manifest,
    source: bytes = b"",
    sign_with: str | os.PathLike[str] | None = None,
) -> None:
    """Write one file with everything; it replaces `path` only when it is complete.

    A link stays one, and a device or a pipe is written to (`heteroplace.files.output`).

    Parameters
    ----------
    image
        The library of kernels.
    source
        The Relay module (`heteroplace.relay.source`); empty: the file has none.
    sign_with
        A file with a private key; None: the file is not signed.

    Raises
    ------
    ArtifactError
        The folder cannot be written, or there is no such key.
    ExecutionError
        There is no library for signatures.
    """
    check_path("path", path, "the name of the file to write, such as 'model.so'", ArtifactError)
    if sign_with is not None:
        check_path("sign_with", sign_with, "the path of a private key (PEM)", ArtifactError)
    try:
        target = Path(path).absolute()
        if not target.parent.is_dir():
            raise ArtifactError(f"{target}: folder {target.parent} does not exist; make it first")
        target = final_path(path)
        # Beside what it replaces, so that it can be moved; nothing can be made beside a device.
        beside = target.parent if is_replaceable(target) else None
        with temporary_folder(beside) as folder:
            part = folder / "model.so"
            with part.open("wb") as file:
                end = _write_parts(file, image, lowered, manifest, source)
                _write_end(file, end, sign_with)
            put_in_place(part, target)
    except (OSError, ValueError) as err:
        shown = ascii(os.fspath(path))
        raise ArtifactError(f"{shown}: cannot write the compiled file: {err}") from err


def _write_parts(
    file: BinaryIO, image: bytes, lowered: Lowered, manifest: Manifest, source: bytes
) -> bytes:
    """Write all parts and return the table that stands behind them."""
    rows: list[bytes] = []

    def add(size: int, digest: bytes) -> None:
        rows.append(_ROW.pack(len(rows) + 1, file.tell() - size, size, digest))

    def write(content: bytes) -> str:
        file.write(content)
        digest = hashlib.sha256(content)
        add(len(content), digest.digest())
        return digest.hexdigest()

    digests = {"code": write(image)}
    file.seek(in_pages(len(image)))
    list_of_digests = _write_weights(file, lowered)
    digest = hashlib.sha256(list_of_digests)
    digests["weights"] = digest.hexdigest()
    add(lowered.blob_bytes, digest.digest())
    write(list_of_digests)
    program = manifest.program_text.encode()
    digests["program"] = hashlib.sha256(program).hexdigest()
    others = [entry.manifest.solution for entry in manifest.entries]
    uses_amx = USES_AMX.encode() in image
    write(needs_text(manifest.solution, digests, others, uses_amx=uses_amx).encode())
    write(program)
    write(manifest.to_json())
    write(source)
    return b"".join(rows)


def _write_end(file: BinaryIO, table: bytes, sign_with: str | os.PathLike[str] | None) -> None:
    end_bytes = len(table) + (0 if sign_with is None else SIGNATURE_BYTES)
    size = file.tell() + end_bytes + _TAIL.size
    sealed = hashlib.sha256(table).digest()
    tail = _TAIL.pack(_MAGIC, FORMAT_VERSION, end_bytes, size, sealed)
    signature = b"" if sign_with is None else sign_tail(sign_with, tail)
    file.write(table + signature + tail)


def _write_weights(file: BinaryIO, lowered: Lowered) -> bytes:
    """Write the weights and return the digests of their chunks, one behind the other.

    Chunks of zeros become holes, where the file system has them.
    """
    zeros: dict[int, bytes] = {}
    digests = []
    for chunk in weight_chunks(lowered):
        if chunk.any():
            digests.append(hashlib.sha256(chunk.data).digest())
            file.write(chunk.data)
            continue
        if len(chunk) not in zeros:
            zeros[len(chunk)] = hashlib.sha256(chunk.data).digest()
        digests.append(zeros[len(chunk)])
        file.seek(len(chunk), os.SEEK_CUR)
    return b"".join(digests)
