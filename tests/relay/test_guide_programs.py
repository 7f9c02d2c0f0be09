"""Python programs of the how-to pages run as they are written, and the pages answer main words."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.relay.onnx_models import make_model
from tests.short_measuring import short_measuring

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
PRINTED = {
    "pin": "us pinned",
    "throughput": "rows/s measured",
    "prediction": "two GPUs ",
    "memory": "no allowed device has it",
    "jupyter": "",
    "tvmc": "<Solution: ",
}
"""Pages with a program of their own, and what it prints among other things."""


def towers(rows: int | str) -> onnx.ModelProto:
    """Two towers of convolutions, whose layers are `left/conv0`, `left/conv1` and so on."""
    random = np.random.default_rng(0)
    nodes, weights = [], {}
    for tower in ("left", "right"):
        value, channels = "x", 3
        for layer in range(2):
            name = f"{tower}/conv{layer}"
            weights[f"{name}.w"] = random.standard_normal((8, channels, 3, 3)).astype("float32")
            inputs = [value, f"{name}.w"]
            nodes.append(onnx.helper.make_node("Conv", inputs, [name], name, pads=[1] * 4))
            value, channels = name, 8
    nodes.append(onnx.helper.make_node("Add", ["left/conv1", "right/conv1"], ["y"], "sum"))
    return make_model(nodes, {"x": [rows, 3, 8, 8]}, ["y"], weights)


def program(page: str) -> str:
    """The Python of a page, with less time for solvers."""
    text = (GUIDE / f"{page}.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    return code.replace("time_limit=5", "time_limit=0.5")


@pytest.mark.costly(6)
@pytest.mark.parametrize("page", PRINTED)
def test_the_program_of_a_page_runs(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("matplotlib")
    if page == "jupyter":
        pytest.importorskip("IPython")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETEROPLACE_COSTS", str(tmp_path / "costs.sqlite"))
    onnx.save(towers(1), "model.onnx")
    onnx.save(towers("N"), "open.onnx")
    code = program(page)
    assert "time_limit=0.5" in code
    with short_measuring():
        exec(code, {"__name__": "program"})
    assert PRINTED[page] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("pin", "pin"),
        ("batch", "throughput"),
        ("GPUs", "prediction"),
        ("Serve", "serving"),
        ("Docker", "docker"),
        ("Jupyter", "jupyter"),
        ("memory", "memory"),
        ("tvmc", "tvmc"),
    ],
)
def test_the_title_of_a_page_has_the_word_that_users_search(word: str, page: str) -> None:
    title = (GUIDE / f"{page}.md").read_text().partition("\n")[0]
    assert word.lower() in title.lower().split()[1:] or f" {word.lower()}" in title.lower()
