"""tvm_bridge: which TVM is accepted, and what is registered in it."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from heteroplace import tvm_bridge
from heteroplace.errors import LoweringError, MissingTVMError
from tests.programs import run_python

AVX512 = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
PACKAGE_ROOT = Path(tvm_bridge.__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        (set(), "llvm"),
        ({"sse2", "avx"}, "llvm"),
        ({"avx2"}, "llvm"),
        ({"avx2", "fma"}, "llvm -mcpu=haswell"),
        (AVX512 - {"avx512vl"}, "llvm -mcpu=haswell"),
        (AVX512, "llvm -mcpu=skylake-avx512"),
        (AVX512 | {"avx512_vnni"}, "llvm -mcpu=cascadelake"),
        (AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile"}, "llvm -mcpu=cooperlake"),
        (
            AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
            "llvm -keys=amx,cpu -mcpu=cooperlake",
        ),
    ],
)
def test_cpu_target_is_the_widest_that_the_flags_allow(flags: set[str], target: str) -> None:
    assert tvm_bridge.llvm_cpu_target(flags) == target


def test_cpu_target_of_this_machine_is_one_of_the_known() -> None:
    names = ("haswell", "skylake-avx512", "cascadelake", "cooperlake")
    targets = {"llvm", *(f"llvm -mcpu={name}" for name in names)}
    targets.add("llvm -keys=amx,cpu -mcpu=cooperlake")
    assert tvm_bridge.llvm_cpu_target() in targets


@pytest.mark.parametrize("version", ["0.12.0", "0.17.dev0", "0.19.1"])
def test_versions_with_relay_are_accepted(version: str) -> None:
    assert tvm_bridge.check_version(version) is None


@pytest.mark.parametrize("version", ["0.11.1", "0.20.dev5", "1.0", "unknown"])
def test_other_versions_are_refused_with_the_way_out(version: str) -> None:
    with pytest.raises(MissingTVMError, match=r"expected 0.12 to 0.19.*heteroplace setup-tvm"):
        tvm_bridge.check_version(version)


def test_no_tvm_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tvm", raising=False)
    monkeypatch.setattr(sys, "path", [])
    assert not tvm_bridge.have_tvm()
    with pytest.raises(MissingTVMError, match=r"heteroplace setup-tvm"):
        tvm_bridge.require_tvm()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__version__ = '0.25.0'", "TVM is version 0.25.0, expected 0.12 to 0.19"),
        ("__version__ = '0.18.0'", "TVM 0.18.0 in .* has no Relay"),
        ("raise OSError('libx.so: cannot open')", "TVM cannot be loaded: libx.so: cannot open"),
    ],
)
def test_unusable_tvm_is_a_typed_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tvm").mkdir()
    (tmp_path / "tvm" / "__init__.py").write_text(text)
    program = (
        "import re, sys\n"
        "from heteroplace.errors import MissingTVMError\n"
        "try:\n"
        "    from heteroplace import tvm_bridge\n"
        "    tvm_bridge.require_tvm()\n"
        "except MissingTVMError as error:\n"
        f"    raise SystemExit(0 if re.match({message!r}, str(error)) else str(error))\n"
        "raise SystemExit('accepted')\n"
    )
    run_python(program, PYTHONPATH=f"{tmp_path}{os.pathsep}{PACKAGE_ROOT}")


@pytest.mark.costly
@pytest.mark.relay
def test_tvm_loads_without_warnings_and_without_downloads() -> None:
    program = (
        "import os; from heteroplace import tvm_bridge; tvm_bridge.require_tvm()\n"
        "print(os.environ['TOPHUB_LOCATION'], tvm_bridge.library_path().name)\n"
    )
    assert run_python(program, "-W", "error", TOPHUB_LOCATION=None) == "NONE libtvm.so\n"


@pytest.mark.relay
def test_what_a_target_has_is_asked_once_while_kernels_are_lowered() -> None:
    tvm = tvm_bridge.require_tvm()
    functions = tvm.target.target._ffi_api
    has_feature, features = functions.target_has_feature, []
    targets = [tvm.target.Target(f"llvm -mcpu={cpu}") for cpu in ("skylake-avx512", "haswell")]

    def counted(feature: str, target: object) -> bool:
        features.append(feature)
        return bool(has_feature(feature, target))

    functions.target_has_feature = counted
    try:
        with tvm_bridge.lowering_by_tvm():
            for target in [*targets, *targets]:
                with target:
                    is_wide = tvm.target.codegen.target_has_features(["avx512f"])
                assert bool(is_wide) == (target is targets[0])
        assert len(features) == len(targets)
        assert functions.target_has_feature is counted
    finally:
        functions.target_has_feature = has_feature


@pytest.mark.relay
def test_library_path_is_a_file() -> None:
    assert tvm_bridge.library_path().is_file()


def build_cuda_kernel(arch: str, dtype: str) -> str:
    """Return the PTX of a kernel that squares 1024 numbers."""
    tvm = tvm_bridge.require_tvm()
    a = tvm.te.placeholder((1024,), dtype, name="a")
    b = tvm.te.compute((1024,), lambda i: a[i] * a[i], name="b")
    schedule = tvm.te.create_schedule(b.op)
    block, thread = schedule[b].split(b.op.axis[0], factor=64)
    schedule[b].bind(block, tvm.te.thread_axis("blockIdx.x"))
    schedule[b].bind(thread, tvm.te.thread_axis("threadIdx.x"))
    target = tvm.target.Target(f"cuda -arch={arch}", host="llvm")
    library = tvm.build(schedule, [a, b], target)
    return str(library.imported_modules[0].get_source("ptx"))


@pytest.mark.relay
@pytest.mark.parametrize(
    ("arch", "dtype"), [("sm_70", "float32"), ("sm_80", "float16"), ("sm_90", "float32")]
)
def test_cuda_kernel_is_compiled_for_the_targets_arch(arch: str, dtype: str) -> None:
    tvm_bridge.register_cuda_compiler()
    assert f".target {arch}\n" in build_cuda_kernel(arch, dtype)


@pytest.mark.relay
def test_machine_code_stands_behind_the_ptx() -> None:
    tvm_bridge.register_cuda_compiler()
    tvm = tvm_bridge.require_tvm()
    compile_code = tvm.get_global_func("tvm_callback_cuda_compile")
    code = 'extern "C" __global__ void f(float* a) { a[threadIdx.x] = 1; }'
    image = bytes(compile_code(code, tvm.target.Target("cuda -arch=sm_86")))
    ptx, _, rest = image.partition(b"\0")
    assert b".target sm_86" in ptx
    mark, capability, size = struct.unpack_from("<8siQ", rest)
    assert (mark, capability, len(rest)) == (b"HPMCODE1", 86, struct.calcsize("<8siQ") + size)
    assert rest[struct.calcsize("<8siQ") :].startswith(b"\x7fELF")


@pytest.mark.relay
def test_unknown_arch_is_a_lowering_error() -> None:
    tvm_bridge.register_cuda_compiler()
    with pytest.raises(LoweringError, match=r"for sm_20 \(NVRTC_ERROR_INVALID_OPTION\)"):
        build_cuda_kernel("sm_20", "float32")


@pytest.mark.relay
def test_wrong_code_is_a_lowering_error_with_the_compilers_log() -> None:
    tvm = tvm_bridge.require_tvm()
    tvm_bridge.register_cuda_compiler()
    compile_code = tvm.get_global_func("tvm_callback_cuda_compile")
    with pytest.raises(LoweringError, match='identifier "no_such_name" is undefined'):
        compile_code("__global__ void f() { no_such_name; }", tvm.target.Target("cuda -arch=sm_80"))


@pytest.mark.relay
def test_target_without_an_arch_is_a_lowering_error() -> None:
    tvm = tvm_bridge.require_tvm()
    tvm_bridge.register_cuda_compiler()
    compile_code = tvm.get_global_func("tvm_callback_cuda_compile")
    with tvm.target.Target("llvm"), pytest.raises(LoweringError, match="cuda -arch=sm_80"):
        compile_code("__global__ void f() {}", None)


@pytest.mark.relay
def test_importer_of_onnx_works_with_this_onnx() -> None:
    onnx = pytest.importorskip("onnx")
    tvm_bridge.register_onnx_mapping_shim()
    tvm_bridge.register_onnx_mapping_shim()
    relay = tvm_bridge.require_tvm().relay
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT16)
    graph = onnx.helper.make_graph(
        [node],
        "cast",
        [value("x", onnx.TensorProto.FLOAT, [4])],
        [value("y", onnx.TensorProto.FLOAT16, [4])],
    )
    module, _ = relay.frontend.from_onnx(onnx.helper.make_model(graph))
    assert module["main"].checked_type.ret_type.dtype == "float16"


LATE_NAME = """
import sys
from heteroplace.tvm_bridge import add_to_relay_transform

made = []

def make():
    made.append("made")
    return len

{first}
add_to_relay_transform("Nothing", make, lambda: {{"relay.Nothing.size": "IntImm"}})
import tvm.relay
assert "relay.Nothing.size" in tvm.transform.PassContext.list_configs()
assert "relay.HeteroPlace.solver" in tvm.transform.PassContext.list_configs()
assert made == []
assert tvm.relay.transform.Nothing is len and tvm.relay.transform.Nothing is len
assert made == ["made"]
assert tvm.relay.transform.HeteroPlace.__module__ == "heteroplace.hetero_place"
assert type(tvm.relay.transform.__spec__.loader).__name__ == "SourceFileLoader"
try:
    tvm.relay.transform.Other
except AttributeError as fault:
    print(fault)
"""


@pytest.mark.costly
@pytest.mark.parametrize("first", ["", "import tvm.relay"])
def test_a_name_is_added_to_relay_transform_whenever_tvm_is_loaded(first: str) -> None:
    pytest.importorskip("tvm.relay")
    said = run_python(LATE_NAME.format(first=first)).strip()
    assert said == "module 'tvm.relay.transform' has no attribute 'Other'"
