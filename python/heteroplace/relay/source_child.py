"""Reads a Relay module in a process of its own, as some damage ends TVM while it infers types.

    python -m heteroplace.relay.source_child < module.json

Weights are zeros, of which types say all. What is refused by a typed error ends well: the caller
reads the module again and raises it.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from heteroplace.errors import ArtifactError
from heteroplace.relay.source import source_from_json

_TIME_LIMIT_S = 120


def check_ends_nothing(data: bytes, where: str) -> None:
    """Let another process read the module first; `where` names the file.

    Raises
    ------
    ArtifactError
        That process died of it, or did not end.
    """
    command = [sys.executable, "-m", "heteroplace.relay.source_child"]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_TIME_LIMIT_S)
    except subprocess.TimeoutExpired as err:
        text = f"reading it takes more than {_TIME_LIMIT_S} s"
        raise ArtifactError(f"{where}: the Relay module is damaged ({text})") from err
    if done.returncode != 0:
        text = f"a process that read it ended with code {done.returncode}"
        raise ArtifactError(f"{where}: the Relay module is damaged ({text})")


def main() -> None:
    """Read the module of the standard input."""
    try:
        source_from_json(sys.stdin.buffer.read(), lambda _, size: np.zeros(size, np.uint8))
    except ArtifactError:
        return


if __name__ == "__main__":
    main()
