"""Kernels and their program -> the path of TVM's library, where they need it; TVM is loaded then.

Kernels for CPUs call nothing of TVM, but for those that sort. GPUs need its CUDA runtime.
"""

from __future__ import annotations

from collections.abc import Callable

from heteroplace.entries import load_entry
from heteroplace.errors import ArtifactError, MissingTVMError
from heteroplace.files.manifest import Manifest
from heteroplace.native.compiled_file import needs_tvm

_LIBRARY_PATH = "heteroplace.tvm_bridge:library_path"
_REQUIRE_TVM = "heteroplace.tvm_bridge:require_tvm"
"""Loaded for programs that need TVM."""


def library_if_needed(code_path: str, program_text: str) -> str:
    """Return the path of the libtvm.so that runs a program with these kernels; "": it needs none.

    Parameters
    ----------
    code_path
        The library of kernels; "": there is none.
    program_text
        The program, or those of all hosts.

    Raises
    ------
    MissingTVMError
        It needs TVM, and there is no TVM with Relay.
    """
    if not needs_tvm(code_path, program_text):
        return ""
    library_path: Callable[[], object] = load_entry(_LIBRARY_PATH)
    return str(library_path())


def library_for(code_path: str, manifest: Manifest, where: str) -> str:
    """Return the same for a compiled file, or for an executable.

    Parameters
    ----------
    where
        What messages call it.

    Raises
    ------
    MissingTVMError
        It needs TVM, and there is no TVM with Relay.
    ArtifactError
        It needs TVM, and was compiled by another version.
    """
    try:
        path = library_if_needed(code_path, manifest.program_text)
    except MissingTVMError as fault:
        text = f"{where}: it sorts or uses a GPU, for which TVM's library is needed; {fault}"
        raise MissingTVMError(text, name="tvm") from fault
    if path:
        check_tvm_version(manifest, where)
    return path


def check_tvm_version(manifest: Manifest, where: str) -> None:
    """Raise ArtifactError unless this TVM is the one that a file was compiled by."""
    version = load_entry(_REQUIRE_TVM)().__version__
    if manifest.tvm_version != version:
        raise ArtifactError(
            f"{where}: compiled by TVM {manifest.tvm_version}, this is TVM {version}; compile the "
            f"model again"
        )
