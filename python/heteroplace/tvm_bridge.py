"""Everything that depends on how TVM is installed, registered and versioned.

This is the only module that touches TVM's registry of packed functions, the environment variables
it reads, and differences between its versions. The others call `require_tvm` and import ``tvm``.

TVM's own calls of ``nvcc`` and NVRTC need a toolkit, or a GPU: see `register_cuda_compiler`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from heteroplace import nvrtc
from heteroplace.errors import LoweringError, MissingTVMError
from heteroplace.tvm_import import on_import

MIN_VERSION = (0, 12)
"""Oldest accepted TVM; older ones have no `te_compiler` of the form used here."""
MAX_VERSION = (0, 19)
"""Newest accepted TVM; later ones have no Relay."""

_LOGGERS_OF_SCHEDULES = ("autotvm", "strategy", "topi")
"""Where TVM warns that a kernel could be quicker."""
_RELAY_TRANSFORM = "tvm.relay.transform"
_REGISTER_CONFIG = "_ZN3tvm9transform11PassContext20RegisterConfigOptionEPKcj"
"""`static void PassContext::RegisterConfigOption(const char* key, uint32_t type_index)`"""
_HOW_TO_GET_TVM = "run `heteroplace setup-tvm`"

# LLVM 10 knows these names. It compiles newer ones ("x86-64-v3", "sapphirerapids", "znver4")
# for a generic CPU without AVX after printing an error, and detects new CPUs as "generic".
_CPU_BY_FLAGS = (
    (
        "cooperlake",
        {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"},
    ),
    ("cascadelake", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}),
    ("skylake-avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    ("haswell", {"avx2", "fma"}),
)
_AMX_FLAGS = ("amx_tile", "amx_bf16", "amx_int8")


def have_tvm() -> bool:
    """Tell whether a package `tvm` can be found; it is not imported."""
    return importlib.util.find_spec("tvm") is not None


def require_tvm() -> ModuleType:
    """Import TVM and return it, after checking its version and that it has Relay.

    TVM's look-up of tuned schedules on the network is switched off, unless the variable
    `TOPHUB_LOCATION` is set.

    Raises
    ------
    MissingTVMError
        There is no TVM, its library cannot be loaded, it has no Relay, or its version is none of
        0.12 to 0.19.
    """
    os.environ.setdefault("TOPHUB_LOCATION", "NONE")
    if not have_tvm():
        raise MissingTVMError(f"no TVM in {sys.prefix}: {_HOW_TO_GET_TVM}", name="tvm")
    try:
        tvm = importlib.import_module("tvm")
    except (ImportError, OSError, RuntimeError) as err:
        # OSError: the loader misses a library; RuntimeError: TVM found no libtvm.so at all.
        raise MissingTVMError(f"TVM cannot be loaded: {err}. Or {_HOW_TO_GET_TVM}") from err
    check_version(tvm.__version__)
    if importlib.util.find_spec("tvm.relay") is None:
        raise MissingTVMError(
            f"TVM {tvm.__version__} in {tvm.__path__[0]} has no Relay: {_HOW_TO_GET_TVM}"
        )
    return tvm


def check_version(version: str) -> None:
    """Raise MissingTVMError unless `version` ("0.17.dev0") is from `MIN_VERSION` to `MAX_VERSION`.

    >>> check_version("0.17.dev0")
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or not MIN_VERSION <= (int(match[1]), int(match[2])) <= MAX_VERSION:
        accepted = " to ".join(".".join(map(str, limit)) for limit in (MIN_VERSION, MAX_VERSION))
        raise MissingTVMError(
            f"TVM is version {version}, expected {accepted}: {_HOW_TO_GET_TVM}", name="tvm"
        )


@contextmanager
def lowering_by_tvm() -> Iterator[None]:
    """Let TVM's lowering ask once how its library was built and which instructions a target has.

    TVM asks for each extent of a shape, and sets LLVM up for each question about a target: that
    takes a tenth of the time of compiling a network. Warnings that schedules are not tuned, or not
    the best for a platform, are left out: `heteroplace tune` says what is left to gain.

    Not thread-safe: of two at a time, the one that ends last may leave the answers in place, which
    stay right.
    """
    te_compiler: Any = importlib.import_module("tvm.relay.backend.te_compiler")
    targets: Any = importlib.import_module("tvm.target.target")
    ask, has_feature = te_compiler.libinfo, targets._ffi_api.target_has_feature
    overrides = ask()
    answers: dict[tuple[str, Any], Any] = {}

    def has_feature_once(feature: str, target: Any) -> Any:
        key = feature, target or targets.Target.current()
        if key not in answers:
            answers[key] = has_feature(feature, target)
        return answers[key]

    te_compiler.libinfo = lambda: overrides
    targets._ffi_api.target_has_feature = has_feature_once
    loggers = [logging.getLogger(name) for name in _LOGGERS_OF_SCHEDULES]
    for logger in loggers:
        logger.addFilter(_is_no_warning)
    try:
        yield
    finally:
        te_compiler.libinfo = ask
        targets._ffi_api.target_has_feature = has_feature
        for logger in loggers:
            logger.removeFilter(_is_no_warning)


