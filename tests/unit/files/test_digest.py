"""Digests of files, by one core and by all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from heteroplace.files.digest import _BLOCK_BYTES, digest_by_blocks, program_digest


@pytest.mark.parametrize("num_bytes", [0, 1, _BLOCK_BYTES])
def test_the_digest_of_one_block_is_that_of_the_file(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(num_bytes))
    assert digest_by_blocks(path) == hashlib.sha256(bytes(num_bytes)).hexdigest()


def test_the_digest_of_blocks_tells_files_apart(tmp_path: Path) -> None:
    content = bytearray(2 * _BLOCK_BYTES + 1)
    digests = set()
    for position in (None, 0, _BLOCK_BYTES, len(content) - 1):
        if position is not None:
            content[position] ^= 1
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(content)
        (digest,) = {digest_by_blocks(tmp_path / name) for name in ("a", "b")}
        digests.add(digest)
    (tmp_path / "a").write_bytes(content[:-1])
    digests.add(digest_by_blocks(tmp_path / "a"))
    assert len(digests) == 5


def test_a_change_in_a_large_file_is_another_program(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_bytes(bytes(2 * _BLOCK_BYTES))
    before = program_digest(tmp_path)
    with (tmp_path / "library.so").open("r+b") as file:
        file.seek(_BLOCK_BYTES + 1)
        file.write(b"1")
    assert program_digest(tmp_path) != before
