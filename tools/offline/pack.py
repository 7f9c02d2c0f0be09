"""A checkout -> a folder with all that a machine without a network needs to install heteroplace.

`make offline` runs it. The folder holds wheels (TVM and the core among them) and `install.sh`. With
`--small` the wheels are stripped of debugging symbols and packed as one file.
"""

from __future__ import annotations

import argparse
import ensurepip
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIN_MANYLINUX = 5
ARCHIVE = "wheels.tar.xz"
_BUILD = ("scikit-build-core>=0.10", "nanobind>=2.4", "cmake", "ninja")
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


class PackingError(Exception):
    """A package cannot be fetched or built; the message says which, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack what the command line asks for; 1 if something cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m tools.offline.pack", description=__doc__)
    parser.add_argument("requirements", type=Path, help="a file, one requirement a line")
    parser.add_argument("output", type=Path, help="the folder to make")
    parser.add_argument(
        "--python",
        metavar="PROGRAM",
        default=sys.executable,
        help="a Python of the version that the other machine has (default: this one)",
    )
    parser.add_argument(
        "--have",
        default="",
        metavar="A,B",
        help="packages that the other machine has already, which are left out",
    )
    parser.add_argument("--small", action="store_true", help="strip, and pack one file by xz")
    options = parser.parse_args(arguments)
    try:
        pack(
            options.requirements,
            options.output,
            python=options.python,
            have=frozenset(filter(None, options.have.split(","))),
            is_small=options.small,
        )
    except PackingError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    return 0


def pack(
    requirements: Path, output: Path, *, python: str, have: frozenset[str], is_small: bool
) -> None:
    """Make the folder `output` anew; it is complete, or not there.

    Parameters
    ----------
    requirements
        A file as `pip install -r` takes it.
    python
        A Python of the version that the other machine has.
    have
        Names of packages to leave out.
    is_small
        One file in place of the wheels.

    Raises
    ------
    PackingError
        A package has no wheel for this Python, or the core cannot be built.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as work:
        folder = Path(work) / "offline"
        wheels = folder / "wheels"
        wheels.mkdir(parents=True)
        download(requirements, wheels, python)
        shutil.copy(build_tvm(), wheels)
        build_project(wheels, python, Path(work))
        (bundled,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
        shutil.copy(bundled, wheels)
        remove(wheels, have)
        shutil.copy(Path(__file__).with_name("install.sh"), folder)
        if is_small:
            for wheel in sorted(wheels.glob("*.whl")):
                strip(wheel)
            compress(wheels, folder / ARCHIVE)
        shutil.rmtree(output, ignore_errors=True)
        folder.rename(output)


def download(requirements: Path, folder: Path, python: str) -> None:
    """Fetch the wheels of requirements, and of what those require."""
    version = output_of([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    minor = int(platform.libc_ver()[1].partition(".")[2])
    platforms = [f"manylinux_2_{glibc}_x86_64" for glibc in range(minor, MIN_MANYLINUX - 1, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    output_of(
        [
            *(sys.executable, *_PIP, "download", "--only-binary=:all:", "--dest", str(folder)),
            *("--python-version", version, "--implementation", "cp"),
            *(f"--platform={name}" for name in platforms),
            *("-r", str(requirements)),
        ]
    )


def build_tvm() -> Path:
    """Return the wheel of TVM with Relay, which is made once and kept in the user's cache."""
    script = ROOT / "python" / "heteroplace" / "tvm_wheel.py"
    return Path(output_of([sys.executable, str(script), "build"]).splitlines()[-1])


def build_project(folder: Path, python: str, work: Path) -> None:
    """Build the wheel of this checkout by a Python, in an environment of its own."""
    environment = work / "environment"
    output_of([python, "-m", "venv", str(environment)])
    program = str(environment / "bin" / "python")
    output_of([program, *_PIP, "install", *_BUILD])
    command = [program, *_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    build = f"--config-settings=build-dir={work / 'build'}"
    output_of([*command, str(folder), build, str(ROOT)], PATH=path)


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove the wheels of packages.

    Raises
    ------
    PackingError
        A package is not among them, so its name is probably misspelt.
    """
    by_name: dict[str, list[Path]] = {}
    for wheel in folder.glob("*.whl"):
        by_name.setdefault(_normal(wheel.name.partition("-")[0]), []).append(wheel)
    for name in names:
        if _normal(name) not in by_name:
            raise PackingError(
                f"--have {name}: nothing requires this package; required are "
                f"{', '.join(sorted(by_name))}"
            )
        for wheel in by_name[_normal(name)]:
            wheel.unlink()


def strip(wheel: Path) -> None:
    """Strip the libraries of a wheel of what only debuggers read, and store it uncompressed."""
    with tempfile.TemporaryDirectory(dir=wheel.parent) as work:
        with zipfile.ZipFile(wheel) as archive:
            infos = archive.infolist()
            archive.extractall(work)
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
            for info in infos:
                path = Path(work) / info.filename
                if info.is_dir():
                    continue
                if ".so" in path.name and path.read_bytes()[:4] == b"\x7fELF":
                    output_of(["strip", "--strip-unneeded", str(path)])
                copied = zipfile.ZipInfo(info.filename, info.date_time)
                copied.external_attr = info.external_attr
                archive.writestr(copied, path.read_bytes())


def compress(folder: Path, target: Path) -> None:
    """Replace a folder by one archive, packed by xz with its filter for machine code."""
    filters = [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 192 << 20},
    ]
    with (
        lzma.open(target, "wb", format=lzma.FORMAT_XZ, filters=filters) as raw,
        tarfile.open(fileobj=raw, mode="w") as archive,
    ):
        archive.add(folder, folder.name)
    shutil.rmtree(folder)


def output_of(command: Sequence[str], **variables: str) -> str:
    """Run a command and return what it prints.

    Raises
    ------
    PackingError
        It fails; the message ends with what it printed.
    """
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )
    if done.returncode != 0:
        raise PackingError(f"{' '.join(command[:6])} ... failed:\n{done.stdout[-4000:]}")
    return done.stdout


def _normal(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    sys.exit(main())