def _is_no_warning(record: logging.LogRecord) -> bool:
    return record.levelno != logging.WARNING


def add_to_relay_transform(
    name: str, make: Callable[[], object], config_types: Callable[[], Mapping[str, str]]
) -> None:
    """Make `tvm.relay.transform.NAME` exist, as what `make` returns when it is first asked for.

    `config_types` returns the keys of its options in a PassContext's config, with their types.

    TVM is not imported for it: it takes 1.5 s, and whoever plans without TVM has no use for it. If
    it is not loaded yet, the name is added when it is.
    """

    def add(module: ModuleType) -> None:
        # TVM's look-up of tuned schedules on the network; see `require_tvm`.
        os.environ.setdefault("TOPHUB_LOCATION", "NONE")

        others = module.__dict__.get("__getattr__")

        def get(option_name: str) -> object:
            if option_name == name:
                module.__dict__[name] = make()
                return module.__dict__[name]
            if others is not None:
                return others(option_name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {option_name!r}")

        module.__dict__["__getattr__"] = get
        _register_pass_config(config_types())

    loaded = sys.modules.get(_RELAY_TRANSFORM)
    if loaded is not None:
        add(loaded)
    else:
        on_import(_RELAY_TRANSFORM, partial(_then, add))


@contextmanager
def _then(act: Callable[[ModuleType], None], module: ModuleType) -> Iterator[None]:
    yield
    act(module)


def _register_pass_config(types: Mapping[str, str]) -> None:
    """Make keys of PassContext's config, each for values of a TVM type ("IntImm").

    TVM offers that to C++ alone; its own function for it is called by its exported symbol.
    """
    library = importlib.import_module("tvm._ffi.base")._LIB
    registered = importlib.import_module("tvm.ir.transform").PassContext.list_configs()
    for name, type_key in types.items():
        index = ctypes.c_uint()
        library.TVMObjectTypeKey2Index(type_key.encode(), ctypes.byref(index))
        if name not in registered:
            getattr(library, _REGISTER_CONFIG)(name.encode(), index)


def add_relay_op(
    name: str,
    describe: str,
    arguments: Mapping[str, tuple[str, str]],
    type_of: Callable[[Any, Any], Any],
    compute: Callable[[Any, Any, Any], list[Any]],
    schedule: Callable[[Any, Any, Any], Any] | None = None,
    is_fusable: bool = False,
    is_elementwise: bool = False,
    is_stateful: bool = False,
    infer_layout: Callable[[Any, Any, Any, Any], Any] | None = None,
) -> None:
    """Add an op to Relay; do nothing if it is known.

    Parameters
    ----------
    arguments
        By name their type and what they are, e.g. {"data": ("Tensor", "what is copied")}.
    type_of
        (types of the arguments, attributes) -> type of the result; None: they are not known yet.
    compute
        (attributes, tensors, type of the result) -> tensors, in TE.
    schedule
        (attributes, tensors, target) -> schedule; None: that of an injective op.
    is_fusable
        Elementwise ops behind it are fused with it, which its schedule must allow for; otherwise
        nothing is.
    is_elementwise
        It is fused with others as elementwise ops are.
    is_stateful
        It stays a call of its own: it is not computed while compiling, where it reads constants,
        nor made one with an equal one.
    infer_layout
        (attributes, new layouts of the arguments or None, old ones, their types) -> an
        `InferCorrectLayoutOutput`; None: it knows one layout.
    """
    tvm = require_tvm()
    # TVM refuses a second one of a name, and takes long to list those that it has.
    key = f"heteroplace.op.{name}"
    if tvm.get_global_func(key, allow_missing=True) is not None:
        return
    tvm.register_func(key, type_of)
    registry = importlib.import_module("tvm.relay.op.op")
    registry.register(name, describe)
    op = registry.get(name)
    op.set_num_inputs(len(arguments))
    for argument, what in arguments.items():
        op.add_argument(argument, *what)
    op.set_attrs_type_key("DictAttrs")
    op.set_support_level(10)
    op.add_type_rel(name, type_of)
    registry.register_stateful(name, is_stateful)
    registry.register_compute(name, compute)
    patterns = registry.OpPattern
    fusing = patterns.OUT_ELEMWISE_FUSABLE if is_fusable else patterns.OPAQUE
    fusing = patterns.ELEMWISE if is_elementwise else fusing
    registry.register_pattern(name, fusing)
    if infer_layout is not None:
        registry.register_infer_correct_layout(name, infer_layout)
    if schedule is None:
        registry.register_injective_schedule(name)
    else:
        registry.register_schedule(name, tvm.target.generic_func(schedule))


def add_op_gradients(gradients: Mapping[str, Callable[[Any, Any], Any]], level: int) -> None:
    """Give ops of Relay a gradient of ours, unless they have it already.

    Parameters
    ----------
    gradients
        Op name -> (call, gradient of its result) -> gradients of its operands, as for
        `relay.op.register_gradient`.
    level
        Of two gradients of one op TVM takes that of the higher level; its own have 10.
    """
    tvm = require_tvm()
    for name, gradient in gradients.items():
        # TVM refuses a second one of one level, and does not say what it has.
        key = f"heteroplace.gradient.{name}"
        if tvm.get_global_func(key, allow_missing=True) is None:
            tvm.register_func(key, gradient)
            tvm.ir.register_op_attr(name, "FPrimalGradient", gradient, level)


def pass_config(context: Any, prefix: str) -> dict[str, Any]:
    """Return what a PassContext's config says under keys of a prefix, as Python values."""
    return {
        str(name)[len(prefix) :]: _plain(value)
        for name, value in context.config.items()
        if str(name).startswith(prefix)
    }


def _plain(value: Any) -> Any:
    """The Python value of a TVM object of a configuration."""
    if hasattr(value, "value"):  # a number
        return value.value
    if isinstance(value, str):
        return str(value)
    return [_plain(item) for item in value] if hasattr(value, "__len__") else value


def library_path() -> Path:
    """Return the path of the loaded libtvm.so.

    Raises
    ------
    MissingTVMError
        As `require_tvm`.
    """
    tvm = require_tvm()
    return Path(tvm._ffi.base._LIB._name).resolve()


def llvm_cpu_target(flags: Iterable[str] | None = None) -> str:
    """Return the TVM target of a CPU with these features.

    Parameters
    ----------
    flags
        Names of features as in /proc/cpuinfo; None: those of this machine.

    Examples
    --------
    >>> llvm_cpu_target(["sse2", "avx", "avx2", "fma"])
    'llvm -mcpu=haswell'
    >>> llvm_cpu_target(["sse2"])
    'llvm'
    """
    present = _cpu_flags() if flags is None else frozenset(flags)
    for name, needed in _CPU_BY_FLAGS:
        if needed <= present:
            keys = " -keys=amx,cpu" if {"avx512_bf16", *_AMX_FLAGS} <= present else ""
            return f"llvm{keys} -mcpu={name}"
    return "llvm"


def _cpu_flags() -> frozenset[str]:
    """Return the features that every CPU of this machine has; none if the system does not say."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return frozenset()
    lines = re.findall(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE)
    return frozenset.intersection(*(frozenset(line.split()) for line in lines or [""]))


def register_onnx_mapping_shim() -> None:
    """Give onnx 1.19 and later the module `onnx.mapping` back, which TVM's importer reads.

    Does nothing for an older onnx, or the second time.
    """
    import onnx

    if importlib.util.find_spec("onnx.mapping") is not None:
        return
    table = {}
    for tensor_type in onnx.helper.get_all_tensor_dtypes():
        if tensor_type != onnx.TensorProto.UNDEFINED:
            table[int(tensor_type)] = onnx.helper.tensor_dtype_to_np_dtype(tensor_type)
    mapping: Any = types.ModuleType("onnx.mapping", "Types of tensors, for TVM's importer.")
    # find_spec asks a loaded module for it, and fails where there is none.
    mapping.__spec__ = importlib.util.spec_from_loader("onnx.mapping", loader=None)
    mapping.TENSOR_TYPE_TO_NP_TYPE = table
    sys.modules["onnx.mapping"] = mapping
    package: Any = onnx
    package.mapping = mapping


def register_cuda_compiler() -> None:
    """Make TVM compile CUDA code by NVRTC, for the `arch` of the target in hand.

    TVM then uses tensor cores only where their headers are installed. May be called again.

    Raises
    ------
    MissingTVMError
        As `require_tvm`.
    LoweringError
        NVRTC is not installed (here), or rejects the code (when TVM compiles; its target then stays
        the thread's current one).
    """
    tvm = require_tvm()
    compiler = nvrtc.load_nvrtc()
    has_tensor_cores = cache(partial(nvrtc.has_tensor_cores, compiler))

    def arch_of(target: Any) -> str:
        target = target or tvm.target.Target.current(allow_none=True)  # before TVM 0.13: always
        if target is None or "arch" not in target.attrs:
            raise LoweringError("the CUDA target has no arch: name one, as in 'cuda -arch=sm_80'")
        return str(target.attrs["arch"])

    def compile_for_target(code: str, target: Any = None) -> bytearray:
        return bytearray(nvrtc.compile_cuda(compiler, str(code), arch_of(target)))

    def have_tensorcore(version: str | None = None, target: Any = None) -> bool:
        return has_tensor_cores(arch_of(target) if version is None else f"sm_{version}")

    tvm.register_func("tvm_callback_cuda_compile", compile_for_target, override=True)
    # TVM's own looks at this machine's first GPU, not at the target, and at no headers.
    vars(importlib.import_module("tvm.contrib.nvcc"))["have_tensorcore"] = have_tensorcore
