"""NVRTC of CUDA 12 or 13, with the headers of its own major version, and with tensor cores only
where the headers for them are installed."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from heteroplace import nvrtc
from heteroplace.errors import LoweringError

needs_relay = pytest.mark.skipif(
    importlib.util.find_spec("tvm") is None, reason="needs TVM with Relay"
)


def write_nvrtc(path: Path, version: tuple[int, int]) -> None:
    """Write a library that answers as NVRTC of a version does when asked for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (
        f"int nvrtcVersion(int* major, int* minor) "
        f"{{ *major = {version[0]}; *minor = {version[1]}; return 0; }}\n"
        'const char* nvrtcGetErrorString(int status) { return status ? "wrong" : "right"; }\n'
    )
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True)


def write_headers(folder: Path, version: int | None, *names: str) -> Path:
    """Write a folder of headers that says its version of CUDA, if it says one."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    if version is not None:
        (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    return folder


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the one that NVIDIA's wheels share; no toolkit is named."""
    monkeypatch.setattr(nvrtc, "_nvidia", lambda: [tmp_path / "nvidia"])
    monkeypatch.delenv("CUDA_HOME", raising=False)
    return tmp_path / "nvidia"


def test_nvrtc_13_of_a_wheel_will_do_where_there_is_no_other(wheels: Path) -> None:
    write_nvrtc(wheels / "cu13" / "lib" / "libnvrtc.so.13", (13, 0))
    assert nvrtc.nvrtc_version(nvrtc.load_nvrtc()) == (13, 0)


def test_nvrtc_12_of_a_wheel_comes_first(wheels: Path) -> None:
    write_nvrtc(wheels / "cu13" / "lib" / "libnvrtc.so.13", (13, 0))
    write_nvrtc(wheels / "cuda_nvrtc" / "lib" / "libnvrtc.so.12", (12, 4))
    assert nvrtc.nvrtc_version(nvrtc.load_nvrtc()) == (12, 4)


def test_a_damaged_wheel_is_passed_over(wheels: Path) -> None:
    (wheels / "cuda_nvrtc" / "lib").mkdir(parents=True)
    (wheels / "cuda_nvrtc" / "lib" / "libnvrtc.so.12").write_text("no library")
    write_nvrtc(wheels / "cu13" / "lib" / "libnvrtc.so.13", (13, 1))
    assert nvrtc.nvrtc_version(nvrtc.load_nvrtc()) == (13, 1)


def test_a_machine_without_nvrtc_is_told_what_was_tried(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "MAJORS", (98, 99))
    with pytest.raises(LoweringError, match=r"nvrtc\.so\.98.*nvrtc\.so\.99.*nvidia-cuda-nvrtc "):
        nvrtc.load_nvrtc()


@pytest.mark.parametrize(
    ("major", "folders"), [(12, ["cuda_runtime", "cuda_nvcc"]), (13, ["cu13"])]
)
def test_headers_are_of_the_compilers_major_version(
    wheels: Path, major: int, folders: list[str]
) -> None:
    write_nvrtc(wheels / "lib" / "nvrtc.so", (major, 0))
    compiler = nvrtc.ctypes.CDLL(str(wheels / "lib" / "nvrtc.so"))
    write_headers(wheels / "cuda_runtime" / "include", 12090, "cuda_fp16.h", "mma.h")
    write_headers(wheels / "cuda_nvcc" / "include", None, "crt/mma.h")
    write_headers(wheels / "cu13" / "include", 13000, "cuda_fp16.h", "mma.h", "crt/mma.h")
    assert nvrtc.include_folders(compiler) == [wheels / name / "include" for name in folders]
    assert nvrtc.has_tensor_cores(compiler, "sm_90a")
    assert not nvrtc.has_tensor_cores(compiler, "sm_61")


def test_headers_of_a_toolkit_of_another_version_are_left_alone(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_nvrtc(wheels / "lib" / "nvrtc.so", (12, 0))
    compiler = nvrtc.ctypes.CDLL(str(wheels / "lib" / "nvrtc.so"))
    home = tmp_path / "toolkit"
    monkeypatch.setenv("CUDA_HOME", str(home))
    include = write_headers(home / "include", 13020, "cuda_fp16.h", "crt/mma.h")
    assert include not in nvrtc.include_folders(compiler)
    write_headers(home / "include", 12080)
    assert nvrtc.include_folders(compiler)[0] == include


def build_product(op: str, dtype: str, arch: str) -> str:
    """Return the CUDA code of a product that TVM's schedules for tensor cores take."""
    import tvm
    from tvm import relay

    from heteroplace.tvm_bridge import register_cuda_compiler

    register_cuda_compiler()
    batch = (4,) if op == "batch_matmul" else ()
    x, w = (
        relay.var(name, shape=(*batch, rows, 64), dtype=dtype)
        for name, rows in (("x", 16), ("w", 32))
    )
    out_dtype = "float32" if dtype == "float16" else "int32"
    mod = tvm.IRModule.from_expr(getattr(relay.nn, op)(x, w, out_dtype=out_dtype))
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=tvm.target.Target(f"cuda -arch={arch}", host="llvm"))
    return str(library.get_lib().imported_modules[0].get_source())


PRODUCTS = [
    (op, dtype, arch)
    for op in ("dense", "batch_matmul")
    for dtype in ("float16", "int8")
    for arch in ("sm_80", "sm_90")
]


@needs_relay
@pytest.mark.relay
@pytest.mark.parametrize(("op", "dtype", "arch"), PRODUCTS)
def test_half_and_8_bit_products_compile_without_the_headers_of_tensor_cores(
    op: str, dtype: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = nvrtc.include_folders(nvrtc.load_nvrtc())[:1]
    monkeypatch.setattr(nvrtc, "_header_folders", lambda _: iter(folders))
    if (folders[0] / "crt" / "mma.h").is_file():
        pytest.skip("the folder with cuda_fp16.h has the headers of tensor cores, too")
    assert "wmma" not in build_product(op, dtype, arch)


@needs_relay
@pytest.mark.relay
@pytest.mark.parametrize(("op", "dtype", "arch"), PRODUCTS)
def test_half_and_8_bit_products_compile_for_tensor_cores(op: str, dtype: str, arch: str) -> None:
    if not nvrtc.has_tensor_cores(nvrtc.load_nvrtc(), arch):
        pytest.skip("needs crt/mma.h: pip install nvidia-cuda-nvcc-cu12")
    assert "wmma" in build_product(op, dtype, arch)
