"""Run tutorials block by block and keep what they print and draw: `python -m docs.run_tutorials`.

Writes `docs/outputs/NAME/output.json` and the pictures beside it, which the pages of the site show.
Nothing is kept of a run on a machine that others use, as its times would be theirs: neither where
other programs work when a tutorial begins or ends, nor where what it measured and predicted are far
apart. `--loaded` keeps it all the same: of tutorials that measure nothing.
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

from docs.pages.blocks import read_blocks
from docs.pages.tutorials import OUTPUTS, digest, tutorials
from heteroplace.machine.usage import QUIET_CORES, Usage

_MAX_LINES = 45
_MAX_WIDTH = 118
_RECORD = "output.json"
_LOADED = "--loaded"
_LOOK_S = 2.0
_MAX_APART = 2.0
"""Measured and predicted times that differ by a larger factor are of a disturbed run."""
_TIME = r"([\d.,]+) (ns|us|ms|s)\b"
_APART = (
    re.compile(rf"{_TIME}, predicted {_TIME}"),
    re.compile(rf"predicted {_TIME}, (?:measured|median(?: of \d+ \w+)?) {_TIME}"),
)
_UNIT_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def main(arguments: list[str]) -> None:
    """Run the tutorials whose names contain one of those given, or all."""
    is_loaded = _LOADED in arguments
    names = [name for name in arguments if name != _LOADED]
    for path in tutorials():
        if names and not any(name in path.stem for name in names):
            continue
        if not is_loaded:
            _check_quiet(path.stem)
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as kept:
            _record(path, Path(folder), Path(kept), is_loaded)
            if not is_loaded:
                _check_quiet(path.stem)
                _check_apart(path.stem, Path(kept))
            shutil.rmtree(OUTPUTS / path.stem, ignore_errors=True)
            shutil.copytree(kept, OUTPUTS / path.stem)
        print(f"{path.stem}: {time.process_time() - started:.1f} s of this process")


def _check_quiet(name: str) -> None:
    before = Usage.now()
    time.sleep(_LOOK_S)
    used = Usage.now().others_since(before)
    if used > QUIET_CORES:
        sys.exit(
            f"{name}: other programs use {used:.1f} cores (at most {QUIET_CORES} disturb nothing); "
            f"what is kept stays as it is. Run it again when they are done, or with {_LOADED} if "
            f"it measures nothing"
        )


def _check_apart(name: str, kept: Path) -> None:
    blocks = json.loads((kept / _RECORD).read_text())["blocks"]
    if lines := [line for block in blocks for line in apart(block["printed"])]:
        sys.exit(
            f"{name}: what it measured is not within {_MAX_APART:g} times of what was predicted, "
            f"as where others use the machine; what is kept stays as it is:\n" + "\n".join(lines)
        )


def apart(printed: str) -> list[str]:
    """Return the lines whose measured and predicted times are too far apart to be kept.

    >>> apart("172.17 ms, predicted 6.43 ms\\n6.50 ms, predicted 6.43 ms")
    ['172.17 ms, predicted 6.43 ms']
    """
    found = []
    for line in printed.splitlines():
        for pattern in _APART:
            for one, its_unit, other, unit in pattern.findall(line):
                times = sorted((_ns(one, its_unit), _ns(other, unit)))
                if times[1] > _MAX_APART * times[0]:
                    found.append(line)
    return found


def _ns(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * _UNIT_NS[unit]


def _record(path: Path, folder: Path, kept: Path, is_loaded: bool) -> None:
    """Run a tutorial in one folder, and write what it printed and drew to the other one."""
    script = path.read_text()
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
    told = {"code": digest(script), "machine": _machine(is_loaded), "blocks": blocks}
    (kept / _RECORD).write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


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


def _machine(is_loaded: bool) -> str:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores = len(os.sched_getaffinity(0))
    beside = "beside other programs" if is_loaded else "without other programs"
    return f"{cores} virtual cores of {model[1].strip() if model else 'a CPU'}, {beside}"


if __name__ == "__main__":
    main(sys.argv[1:])
