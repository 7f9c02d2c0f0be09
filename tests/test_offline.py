"""`make offline`: what is packed is installed by `install.sh` without a network."""

from __future__ import annotations

import ensurepip
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.offline import pack

ROOT = Path(__file__).resolve().parents[1]
INSTALLER = ROOT / "tools" / "offline" / "install.sh"
SCRIPT = "[console_scripts]\nheteroplace = toy:main\n"


def write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """Write a wheel of some files, compressed as wheels are."""
    info = f"{name}-1.0.dist-info"
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, content)
    return wheel


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A folder as `make offline` leaves it, with pip and a toy that has our command."""
    wheels = tmp_path / "offline" / "wheels"
    wheels.mkdir(parents=True)
    (bundled,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    shutil.copy(bundled, wheels)
    toy = {"toy.py": b"def main():\n    print('toy 1.0')\n"}
    write_wheel(wheels, "toy", {**toy, "toy-1.0.dist-info/entry_points.txt": SCRIPT.encode()})
    shutil.copy(INSTALLER, wheels.parent)
    return wheels.parent


@pytest.mark.costly(8)
@pytest.mark.parametrize("is_small", [False, True])
def test_an_environment_is_made_without_a_network(
    packed: Path, tmp_path: Path, is_small: bool
) -> None:
    if is_small:
        for wheel in (packed / "wheels").glob("*.whl"):
            pack.strip(wheel)
        pack.compress(packed / "wheels", packed / pack.ARCHIVE)
        assert not (packed / "wheels").exists()
    done = subprocess.run(
        ["sh", str(packed / "install.sh"), str(tmp_path / "venv")],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "PIP_INDEX_URL": "http://0.0.0.0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "toy 1.0"
    assert (tmp_path / "venv" / ".stamp-packages").exists()


def test_stamps_are_those_of_the_makefile() -> None:
    stamps = INSTALLER.read_text().partition("for stamp in ")[2].partition(";")[0].split()
    makefile = (ROOT / "Makefile").read_text()
    assert [f"$(VENV)/.stamp-{stamp}" in makefile for stamp in stamps] == [True] * len(stamps)


def test_stripping_keeps_every_file_and_stores_it(tmp_path: Path) -> None:
    library = Path(zipfile.__file__).read_bytes()
    wheel = write_wheel(tmp_path, "toy", {"toy.py": library, "data.so.txt": b"no library"})
    pack.strip(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("toy.py") == library
        assert archive.read("data.so.txt") == b"no library"
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


def test_a_package_that_is_there_already_is_left_out(tmp_path: Path) -> None:
    for name in ("numpy", "nvidia_nccl"):
        write_wheel(tmp_path, name, {})
    pack.remove(tmp_path, ["nvidia-nccl"])
    assert [wheel.name for wheel in tmp_path.iterdir()] == ["numpy-1.0-py3-none-any.whl"]
    with pytest.raises(pack.PackingError, match=r"--have numpi: nothing requires .* are numpy"):
        pack.remove(tmp_path, ["numpi"])


def test_what_fails_is_said_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("./no_such_folder\n")
    assert pack.main([str(requirements), str(tmp_path / "new" / "offline")]) == 1
    assert "no_such_folder" in capsys.readouterr().err
    assert not list((tmp_path / "new").iterdir())
