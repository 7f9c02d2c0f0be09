"""Run tutorials block by block and keep what they print and draw: `python -m docs.run_tutorials`.

Writes `docs/outputs/NAME/output.json` and the pictures beside it, which the pages of the site show.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from docs.pages.tutorials import OUTPUTS, digest, read_blocks, tutorials

_MAX_LINES = 45
_MAX_WIDTH = 118


def main(names: list[str]) -> None:
    """Run the tutorials whose names contain one of `names`, or all."""
    for path in tutorials():
        if names and not any(name in path.stem for name in names):
            continue
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            _record(path, Path(folder))
        print(f"{path.stem}: {time.process_time() - started:.1f} s of this process")


def _record(path: Path, folder: Path) -> None:
    script = path.read_text()
    kept = OUTPUTS / path.stem
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    module = ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    blocks = []
    before = Path.cwd()
    os.chdir(folder)
    try:
        for block in read_blocks(script):
            printed = io.StringIO()
            code = "\n" * (block.line - 1) + block.code.lstrip("\n")
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(path), "exec"), vars(module))
            pictures = [_kept(drawn, kept, block.text) for drawn in sorted(folder.glob("*.png"))]
            blocks.append({"printed": _shown(printed.getvalue(), folder), "pictures": pictures})
    finally:
        os.chdir(before)
    told = {"code": digest(script), "machine": _machine(), "blocks": blocks}
    (kept / "output.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def _kept(drawn: Path, folder: Path, text: str) -> dict[str, str]:
    """Move a picture to the others; its description is the first sentence of the block's text."""
    shutil.move(drawn, folder / drawn.name)
    rows = [row for row in text.splitlines() if row and not set(row) <= set("-=")]
    told = " ".join(rows).partition(". ")[0].replace("`", "")
    return {"file": drawn.name, "alt": told or drawn.stem}


def _shown(text: str, folder: Path) -> str:
    """What a page shows: no colours, no names of temporary folders, not too long or wide."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace(str(folder), "FOLDER")
    text = text.replace(sys.executable, "python").replace(str(Path.home()), "~")
    text = re.sub(re.escape(tempfile.gettempdir()) + r"/tmp\w+", "FOLDER", text)
    rows = [row.rstrip() for row in text.splitlines()]
    rows = [row if len(row) <= _MAX_WIDTH else row[: _MAX_WIDTH - 3] + "..." for row in rows]
    if len(rows) > _MAX_LINES:
        left_out = len(rows) - _MAX_LINES + 1
        rows = [*rows[: _MAX_LINES - 6], f"... {left_out} more lines ...", *rows[-5:]]
    return "\n".join(rows)


def _machine() -> str:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} virtual cores of {model[1].strip() if model else 'a CPU'}, beside other programs"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
