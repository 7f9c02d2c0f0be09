"""The fake CUDA of this process: faults to come, rules that were broken, what still lives."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import NamedTuple

from heteroplace.native.execute import Executor

NAME = "libcudart.so.12"
VERSIONS = {"cublaslt": 120_903, "cudnn": 91_002}
"""Of the fake libraries."""


class Live(NamedTuple):
    """Numbers of objects that were made and not given back."""

    memory: int
    pinned: int
    streams: int
    events: int
    modules: int
    graphs: int
    library_objects: int
    """Handles and descriptions of cuBLASLt and cuDNN."""


class FakeCuda:
    """Calls the fake. Not thread-safe."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(NAME)
        for name in ("fake_cuda_set", "fake_cublaslt_set", "fake_cudnn_set"):
            getattr(self._library, name).argtypes = [ctypes.c_char_p, ctypes.c_int64]

    @staticmethod
    def is_loaded() -> bool:
        """Whether this process has the fake, and not NVIDIA's library."""
        return hasattr(ctypes.CDLL(NAME), "fake_cuda_reset")

    def fail(self, function: str, after_calls: int = 0, code: int = 2) -> None:
        """Let a call of a function fail with an error code, or hang (a kernel, code -1).

        "kernel NAME" stands for the execution of a kernel, long after its launch.
        """
        self._library.fake_cuda_fail(function.encode(), after_calls, code)

    def is_pending(self, function: str) -> bool:
        """Whether the failure of a function has still to come."""
        return bool(self._library.fake_cuda_is_pending(function.encode()))

    def calls(self) -> dict[str, int]:
        """Calls of each function so far."""
        text = ctypes.create_string_buffer(1 << 16)
        self._library.fake_cuda_counts(text, len(text))
        lines = text.value.decode().splitlines()
        parted = [line.rpartition(" ") for line in lines]
        return {name: int(count) for name, _, count in parted if name}

    def machine_code_loads(self) -> int:
        """Images that were loaded as machine code."""
        return self.calls().get("(machine code)", 0)

    def issued(self, device: int) -> tuple[int, str]:
        """Threads that issued work to a device during runs, and what they called, a line each."""
        text = ctypes.create_string_buffer(1 << 16)
        return int(self._library.fake_cuda_issued(device, text, len(text))), text.value.decode()

    def reports(self) -> str:
        """Rules that were broken since the last call, a line each."""
        text = ctypes.create_string_buffer(1 << 16)
        self._library.fake_cuda_reports(text, len(text))
        return text.value.decode()

    def live(self) -> Live:
        """What lives."""
        counts = (ctypes.c_int64 * 7)()
        self._library.fake_cuda_live(counts)
        return Live(*counts)

    def set(self, name: str, value: int) -> None:
        """Set num_devices, delay_ns, clock_ahead_ns, can_pin, max_registered_bytes, has_peers,
        max_peers, has_words, has_one_channel, is_released.

        With one channel all work of a device is begun in the order of issue, whatever its stream.
        """
        self._library.fake_cuda_set(name.encode(), value)

    def set_library(self, library: str, name: str, value: int) -> None:
        """Set version or has_algorithms of the fake "cublaslt" or "cudnn", or refused_when_fused of
        the latter."""
        getattr(self._library, f"fake_{library}_set")(name.encode(), value)

    def reset(self) -> None:
        """Forget faults and reports, as a new process."""
        self._library.fake_cuda_reset()
        for library, version in VERSIONS.items():
            self.set_library(library, "version", version)
            self.set_library(library, "has_algorithms", 1)
        self.set_library("cudnn", "refused_when_fused", -1)
        for name, value in (
            ("num_devices", 2),
            ("delay_ns", 20_000),
            ("clock_ahead_ns", 0),
            ("can_pin", 1),
            ("max_registered_bytes", 1 << 40),
            ("has_peers", 1),
            ("max_peers", 8),
            ("has_words", 1),
            ("has_one_channel", 0),
        ):
            self.set(name, value)

    def has_peer(self, device: int, peer: int) -> bool:
        """Whether a device may use the memory of another one."""
        return bool(self._library.fake_cuda_has_peer(device, peer))

    def current_device(self) -> int:
        """Current device of the calling thread."""
        device = ctypes.c_int(-1)
        assert self._library.cudaGetDevice(ctypes.byref(device)) == 0
        return device.value

    def last_error(self) -> int:
        """What the runtime has kept of the calling thread's failed calls; it is forgotten."""
        return int(self._library.cudaGetLastError())

    def current_context(self) -> int | None:
        """Current context of the calling thread; None: it has none."""
        context = ctypes.c_void_p()
        assert self._library.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    def has_context(self, device: int) -> bool:
        """Whether the context of a device that the runtime works in has been made."""
        flags, is_active = ctypes.c_uint(), ctypes.c_int()
        out = (ctypes.byref(flags), ctypes.byref(is_active))
        assert self._library.cuDevicePrimaryCtxGetState(device, *out) == 0
        return bool(is_active.value)

    @contextlib.contextmanager
    def own_context(self, device: int) -> Iterator[int | None]:
        """Give the calling thread a context that is not the runtime's."""
        context = ctypes.c_void_p()
        assert self._library.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
        try:
            yield context.value
        finally:
            assert self._library.cuCtxDestroy_v2(context) == 0

    def set_current_device(self, device: int) -> None:
        """Set the current device of the calling thread."""
        assert self._library.cudaSetDevice(device) == 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Forbid other threads than this one to block in the driver, to allocate or to load."""
        self._library.fake_cuda_running(1)
        try:
            yield
        finally:
            self._library.fake_cuda_running(0)

    def run(self, executor: Executor) -> None:
        """Run once, under the rules of a run."""
        with self.running():
            executor.run()
