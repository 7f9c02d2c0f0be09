"""Link the compiled file: one shared library with kernels, weights, program and solution.

Kernels of all targets and the weights, in a section of their own and page aligned, make the ELF
part; the manifest and the footer behind it are those of `heteroplace.files.manifest`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import tvm

from heteroplace.codegen.library import KernelLibrary, link
from heteroplace.codegen.lower import Lowered
from heteroplace.codegen.program import ALIGNMENT_BYTES
from heteroplace.errors import ArtifactError
from heteroplace.files.manifest import Manifest, append_manifest, read_manifest
from heteroplace.files.output import final_path, is_replaceable, put_in_place

_PAGE_BYTES = 4096

_SECTIONS = """
.section .heteroplace.{name},"a",@progbits
.balign {page}
.global heteroplace_{name}
.type heteroplace_{name}, @object
heteroplace_{name}:
.incbin "{path}"
.size heteroplace_{name}, {size}
.balign 8
.global heteroplace_{name}_size
.type heteroplace_{name}_size, @object
heteroplace_{name}_size:
.quad {size}
.size heteroplace_{name}_size, 8
.section .note.GNU-stack,"",@progbits
"""
"""Bytes as a page-aligned symbol with their count beside it: "blob" holds the weights, "program"
the program's text, so that a program without Python finds all it needs in the library."""


def weights_blob(lowered: Lowered) -> np.ndarray:
    """Return the weights as one array of bytes that starts at a multiple of a page."""
    size = max(lowered.blob_bytes, ALIGNMENT_BYTES)
    raw = np.zeros(size + _PAGE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _PAGE_BYTES
    blob = raw[start : start + size]
    for offset, value in lowered.weights.items():
        assert value.constant is not None
        content = value.constant.reshape(-1).view(np.uint8)
        blob[offset : offset + len(content)] = content
    return blob


def write_artifact(
    path: str | os.PathLike[str], library: KernelLibrary, blob: np.ndarray, manifest: Manifest
) -> None:
    """Write one file with everything; it replaces `path` only when it is complete.

    A link stays one, and a device or a pipe is written to (`heteroplace.files.output`).

    Raises
    ------
    ArtifactError
        There is no compiler to link with, or the folder cannot be written.
    """
    target = Path(path).absolute()
    if not target.parent.is_dir():
        raise ArtifactError(f"{target}: folder {target.parent} does not exist; make it first")
    try:
        target = final_path(path)
        # Beside what it replaces, so that it can be moved; nothing can be made beside a device.
        beside = target.parent if is_replaceable(target) else None
        with tempfile.TemporaryDirectory(dir=beside, prefix=".heteroplace-") as name:
            folder = Path(name)
            (folder / "blob.bin").write_bytes(blob.data)
            (folder / "program.bin").write_bytes(manifest.program_text.encode())
            source = folder / "sections.S"
            source.write_text(
                "".join(
                    _SECTIONS.format(
                        name=section,
                        page=_PAGE_BYTES,
                        # By its bare name: the assembler's strings know no quotes in a path.
                        path=f"{section}.bin",
                        size=(folder / f"{section}.bin").stat().st_size,
                    )
                    for section in ("blob", "program")
                )
            )
            part = folder / "model.so"
            link([*library.objects, source], part, folder)
            append_manifest(part, manifest.to_json())
            put_in_place(part, target)
    except OSError as err:
        raise ArtifactError(f"{target}: cannot write the compiled file: {err}") from err


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read and check what a compiled file says about itself, without mapping its code.

    Raises
    ------
    ArtifactError
        As `read_manifest`, or the file was made by another TVM version.
    """
    manifest = read_manifest(path)
    if manifest.tvm_version != tvm.__version__:
        raise ArtifactError(
            f"{os.fspath(path)}: compiled by TVM {manifest.tvm_version}, this is TVM "
            f"{tvm.__version__}; compile the model again"
        )
    return manifest
