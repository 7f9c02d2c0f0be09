"""Ed25519 keys as files, and compiled files with a signature put in by hand."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.compiled_files import MAGIC, TAIL, Parts

_PRIVATE = "302e020100300506032b657004220420"
_PUBLIC = "302a300506032b6570032100"
_X25519 = "302a300506032b656e032100"
# RFC 8032, section 7.1, tests 1 and 2: nobody's.
KEYS = {
    "first": (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    ),
    "second": (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    ),
}
SIGNATURE_BYTES = 96


def pem(kind: str, data: str) -> str:
    """Return a PEM file of bytes that are given in hex."""
    text = base64.b64encode(bytes.fromhex(data)).decode()
    return f"-----BEGIN {kind} KEY-----\n{text}\n-----END {kind} KEY-----\n"


def write_keys(folder: Path) -> Path:
    """Write NAME.pem and NAME.pub.pem for each key, and one of another kind; return `folder`."""
    for name, (private, public) in KEYS.items():
        (folder / f"{name}.pem").write_text(pem("PRIVATE", _PRIVATE + private))
        (folder / f"{name}.pub.pem").write_text(pem("PUBLIC", _PUBLIC + public))
    (folder / "x25519.pub.pem").write_text(pem("PUBLIC", _X25519 + KEYS["first"][1]))
    return folder


def signature_of(data: bytes) -> bytes:
    """Return public key and signature of a signed file."""
    return data[-TAIL.size - SIGNATURE_BYTES : -TAIL.size]


def with_signature(parts: Parts, signature: bytes) -> bytes:
    """Return the file of parts, sealed, with a signature that was made for something else."""
    data = parts.to_bytes()
    _, version, end_bytes, size, digest = TAIL.unpack(data[-TAIL.size :])
    more = len(signature)
    tail = TAIL.pack(MAGIC, version, end_bytes + more, size + more, digest)
    return data[: -TAIL.size] + signature + tail
