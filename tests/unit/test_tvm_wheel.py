"""tvm_wheel: the wheel is complete, repeatable, and never half-written."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest

from heteroplace import tvm_wheel

SCRIPT = Path(tvm_wheel.__file__)

# A bitblas wheel in small: the same folders, and a library that needs libcuda.so.1 and NVRTC.
SMALL_SOURCE = {
    "bitblas/LICENSE": "licence of bitblas",
    "bitblas/__init__.py": "",
    "bitblas/3rdparty/cutlass/LICENSE.txt": "",
    "bitblas/3rdparty/tvm/LICENSE": "licence of TVM",
    "bitblas/3rdparty/tvm/licenses/LICENSE.part.txt": "licence of a part",
    "bitblas/3rdparty/tvm/python/setup.py": "",
    "bitblas/3rdparty/tvm/python/tvm/__init__.py": "__version__ = '0.17.dev0'\n",
    "bitblas/3rdparty/tvm/python/tvm/relay/std/core.rly": "#[version]\n",
}
PYTHON = "bitblas/3rdparty/tvm/python/"
# What hands on errors in TVM's Cython interface, in small.
CALLBACK = """
from numbers import Integral

def answer_of(function):
    try:
        return function()
    except Exception as err:
        return 42

def kind_of(arg):
    if arg is None:
        return "none"
    elif isinstance(arg, Integral):
        return "integer"
    return "other"
"""
OBJECT = """
def made(chandle):
    handle = ctypes_handle(chandle)
    return chandle
