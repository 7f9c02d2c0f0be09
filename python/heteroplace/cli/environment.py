"""What the JSON of every command says of the machine and the programs, and of measured times."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence

import heteroplace
from heteroplace.control_groups import processor_name
from heteroplace.stats import quantile

_TVM_PACKAGES = "tvm-relay", "apache-tvm", "tvm"
"""What packages of TVM are called: the wheel of `heteroplace setup-tvm`, and those of others."""


def environment_json() -> dict[str, object]:
    """Return the versions and the processor."""
    return {
        "versions": {
            "heteroplace": heteroplace.__version__,
            "tvm": _tvm_version(),
            "python": platform.python_version(),
        },
        "processor": processor_name(),
    }


def times_json(times_ns: Sequence[int]) -> dict[str, object]:
    """Return the percentiles of measured times, which ascend."""
    return {
        "median": quantile(times_ns, 0.5),
        "p90": quantile(times_ns, 0.9),
        "p99": quantile(times_ns, 0.99),
        "min": times_ns[0],
        "max": times_ns[-1],
        "runs": len(times_ns),
    }


def _tvm_version() -> str | None:
    """The version of the installed TVM, which runs compiled models; it is not loaded for that."""
    for name in _TVM_PACKAGES:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
