"""Every example runs, and is short."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import heteroplace
from tests.programs import environment
from tests.tiny_decoders import byte_tokenizer, onnx_decoder

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAX_LINES = 20
WITH_DECODER = "chat"
"""The example that takes a compiled decoder, and reads messages."""
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "onnxscript"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_named_and_has_at_most_20_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES
    assert f"examples/{path.name} " in (ROOT / "examples" / "README.md").read_text()


@pytest.mark.costly(21)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=pytest.mark.relay if "import tvm" in path.read_text() else (), id=path.stem
        )
        for path in EXAMPLES
    ],
)
def test_example_runs_with_warnings_as_errors(path: Path, tmp_path: Path) -> None:
    if "import torch" in path.read_text() and not HAS_TORCH:
        pytest.skip("torch and onnxscript are not installed")
    arguments = [str(path)]
    if path.stem == WITH_DECODER:
        pytest.importorskip("tokenizers")
        arguments.append(write_decoder(tmp_path))
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        input="hello\nbye\n",
        cwd=tmp_path,
        env=environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def write_decoder(folder: Path) -> str:
    """Compile a small decoder that has a tokenizer."""
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    executable = heteroplace.compile(
        onnx_decoder(1, capacity=512),
        **{"state": "auto", "costs": "estimate", "tokenizer": folder / "tokenizer.json"},
    )
    executable.export_library(folder / "decoder.so")
    return str(folder / "decoder.so")
