"""Measure kernels on another machine that runs TVM's RPC server (`python -m tvm.exec.rpc_server`).

Kernels are compiled and linked here, sent over, and timed there by TVM's time evaluator, each
alone: our executor need not be installed there. So there are no times in place and no processor
times. Cold is TVM's notion of it: all arguments but the first one are dropped from the caches.

The library is linked by this machine's compiler, so the other one must have the same kind of
system and instruction set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import rpc

from heteroplace.costs.measurement import Measurement
from heteroplace.costs.sampling import KernelSample, Sampling, SamplingOptions, Summary
from heteroplace.errors import ClusterError, ExecutionError
from heteroplace.files.measurements import KernelKey
from heteroplace.lower.kernels import KernelCall, KernelCalls
from heteroplace.lower.library import (
    KernelLibrary,
    compile_kernels,
    link,
    temporary_folder,
)
from heteroplace.measure.conditions import Watch
from heteroplace.measure.example_inputs import made_up
from heteroplace.measure.isolated import COLD
from heteroplace.measure.kernels.kernel_calls import only_calls
from heteroplace.measure.profiler import Profiler, make_measurement
from heteroplace.measure.requests import MeasurementRequest
from heteroplace.model.cluster import Device

_LIBRARY = "heteroplace-kernels.so"
_FLUSH = "cache_flush_cpu_non_first_arg"
_FASTEST_CORES = 1
"""TVM's way to choose cores: the fastest ones, a thread on each."""
_MIN_SAMPLE_NS = 20_000
_WARM_SAMPLES = 3
_SERIAL = "heteroplace_run_serially"
_SERIAL_SOURCE = """
// Makes the parallel loops of this library plain loops, for times of one core: TVM's pool takes
// microseconds to launch even one thread. The pointer is absent where no kernel has such a loop.
struct Environment { void* sync; int num_task; };
typedef int (*Body)(int task, Environment*, void*);
typedef int (*Launch)(Body, void*, int);
extern "C" __attribute__((weak)) Launch __TVMBackendParallelLaunch;
static int LaunchSerially(Body body, void* closure, int) {
  Environment environment = {0, 1};
  return body(0, &environment, closure);
}
extern "C" __attribute__((visibility("default")))
int heteroplace_run_serially(void*, int*, int, void*, int*, void*) {
  if (&__TVMBackendParallelLaunch != 0) __TVMBackendParallelLaunch = LaunchSerially;
  return 0;
}
"""


