"""Stock TVM's compiler in a process of its own, which is killed when it takes too long.

As a program: ``python -m benchmarks.peers.stock_process FOLDER TARGET`` reads the module and
its weights from FOLDER, and writes the compiled library there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm import relay

from benchmarks.peers.stock import build_stock, silence_tuning_hint
from heteroplace.errors import ExecutionError
from heteroplace.tvm_bridge import register_cuda_compiler

_MODULE, _PARAMS, _LIBRARY = "module.json", "params.bin", "library.so"
_REASON_CHARACTERS = 300


def build_within(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray],
    target: str,
    limit_s: float,
) -> tvm.runtime.Module:
    """Compile by `build_stock` in another process and return the library.

    Raises
    ------
    ExecutionError
        It did not end within `limit_s` seconds and was killed, or it failed.
    """
    with tempfile.TemporaryDirectory(prefix="heteroplace-") as name:
        folder = Path(name)
        (folder / _MODULE).write_text(tvm.ir.save_json(mod))
        (folder / _PARAMS).write_bytes(tvm.runtime.save_param_dict(dict(params)))
        command = [sys.executable, "-m", __name__, name, target]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired as err:
            raise ExecutionError(
                f"stock TVM had not compiled it for {target} after {limit_s:g} s and was ended"
            ) from err
        if done.returncode != 0:
            reason = " / ".join(done.stderr.strip().splitlines()[-3:])[-_REASON_CHARACTERS:]
            raise ExecutionError(
                f"stock TVM's compiler ended with {done.returncode} for {target}: "
                f"{reason or 'no message'}"
            )
        return tvm.runtime.load_module(str(folder / _LIBRARY))


def main(folder: Path, target: str) -> None:
    """Compile what is in a folder."""
    silence_tuning_hint()
    if tvm.target.Target(target).kind.name == "cuda":
        register_cuda_compiler()
    mod = tvm.ir.load_json((folder / _MODULE).read_text())
    params = relay.load_param_dict((folder / _PARAMS).read_bytes())
    build_stock(mod, params, target).export_library(str(folder / _LIBRARY))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
