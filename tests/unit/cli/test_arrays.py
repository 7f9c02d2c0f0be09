"""Inputs of a model from files of numpy: what is made up, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heteroplace.cli.arrays import make_inputs, read_array, read_arrays
from heteroplace.errors import ExecutionError

PORTS = [("image", (1, 4), "float32"), ("mask", (3,), "int64"), ("half", (2,), "bfloat16")]


def test_what_is_not_given_is_made_up_within_what_is_legal() -> None:
    image = np.ones((1, 4), "float32")
    found = make_inputs(PORTS, {"image": image}, {"mask": (5.0, 6.0)}, seed=1)
    assert list(found) == ["image", "mask", "half"]
    assert np.array_equal(found["image"], image)
    assert found["mask"].dtype == "int64"
    assert set(found["mask"].tolist()) <= {5, 6}
    assert found["half"].dtype == "uint16"
    again = make_inputs(PORTS, {}, {}, seed=1)
    assert np.array_equal(make_inputs(PORTS, {}, {}, seed=1)["image"], again["image"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"imagee": np.ones((1, 4), "float32")}, "no input 'imagee'; did you mean \"image\""),
        ({"image": np.ones(4, "float32")}, r"'image' has shape \[4\], expected \[1, 4\]"),
        ({"mask": np.ones(3, "float32")}, "'mask' is of type float32, expected int64"),
    ],
)
def test_wrong_arrays_are_told(given: dict[str, np.ndarray], told: str) -> None:
    with pytest.raises(ExecutionError, match=told):
        make_inputs(PORTS, given, {}, seed=0)


def test_files_are_read_or_refused(tmp_path: Path) -> None:
    several, one, text = (str(tmp_path / name) for name in ("x.npz", "x.npy", "x.txt"))
    np.savez(several, a=np.arange(3), b=np.ones(2))
    np.save(one, np.arange(3))
    Path(text).write_text("PK\x03\x04 no array")
    assert {name: array.tolist() for name, array in read_arrays(several).items()} == {
        "a": [0, 1, 2],
        "b": [1.0, 1.0],
    }
    assert read_array(one).tolist() == [0, 1, 2]
    for path in (one, text, str(tmp_path / "none.npz")):
        with pytest.raises(ExecutionError, match="cannot be read as \\.npz"):
            read_arrays(path)
    for path in (several, text):
        with pytest.raises(
            ExecutionError, match=r"holds several arrays|cannot be read as an array"
        ):
            read_array(path)
