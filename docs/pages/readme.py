"""The program of the README -> the first page of the guide: it is written down once."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_HEADING = "## Python\n"


def readme_pages() -> dict[str, str]:
    """Return the page by its name."""
    _, found, rest = (ROOT / "README.md").read_text().partition(_HEADING)
    assert found
    text = rest.partition("\n## ")[0].rstrip()
    script = "tutorials/01_first_placement"
    text = text.replace(f"[`{script}.py`]({script}.py)", f"[{script}.py]({script}.rst)")
    return {"first.md": f"# A first program\n{text}\n"}
