"""What a user would run instead: stock TVM's graph executor.

Each peer owns one thread. TVM keeps a pool of workers for each calling thread, so that two
configurations (one core, all cores) live in one process only if each is called from its own; and
the thread is bound to the peer's cores, so that a one-core peer has the core that our one-core plan
has.
"""

from __future__ import annotations

import logging
import resource
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relay
from tvm.contrib import graph_executor

from heteroplace.measure.bound_thread import BoundThread, configure_threads
from heteroplace.measure.timed_runs import time_runs
from heteroplace.tvm_bridge import register_onnx_mapping_shim

OPT_LEVEL = 3


class StockExecutor:
    """A library of `relay.build` in TVM's graph executor, on some cores.

    Not thread-safe.

    Parameters
    ----------
    library
        What `relay.build` returned.
    inputs
        Values by name; they stay set.
    cores
        Cores of the main thread and its helpers: one thread for each.
    """

    def __init__(
        self, library: Any, inputs: Mapping[str, np.ndarray], cores: Sequence[int]
    ) -> None:
        self._thread = BoundThread("stock-tvm", cores)
        self._inputs = dict(inputs)
        self._module = self._thread.call(self._make, library, inputs, cores)

    @staticmethod
    def _make(library: Any, inputs: Mapping[str, np.ndarray], cores: Sequence[int]) -> Any:
        configure_threads(cores)
        module = graph_executor.GraphModule(library["default"](tvm.cpu(0)))
        for name, array in inputs.items():
            module.set_input(name, tvm.nd.array(array))
        return module

    def run(self) -> list[np.ndarray]:
        """Run once and return the outputs."""

        def run() -> list[np.ndarray]:
            self._module.run()
            count = self._module.get_num_outputs()
            return [self._module.get_output(index).numpy() for index in range(count)]

        return self._thread.call(run)

    def benchmark(self, num_runs: int) -> list[int]:
        """Run `num_runs` times; return the wall time of each in ns."""
        return self._thread.call(time_runs, self._module.module["run"], num_runs)

    def time_calls(self, num_runs: int, pause_s: float = 0.0) -> list[int]:
        """Return the wall time, in ns, of calls from arrays to arrays; see `time_runs`."""
        count = self._module.get_num_outputs()

        def call() -> None:
            for name, array in self._inputs.items():
                self._module.set_input(name, array)
            self._module.run()
            for index in range(count):
                self._module.get_output(index).numpy()

        return self._thread.call(time_runs, call, num_runs, pause_s)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()


def import_stock(
    model: onnx.ModelProto,
) -> tuple[tvm.IRModule, Mapping[str, tvm.nd.NDArray]]:
    """Import a model by TVM's own front end, with the settings that are its default."""
    register_onnx_mapping_shim()
    with warnings.catch_warnings():
        # It warns where the ONNX checker is stricter than itself.
        warnings.simplefilter("ignore")
        mod, params = relay.frontend.from_onnx(model)
    return mod, params


def build_stock(mod: tvm.IRModule, params: Mapping[str, tvm.nd.NDArray], target: str) -> Any:
    """Compile by `relay.build` for one CPU target."""
    with in_pass_context():
        return relay.build(mod, target=target, params=dict(params))


def in_pass_context() -> tvm.transform.PassContext:
    """Return the context under which everything is compiled, ours and stock: opt level 3."""
    return tvm.transform.PassContext(opt_level=OPT_LEVEL)


def silence_tuning_hint() -> None:
    """Switch off TVM's hint that schedules are not tuned: the peers and we use the same ones."""
    logging.getLogger("autotvm").setLevel(logging.ERROR)


def cpu_seconds() -> float:
    """Return the processor time of this process and of the programs that it ran, in seconds."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
