"""A network and the GPUs of this machine -> the quickest algorithm for each kernel of a library.

NVIDIA's libraries offer some algorithms for each kernel, likely ones first. They are timed side by
side, as kernels of one program of the executor: each run calls all of them, on the stream and with
the scratch memory that a plan has, and the one with the shortest median is taken (of equals the
first). What was chosen is kept in the store, by the kernel, what it multiplies in, the version of
the library and the GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from hashlib import blake2b

import numpy as np

from heteroplace.costs.optional_store import OptionalStore
from heteroplace.costs.tunings import TunedPlace, Tuning, add_trials, find_tunings
from heteroplace.errors import CostStoreError, ExecutionError, SolverError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.library_symbols import library_workspace_bytes
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import allowed_devices
from heteroplace.model.implementations import LibraryMaker
from heteroplace.native.compiled_file import DL_DEVICE_TYPES
from heteroplace.native.execute import Executor
from heteroplace.parts.kernels.native.core_libraries import library_algorithms, library_version
from heteroplace.parts.kernels.nvidia.libraries import LIBRARIES, Library
from heteroplace.parts.kernels.nvidia.library_kernels import LibraryKernel
from heteroplace.relay.tasks.network import Network
from heteroplace.relay.tasks.split_repeated import parts_between
from heteroplace.run.missing_devices import missing_devices
from heteroplace.stage_log import StageLog
from heteroplace.tvm_bridge import library_path

MAX_WORKSPACE_BYTES = 32 << 20
"""Scratch memory that an algorithm may need: what NVIDIA advises for Hopper, the most of all."""
MAX_ALGORITHMS = 16
"""That are timed for each kernel; the library offers the likely ones first."""

_WARM_RUNS = 3
_REFUSED = "STATUS_NOT_SUPPORTED"
"""In the name of the status of a library that has no such kernel."""
_STEP = re.compile(r"\bstep (\d+) failed")
"""In an error of the executor; a step of these programs is an algorithm."""
_TIMED_NS = 100_000_000
_MIN_RUNS, _MAX_RUNS = 5, 50


def known_library_kernels(
    network: Network, cluster: Cluster, maker: LibraryMaker, options: CostOptions
) -> dict[str, str]:
    """Return the symbols of a library's kernels in a network by their keys (`LibraryKernel.key`).

    Parameters
    ----------
    maker
        The library, and what is multiplied in.
    options
        Its store is asked first, and keeps what is found.

    Raises
    ------
    SolverError
        No GPU of the cluster is in this machine.
    ExecutionError
        There is no such library (the message says how to get it), or it fails.
    CostStoreError
        The store cannot be used, or what it holds is damaged.
    LoweringError
        An op cannot be compiled for a GPU.
    """
    library, precision = LIBRARIES[maker.option], maker.precision
    gpus = [index for index, each in enumerate(cluster.devices) if each.kind == "cuda"]
    gpus = [i for i in gpus if not missing_devices(cluster, [cluster.devices[i].name])]
    if not gpus:
        raise SolverError(
            f"{library.name}'s algorithms are timed on a GPU of the cluster, and none is in this "
            f"machine; place the model there, or with {library.option}='off'"
        )
    version = library_version(str(library_path()), library.symbols)
    compiled, kernels = CompiledNetwork.of(network), dict[str, str]()
    allowed = allowed_devices(compiled.graph, cluster)
    with options.open_store() as store:
        for gpu in gpus:
            placement = [gpu if gpu in ids else ids[0] for ids in allowed]
            chooser = _Chooser(library, cluster.devices[gpu], precision, version, store)
            for kernel in compiled.calls(cluster, placement).kernels.values():
                if kernel.function is None or kernel.target.kind.name != "cuda":
                    continue
                cuts = library.cuts(kernel.function)
                for part in map(library.find, parts_between(kernel.function, cuts)):
                    if part is None:
                        continue
                    key = part.key(precision, kernel.target)
                    symbol = kernels.get(key) or chooser.symbol(part, kernel.op)
                    if symbol:
                        kernels[key] = symbol
    StageLog.of(options.progress).detail(
        f"{len(kernels)} {library.kernel}s of {library.name} {version}, in {precision}"
    )
    return kernels


class _Chooser:
    """Chooses algorithms on one GPU."""

    def __init__(
        self,
        library: Library,
        device: Device,
        precision: str,
        version: int,
        store: OptionalStore | None,
    ) -> None:
        self._kind = library.symbols
        self._device = device
        self._precision = precision
        self._version = version
        self._store = store
        self._kept: dict[str, Tuning] = {}
        if store is not None:
            self._place = TunedPlace(device.target, device_fingerprint(device))
            with store.optional():
                self._kept = find_tunings(store, self._place)

    def symbol(self, kernel: LibraryKernel, op: str) -> str:
        """The symbol of a kernel with its quickest algorithm; "": the library has none."""
        text = f"{self._kind} {self._version} {self._precision} {kernel.name}"
        digest = blake2b(text.encode(), digest_size=12).hexdigest()
        if digest in self._kept:
            return self._read(self._kept[digest], kernel)
        symbols = library_algorithms(
            str(library_path()),
            self._device.index,
            kernel.unchosen(self._precision),
            MAX_WORKSPACE_BYTES,
            MAX_ALGORITHMS,
        )
        times = time_algorithms(self._device.index, kernel, symbols)
        symbol = min(times, key=lambda each: times[each], default="")
        if self._store is not None:
            name = json.dumps([self._kind, symbol]) if symbol else ""
            found_ns = times.get(symbol, 0)
            date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            rest = ("", 0, 0, date)
            tuning = Tuning(digest, op, kernel.name, len(symbols), name, found_ns, *rest)
            with self._store.optional():
                add_trials(self._store, self._place, tuning)
            self._kept[digest] = tuning
        return symbol

    def _read(self, tuning: Tuning, kernel: LibraryKernel) -> str:
        """The symbol that the store keeps of a kernel."""
        if not tuning.found:
            return ""
        head = kernel.head(self._precision, self._version)
        try:
            kind, symbol = json.loads(tuning.found)
        except (ValueError, TypeError) as err:
            raise self._damaged(tuning) from err
        if kind != self._kind or not str(symbol).startswith(head):
            raise self._damaged(tuning)
        return str(symbol)

    def _damaged(self, tuning: Tuning) -> CostStoreError:
        path = "" if self._store is None else f"{self._store.path}: "
        return CostStoreError(
            f"{path}the algorithm of {tuning.op} {tuning.shapes} is damaged; remove what was "
            f"tuned: heteroplace costs forget --tuned"
        )


def time_algorithms(device: int, kernel: LibraryKernel, symbols: list[str]) -> dict[str, int]:
    """Return the ns of each algorithm of a kernel on a GPU: medians of runs that call all.

    A library offers algorithms of the plain product or convolution, and may refuse one when it is
    called with a bias and an activation; those have no time.

    Parameters
    ----------
    device
        Ordinal of the GPU.
    symbols
        The kernel with each algorithm.

    Raises
    ------
    ExecutionError
        The library fails, or the GPU's memory is too small for the kernel.
    """
    if not symbols:
        return {}
    # Drawn once: a large convolution has millions of numbers, and several programs may be needed.
    random = np.random.default_rng(0)
    sizes = kernel.operand_sizes
    arrays = {at: random.standard_normal(sizes[at], dtype="float32") for at in sorted(sizes)}
    return _times_of_accepted(device, kernel, symbols, arrays)


def _times_of_accepted(
    device: int, kernel: LibraryKernel, symbols: list[str], arrays: Mapping[int, np.ndarray]
) -> dict[str, int]:
    """The ns of the algorithms that the library does not refuse."""
    left = list(symbols)
    while left:
        try:
            return _times(device, kernel, left, arrays)
        except ExecutionError as err:
            if _REFUSED not in str(err):
                raise
            step = _STEP.search(str(err))
        if step is None and len(left) > 1:  # one of them cannot be loaded
            alone = [_times_of_accepted(device, kernel, [each], arrays) for each in left]
            return {symbol: ns for each in alone for symbol, ns in each.items()}
        del left[int(step[1]) if step else 0]
    return {}


def _times(
    device: int, kernel: LibraryKernel, symbols: list[str], arrays: Mapping[int, np.ndarray]
) -> dict[str, int]:
    executor = Executor(str(library_path()), "", _program(device, kernel, symbols))
    for at, array in arrays.items():
        executor.set_input(_operand(at), array)
    run_ns = max(1, int(min(executor.benchmark(_WARM_RUNS))))
    num_runs = min(_MAX_RUNS, max(_MIN_RUNS, _TIMED_NS // run_ns))
    times = np.median(executor.profile_runs(num_runs), axis=0)
    return {symbol: max(1, int(ns)) for symbol, ns in zip(symbols, times, strict=True)}


def _operand(at: int) -> str:
    """The name of an input of `_program`."""
    return f"operand{at}"


def _program(device: int, kernel: LibraryKernel, symbols: list[str]) -> str:
    """A program that calls a kernel with each algorithm."""
    sizes, whole = kernel.operand_sizes, kernel.result_size
    inputs = {_operand(at): sizes[at] for at in sorted(sizes)}
    type_ = DL_DEVICE_TYPES["cuda"]
    workspace = max(map(library_workspace_bytes, symbols))
    lines = [
        "heteroplace-program 1",
        f"space 0 gpu {type_} {device} 64",
        f"queue 0 gpu cuda {type_} {device} 0 -",
        f"workspace 0 {workspace}",
        *(f"tensor {at} 0 external - 2 32 {size}" for at, size in enumerate(inputs.values())),
        f"tensor {len(inputs)} 0 external - 2 32 {whole}",
        *(f"input {name} {at}" for at, name in enumerate(inputs)),
        f"output result {len(inputs)}",
        *(f"kernel {at} {symbol}" for at, symbol in enumerate(symbols)),
    ]
    tensors = ",".join(map(str, range(len(inputs) + 1)))
    lines += [f"call 0 {at} {at} 1 {tensors} -" for at in range(len(symbols))]
    return "\n".join([*lines, "end", ""])