"""
CORE = "tvm/_ffi/_cython/core.pyx"
HEADER = Path(sysconfig.get_paths()["include"], "Python.h")


def compile_library(path: Path, text: str, *flags: str) -> None:
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-x", "c", "-", "-o", path]
    subprocess.run([*command, "-x", "none", *flags], input=text, text=True, check=True)


def compile_nvrtc(folder: Path, major: int) -> Path:
    """An NVRTC whose every answer is its own version, with the names that NVIDIA's have."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"libnvrtc.so.{major}"
    versions = folder / "nvrtc.map"
    versions.write_text(f"libnvrtc.so.{major} {{ global: *; }};\n")
    text = f"int nvrtcDestroyProgram(void** program) {{ return program ? 0 : {major}; }}"
    compile_library(path, text, f"-Wl,--version-script={versions}")
    return path


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small wheel; its digest is the pinned one for this test, and Python has no headers."""
    monkeypatch.setattr(tvm_wheel, "_HEADER", tmp_path / "Python.h")
    driver = tmp_path / "libcuda.so.1"
    library = tmp_path / "libtvm.so"
    compile_library(driver, "int cuModuleUnload(void* module) { return module != 0; }")
    compiler = compile_nvrtc(tmp_path, 12)
    text = (
        "int cuModuleUnload(void*); int probe(void) { return cuModuleUnload(0); }"
        "int nvrtcDestroyProgram(void**); int compile(void) { return nvrtcDestroyProgram(0); }"
    )
    compile_library(library, text, str(driver), str(compiler))
    path = tmp_path / tvm_wheel.SOURCE_NAME
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in SMALL_SOURCE.items():
            archive.writestr(name, content)
        archive.write(library, "bitblas/3rdparty/tvm/build/libtvm.so")
    monkeypatch.setattr(tvm_wheel, "SOURCE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_wheel_has_tvm_its_libraries_and_all_licences(tmp_path: Path, source: Path) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", source)
    info = "tvm_relay-0.17.dev0+d310bd5a.dist-info/"
    assert wheel.name == "tvm_relay-0.17.dev0+d310bd5a-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == {
            "tvm/__init__.py",
            "tvm/configs/host/default.json",
            "tvm/libcuda_lazy.so",
            "tvm/libnvrtc_lazy.so",
            "tvm/libtvm.so",
            "tvm/relay/std/core.rly",
            f"{info}METADATA",
            f"{info}RECORD",
            f"{info}WHEEL",
            f"{info}licenses/LICENSE",
            f"{info}licenses/LICENSE.bitblas.txt",
            f"{info}licenses/licenses/LICENSE.part.txt",
        }


@pytest.fixture
def with_cython(source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small wheel with Cython sources, where Python has its headers."""
    parts = {"packed_func.pxi": CALLBACK, "object.pxi": OBJECT}
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr(f"{PYTHON}{CORE}", "".join(f'include "./{name}"\n' for name in parts))
        for name, text in parts.items():
            archive.writestr(f"{PYTHON}{Path(CORE).with_name(name)}", text)
    monkeypatch.setattr(tvm_wheel, "SOURCE_SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
    monkeypatch.setattr(tvm_wheel, "_HEADER", HEADER)
    return source


@pytest.mark.costly(8)
def test_the_cython_interface_is_compiled_for_this_python(
    tmp_path: Path, with_cython: Path
) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", with_cython)
    name = f"tvm/_ffi/_cy3/core{sysconfig.get_config_var('EXT_SUFFIX')}"
    with zipfile.ZipFile(wheel) as archive:
        assert {name, CORE} <= set(archive.namelist())
        path = archive.extract(name, tmp_path)
    program = (
        "import importlib.util as u; s = u.spec_from_file_location('tvm._ffi._cy3.core', PATH)"
        "; m = u.module_from_spec(s); s.loader.exec_module(m)"
        "; print(m.answer_of(lambda: exit()))"  # what it raises is no `Exception`
        "; import numpy as np; print(*map(m.kind_of, (None, 1, True, np.int8(1), '1', 1.0)))"
        "; print(m.made(7))"  # without a name that is not there
    )
    program = program.replace("PATH", repr(path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    kinds = "none integer integer integer other other"
    assert done.stdout == f"42\n{kinds}\n7\n", done.stderr


@pytest.mark.costly(8)
def test_a_wheel_without_the_interface_is_made_again_with_it(
    tmp_path: Path, with_cython: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(tvm_wheel, "_HEADER", tmp_path / "Python.h")
    plain = tvm_wheel.build_wheel(cache, with_cython).read_bytes()
    monkeypatch.setattr(tvm_wheel, "_HEADER", HEADER)
    assert tvm_wheel.build_wheel(cache, with_cython).read_bytes() != plain


def test_where_python_has_no_headers_the_interface_is_left_out(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tvm_wheel.build_wheel(tmp_path / "cache", source)
    assert "Python.h (python3-dev has it)" in capsys.readouterr().err


@pytest.mark.parametrize("compiler", ["no-such-compiler", "c++ --no-such-flag"])
def test_a_cpp_compiler_that_fails_is_named(
    tmp_path: Path, with_cython: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(tvm_wheel.TVMWheelError, match="no-such-") as caught:
        tvm_wheel.build_wheel(tmp_path / "cache", with_cython)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("*.whl"))


def test_other_cython_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "packed_func.pxi").write_text("")
    script = str(SCRIPT.with_name("tvm_interface.py"))
    command = [sys.executable, script, str(tmp_path), str(tmp_path / "core.so"), "c++"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: packed_func.pxi has no")


@pytest.mark.relay
def test_tvm_is_called_by_the_interface() -> None:
    program = "import tvm; print(tvm.runtime.Object.__mro__[1].__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "tvm._ffi._cy3.core"


def test_record_lists_every_member_with_its_digest(tmp_path: Path, source: Path) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", source)
    expected = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist()[:-1]:
            data = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            expected.append(f"{name},sha256={digest},{len(data)}")
        record = archive.namelist()[-1]
        assert archive.read(record).decode().splitlines() == [*expected, f"{record},,"]


def test_packed_library_loads_without_a_driver(tmp_path: Path, source: Path) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", source)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "out")
    program = f"import ctypes; print(ctypes.CDLL('{tmp_path}/out/tvm/libtvm.so').probe())"
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path / "nowhere")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if not _has_driver():
        assert int(done.stdout) == 100


@pytest.mark.parametrize("folders", [("cu13",), ("cuda_nvrtc", "cu13")])
def test_packed_library_uses_nvrtc_12_or_13_of_the_wheels_beside_it(
    tmp_path: Path, source: Path, folders: tuple[str, ...]
) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", source)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "out")
        metadata = archive.read(f"{tvm_wheel.DIST_INFO}/METADATA").decode()
    assert "nvrtc" not in metadata
    for folder in folders:
        major = {"cuda_nvrtc": 12, "cu13": 13}[folder]
        compile_nvrtc(tmp_path / "out" / "nvidia" / folder / "lib", major)
    program = f"import ctypes; print(ctypes.CDLL('{tmp_path}/out/tvm/libtvm.so').compile())"
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path / "nowhere")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("12\n" if "cuda_nvrtc" in folders else "13\n", "")


def test_packed_library_says_what_is_missing_without_nvrtc(tmp_path: Path, source: Path) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", source)
    with zipfile.ZipFile(wheel) as archive:
        path = archive.extract("tvm/libnvrtc_lazy.so", tmp_path)
    # One that cannot be loaded stands for a machine that has none.
    for name in ("libnvrtc.so.12", "libnvrtc.so.13"):
        (tmp_path / name).write_text("no library")
    program = (
        f"import ctypes; lazy = ctypes.CDLL('{path}'); "
        "lazy.nvrtcGetErrorString.restype = ctypes.c_char_p; "
        "print(lazy.nvrtcDestroyProgram(None), lazy.nvrtcGetErrorString(11).decode())"
    )
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("11 NVRTC cannot be opened: pip install nvidia-cuda-nvrtc-cu12")


def test_lazy_library_forwards_to_the_driver(tmp_path: Path, source: Path) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", source)
    with zipfile.ZipFile(wheel) as archive:
        lazy = archive.extract("tvm/libcuda_lazy.so", tmp_path)
    # The driver of the fixture answers 1 for a module that is not null.
    program = f"import ctypes; print(ctypes.CDLL('{lazy}').cuModuleUnload(ctypes.c_void_p(8)))"
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, env=environment, capture_output=True).stdout == b"1\n"


@pytest.mark.skipif("_has_driver()", reason="this machine has an NVIDIA driver")
def test_lazy_library_names_its_error_without_a_driver(tmp_path: Path, source: Path) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", source)
    with zipfile.ZipFile(wheel) as archive:
        lazy = ctypes.CDLL(archive.extract("tvm/libcuda_lazy.so", tmp_path))
    text = ctypes.c_char_p()
    assert lazy.cuGetErrorName(100, ctypes.byref(text)) == 0
    assert text.value is not None
    assert text.value.startswith(b"CUDA_ERROR_NO_DEVICE")


def test_two_builds_are_equal_byte_for_byte(tmp_path: Path, source: Path) -> None:
    first = tvm_wheel.build_wheel(tmp_path / "a", source)
    second = tvm_wheel.build_wheel(tmp_path / "b", source)
    assert first.read_bytes() == second.read_bytes()


def test_second_call_takes_the_wheel_that_is_there(tmp_path: Path, source: Path) -> None:
    cache = tmp_path / "cache"
    made = tvm_wheel.build_wheel(cache, source).stat()
    source.unlink()
    again = tvm_wheel.build_wheel(cache, source).stat()
    assert (made.st_ino, made.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)


def test_damaged_wheel_is_made_again(tmp_path: Path, source: Path) -> None:
    wheel = tvm_wheel.build_wheel(tmp_path / "cache", source)
    good = wheel.read_bytes()
    wheel.write_bytes(good[:-1])
    assert tvm_wheel.build_wheel(tmp_path / "cache", source).read_bytes() == good


def test_foreign_source_is_refused_and_leaves_nothing(tmp_path: Path, source: Path) -> None:
    source.write_bytes(source.read_bytes() + b"x")
    with pytest.raises(tvm_wheel.TVMWheelError, match=r"SHA-256 is [0-9a-f]{64}, expected"):
        tvm_wheel.build_wheel(tmp_path / "cache", source)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_missing_compiler_names_the_package(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(tvm_wheel.TVMWheelError, match=r"no-such-compiler.*apt-get install gcc"):
        tvm_wheel.build_wheel(tmp_path / "cache", source)


def test_compiler_error_is_one_line(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "cc --no-such-flag")
    with pytest.raises(tvm_wheel.TVMWheelError, match="no-such-flag") as caught:
        tvm_wheel.build_wheel(tmp_path / "cache", source)
    assert "\n" not in str(caught.value)


def test_killed_build_leaves_no_wheel_and_the_next_one_cleans_up(
    tmp_path: Path, source: Path
) -> None:
    cache = tmp_path / "cache"
    compiler = tmp_path / "slow-cc"
    compiler.write_text("#!/bin/sh\necho > started\nsleep 60\n")
    compiler.chmod(0o755)
    program = (
        "import pathlib, sys, tvm_wheel as w\n"
        "w.SOURCE_SHA256 = sys.argv[1]\n"
        "w.build_wheel(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, tvm_wheel.SOURCE_SHA256, str(cache), str(source)],
        env={**os.environ, "CC": str(compiler), "PYTHONPATH": str(SCRIPT.parent)},
        cwd=tmp_path,
        start_new_session=True,
    )
    while not (tmp_path / "started").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(cache.glob(".build-*"))
    assert not list(cache.glob("*.whl"))
    tvm_wheel.build_wheel(cache, source)
    assert not list(cache.glob(".build-*"))


def test_command_line_prints_only_the_path(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["build", "--cache-dir", str(tmp_path / "cache"), "--source", str(source)]
    assert tvm_wheel.main([*arguments, "--output-dir", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / tvm_wheel.WHEEL_NAME}\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [tvm_wheel.WHEEL_NAME]


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert tvm_wheel.default_cache_dir() == Path("/some/cache/heteroplace")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tvm_wheel.default_cache_dir() == Path.home() / ".cache" / "heteroplace"


def test_file_runs_where_nothing_is_installed() -> None:
    command = [sys.executable, "-I", "-S", str(SCRIPT), "check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("TVM ")


@pytest.mark.relay
def test_check_says_that_this_tvm_has_relay() -> None:
    has_relay, text = tvm_wheel.describe_tvm()
    assert has_relay
    assert "with Relay" in text


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