@dataclass(frozen=True)
class RpcHost:
    """Another machine, which runs TVM's RPC server."""

    host: str
    """Name that devices of the cluster have as `host`."""
    address: str
    port: int

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Connect; what TVM raises inside becomes an ExecutionError that names the machine."""
        try:
            # A timeout would be that of the whole session, however many kernels there are.
            yield rpc.connect(self.address, self.port)
        except (tvm.error.RPCError, tvm.error.RPCSessionTimeoutError, RuntimeError) as err:
            last = (str(err).strip().splitlines() or ["no reason given"])[-1]
            raise ExecutionError(
                f"host {self.host!r} ({self.address}:{self.port}): {last}. Is TVM's RPC server "
                f"running there (python -m tvm.exec.rpc_server)?"
            ) from err

    def fingerprint(self, device: Device) -> str:
        """Return what stands for a device of that machine in the store.

        TVM's server tells what a GPU is, but not what a processor is: that goes by the name of the
        host, which must not be given to another machine later.

        Raises
        ------
        ExecutionError
            The machine does not answer.
        ClusterError
            The device is neither a CPU nor a GPU, or does not exist there.
        """
        if device.kind not in ("cpu", "cuda"):
            raise ClusterError(
                f"device {device.name!r} is of kind {device.kind!r}; only cpu and cuda can be "
                f"measured"
            )
        if device.kind == "cpu":
            return f"processor of host {self.host}"
        with self.session() as remote:
            gpu = remote.cuda(device.index)
            if not gpu.exist:
                raise ClusterError(
                    f"device {device.name!r}: host {self.host!r} has no GPU {device.index}"
                )
            return (
                f"{gpu.device_name}; compute capability {gpu.compute_version}; "
                f"{gpu.multi_processor_count} cores; {gpu.max_clock_rate // 1000} MHz"
            )

    def measure(
        self,
        request: MeasurementRequest,
        stored: Mapping[KernelKey, Measurement],
        profiler: Profiler,
    ) -> None:
        """Measure there what is requested and not known yet; see `RemoteHost.measure`."""
        missing = request.missing(stored)
        if not missing:
            return
        calls = request.calls
        device = profiler.cluster.devices[request.under_test.device]
        symbols = dict.fromkeys(calls.calls[call].kernel for call in missing.values())
        library = compile_kernels([calls.kernels[symbol] for symbol in symbols])
        with profiler.measuring(), self.session() as remote:
            module = _load(remote, library)
            if device.kind == "cpu" and len(device.cores) <= 1:
                module.get_function(_SERIAL)()
            elif device.kind == "cpu":
                remote.get_function("runtime.config_threadpool")(_FASTEST_CORES, len(device.cores))
            place = remote.device(device.kind, device.index if device.kind == "cuda" else 0)
            for key, call_id in missing.items():
                call = calls.calls[call_id]
                kernel = request.kernels[call.kernel]
                profiler.count()
                watch = Watch.start()
                limit_ns = profiler.limit_ns(profiler.options.sampling.max_ns)
                options = replace(profiler.options.sampling, max_ns=limit_ns)
                summary = _sample(
                    module, call, arguments(calls, call, place), place, key.mode, options
                )
                # How busy the other machine is, nobody here knows; this one only waits.
                conditions = replace(watch.conditions(None), others_cores=0.0)
                profiler.keep({key: make_measurement(kernel, summary, conditions)})


def _load(remote: Any, library: KernelLibrary) -> Any:
    """Send a library with the function `_SERIAL` in it, and load it there."""
    with temporary_folder() as folder:
        source, linked = folder / "serial.cc", folder / _LIBRARY
        source.write_text(_SERIAL_SOURCE)
        for name, content in library.objects.items():
            (folder / name).write_bytes(content)
        link([*(folder / name for name in library.objects), source], linked)
        remote.upload(bytearray(linked.read_bytes()), target=_LIBRARY)
    return remote.load_module(_LIBRARY)


def arguments(calls: KernelCalls, call: KernelCall, place: Any) -> list[tvm.nd.NDArray]:
    """Return arguments for a kernel call on a device, in its order: weights, and made-up data."""
    random = np.random.default_rng(0)
    alone = only_calls(calls, [call])
    tensors = []
    for value_id in (*call.reads, *call.writes):
        value = alone.values[value_id]
        array = tvm.nd.empty(value.shape, value.dtype, place)
        if value.constant is not None:
            array.copyfrom(value.constant)
        elif value.dtype != "bfloat16":  # numpy has none; whatever lies there takes as long
            array.copyfrom(made_up(value, random))
        tensors.append(array)
    return tensors


def _sample(
    module: Any, call: KernelCall, values: list[tvm.nd.NDArray], place: Any, mode: str,
    options: SamplingOptions,
) -> Summary:  # fmt: skip
    flush = _FLUSH if mode == COLD else ""

    def times(repeat: int, number: int) -> list[int]:
        run = module.time_evaluator(call.kernel, place, number, repeat, f_preproc=flush)
        return [max(1, round(seconds * 1e9)) for seconds in run(*values).results]

    call_ns = min(times(_WARM_SAMPLES, 1))
    # The flush comes before a sample, so that only its first call is cold.
    number = 1 if mode == COLD else max(1, -(-_MIN_SAMPLE_NS // call_ns))
    sampling = Sampling(number, options)
    num_samples = options.min_samples
    while sampling.ended_by() is None:
        sampling.add([KernelSample(ns * number, 0) for ns in times(num_samples, number)])
        num_samples = max(1, sampling.num_samples // 4)
    return sampling.summary()
