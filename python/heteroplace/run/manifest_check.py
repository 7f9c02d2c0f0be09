"""A loaded program and its manifest -> an error where one is of another program."""

from __future__ import annotations

from heteroplace.errors import ArtifactError
from heteroplace.files.manifest import Manifest
from heteroplace.native.execute import Executor as NativeExecutor


def check_manifest(native: NativeExecutor, manifest: Manifest, where: str) -> None:
    """Raise ArtifactError unless a manifest describes the program that is loaded.

    Parameters
    ----------
    where
        The file, or "the executable", for the message.
    """
    steps = manifest.placement.num_steps
    expected = [
        [(name, tuple(shape), dtype) for name, shape, dtype in ports]
        for ports in (manifest.inputs, manifest.outputs)
    ]
    replaced = {port for state in manifest.state for port in state.ports}
    actual = [
        [(port.name, port.shape, port.dtype) for port in ports if port.name not in replaced]
        for ports in (native.inputs, native.outputs)
    ]
    last = max((instruction.step for instruction in native.instructions), default=0)
    if expected == actual and last < max(steps, 1):
        return
    raise ArtifactError(
        f"{where}: its manifest is of another program: it tells of inputs {expected[0]}, outputs "
        f"{expected[1]} and {steps} steps, "
        f"the program has {actual[0]}, {actual[1]} and {last + 1}; "
        f"compile the model again"
    )
