"""Compiled files taken apart and put together again, with digests that are right (sealed anew).

Written from the description of the format in `src/exec/file/parts.h`, not by the writer under test.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MAGIC = b"HETEROPLACE\0"
FORMAT = 5
ROW = struct.Struct("<QQQ32s")
TAIL = struct.Struct("<12sIQQ32s")
CHUNK_BYTES = 4 << 20
PARTS = ("code", "weights", "chunks", "needs", "program", "manifest", "source")


@dataclass(frozen=True)
class Parts:
    """Content of the parts of a file."""

    code: bytes
    weights: bytes
    needs: bytes
    program: bytes
    manifest: bytes
    source: bytes = b""

    def sealed(self) -> Parts:
        """Return the same with needs that name the code, program and weights beside them."""
        digests = {
            "code": hashlib.sha256(self.code).hexdigest(),
            "program": hashlib.sha256(self.program).hexdigest(),
            "weights": hashlib.sha256(chunk_digests(self.weights)).hexdigest(),
        }
        words = [line.split(" ", 1) for line in self.needs.decode().splitlines()]
        lines = [" ".join([word[0], digests.get(word[0], " ".join(word[1:]))]) for word in words]
        return replace(self, needs="".join(line.rstrip() + "\n" for line in lines).encode())

    def with_manifest(self, without: str = "", **changes: Any) -> Parts:
        """Return the same with other fields of the manifest, and without one of them."""
        value = {**json.loads(self.manifest), **changes}
        value.pop(without, None)
        return replace(self, manifest=json.dumps(value).encode())

    def to_bytes(self, version: int = FORMAT) -> bytes:
        """Return the file, of which table and tail are right; it is not signed."""
        return sealed_file(self.contents(), version)

    def contents(self) -> list[bytes]:
        """Return the content of the seven parts in order."""
        chunks = chunk_digests(self.weights)
        texts = [self.needs, self.program, self.manifest, self.source]
        return [self.code, self.weights, chunks, *texts]


def chunk_digests(weights: bytes) -> bytes:
    """Return the digests of the chunks of the weights."""
    starts = range(0, len(weights), CHUNK_BYTES)
    return b"".join(hashlib.sha256(weights[at : at + CHUNK_BYTES]).digest() for at in starts)


def sealed_file(contents: list[bytes], version: int = FORMAT) -> bytes:
    """Return a file of these seven parts."""
    body, rows = bytearray(), []
    for kind, content in enumerate(contents, 1):
        if kind == 2:
            body += bytes(-len(body) % 4096)
        sealed = contents[2] if kind == 2 else content
        rows.append(ROW.pack(kind, len(body), len(content), hashlib.sha256(sealed).digest()))
        body += content
    return bytes(body) + table_and_tail(rows, len(body), version)


def table_and_tail(rows: list[bytes], body_bytes: int, version: int = FORMAT) -> bytes:
    """Return what stands behind the parts."""
    table = b"".join(rows)
    size = body_bytes + len(table) + TAIL.size
    return table + TAIL.pack(MAGIC, version, len(table), size, hashlib.sha256(table).digest())


def read_rows(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return the rows of the table of a file: kind, offset, bytes, digest."""
    begin = len(data) - TAIL.size - TAIL.unpack(data[-TAIL.size :])[2]
    return list(ROW.iter_unpack(data[begin : begin + len(PARTS) * ROW.size]))


def read_parts(path: Path) -> Parts:
    """Take a file apart."""
    data = path.read_bytes()
    found = {
        name: data[offset : offset + size]
        for name, (_, offset, size, _) in zip(PARTS, read_rows(data), strict=True)
    }
    del found["chunks"]
    return Parts(**found)


NEEDS = b"heteroplace-needs 1\nmachine x86_64\ncode -\nprogram -\nweights -\nend\n"
"""Needs of nothing but the machine; `Parts.sealed` writes the digests."""

PROGRAM = 'heteroplace-program 1\nspace 0 ram 1 0 0\nqueue 0 "cpu.0" cpu 1 0 0 0\nend\n'
"""A program that does nothing."""


def empty_library() -> bytes:
    """Return the smallest ELF library that can be loaded: two segments, no symbol."""
    strings = bytes(8)
    symbols = bytes(24)
    hashes = struct.pack("<4IQII", 1, 1, 1, 0, 0, 0, 0)
    headers = 64 + 4 * 56
    at_symbols = headers + len(strings)
    at_hashes = at_symbols + len(symbols)
    at_dynamic = at_hashes + len(hashes)
    entries = [(5, headers), (10, len(strings)), (6, at_symbols), (11, 24), (0x6FFFFEF5, at_hashes)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in [*entries, (0, 0)])
    ident = b"\x7fELF\2\1\1" + bytes(9)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
    segments = [
        (1, 4, 0, 0, 0, at_dynamic, at_dynamic, 4096),
        *(
            (kind, 6, at_dynamic, *[at_dynamic + 4096] * 2, *[len(dynamic)] * 2, align)
            for kind, align in ((1, 4096), (2, 8))
        ),
        (0x6474E551, 6, 0, 0, 0, 0, 0, 16),
    ]
    table = b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)
    return head + table + strings + symbols + hashes + dynamic
