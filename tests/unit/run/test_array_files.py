"""Files of numpy: read or refused, and replaced as a whole."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.run.array_files import read_array, read_arrays, write_arrays
from tests.programs import files_of_at_most


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
        with pytest.raises(ExecutionError, match=r"arrays by name|cannot be read as an array"):
            read_array(path)


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    write_arrays(path, {"y": np.arange(3)})
    told = pytest.raises(ArtifactError, match=r"y\.npz: cannot be written: File too large")
    with files_of_at_most(4096), told:
        write_arrays(path, {"y": np.zeros(10_000)})
    assert read_arrays(path)["y"].tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(1000.0))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF  # in the compressed bytes
    path.write_bytes(content)
    with pytest.raises(ExecutionError, match=r"cannot be read as \.npz"):
        read_arrays(path)
    with zipfile.ZipFile(path, "w") as archive:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }" % 10**17
        archive.writestr(
            "x.npy", b"\x93NUMPY\x01\x00" + bytes([len(header) + 1, 0]) + header + b"\n"
        )
    with pytest.raises(ExecutionError, match=r"cannot be read as \.npz"):
        read_arrays(path)


def test_a_damaged_header_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header)
    with pytest.raises(ExecutionError, match=r"x\.npy"):
        read_array(path)


def test_an_archive_in_place_of_an_array_says_what_it_has(tmp_path):
    for names in ([], ["x"], ["x", "y"]):
        np.savez(tmp_path / "a.npz", **{name: np.ones(2) for name in names})
        with pytest.raises(
            ExecutionError, match=rf"archive \(.npz\), arrays by name: {len(names)}"
        ):
            read_array(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["objects.npy", "objects.npz"])
def test_python_objects_are_no_numbers_and_nothing_unsafe_is_advised(tmp_path, name):
    objects = np.array([{}, 1], dtype=object)
    np.save(tmp_path / "objects.npy", objects)
    np.savez(tmp_path / "objects.npz", x=objects)
    read = read_array if name.endswith(".npy") else read_arrays
    with pytest.raises(ExecutionError, match="holds Python objects, no numbers") as caught:
        read(tmp_path / name)
    assert "pickle" not in str(caught.value)
