"""The seam `Peer`: a model in another runtime, for `heteroplace run --compare`.

A package registers one in the group `heteroplace.peers`; ours are `onnxruntime`, `openvino`
and `openvino-float32`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class LoadedPeer(Protocol):
    """A model that another runtime has loaded. Not thread-safe."""

    name: str
    version: str
    precision: str
    """What it computes in, where that is not the model's own type; "": in that."""

    def difference(self, outputs: Sequence[Any]) -> float:
        """Return how far outputs, in the order of the model, are from its own.

        The largest difference in an output over the largest value of that output, of all outputs.
        """

    def time_calls(self, num_runs: int) -> list[int]:
        """Return the wall time, in ns, of so many calls from arrays to arrays."""

    def close(self) -> None:
        """End its threads."""


class Peer(Protocol):
    """A runtime to compare with."""

    def check_installed(self) -> None:
        """Raise MissingPackageError if the runtime is not installed."""

    def load(self, path: Path, inputs: Mapping[str, Any], cores: Sequence[int]) -> LoadedPeer:
        """Load a model, with a thread on each of the cores.

        Parameters
        ----------
        inputs
            Arrays, or lists and numbers of the right type, by the names of the model's inputs.

        Raises
        ------
        MissingPackageError
            The runtime is not installed.
        FrontendError
            The runtime does not load the model.
        """
