"""What Linux lets this process have -> cores and memory: its affinity and its control groups.

Also the name of the processor.

Everything is read from files below a root folder, so that those of another machine can be read too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 of control groups writes "no limit" as a huge number."""
_ANSWERS = ("model name", "Hardware", "cpu model", "cpu")
"""Keys under which /proc/cpuinfo names the processor: x86, older ARM, MIPS, POWER."""


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many threads of this process can run at once; at least 1.

    Those are the processors that it may run on, or as many whole ones as a container's quota pays
    for.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = quota_cores(root)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that the process may use; None: no group limits it."""
    limit = _least(root, "memory", {"memory.max": _limit_v2, "memory.limit_in_bytes": _limit_v1})
    return None if limit is None else int(limit)


def quota_cores(root: Path = Path("/")) -> float | None:
    """Return how much processor time the process gets per time, in cores; None: no limit."""
    return _least(root, "cpu", {"cpu.max": _quota_v2, "cpu.cfs_quota_us": _quota_v1})


def _least(
    root: Path, controller: str, readers: dict[str, Callable[[Path], float | None]]
) -> float | None:
    """The tightest limit of this process's control group and of those around it; None: none."""
    limits = []
    for folder in _group_folders(root, controller):
        for name, read in readers.items():
            limit = read(folder / name) if (folder / name).is_file() else None
            if limit is not None:
                limits.append(limit)
    return min(limits, default=None)


def _group_folders(root: Path, controller: str) -> list[Path]:
    """Folders of the process's control group and of all around it, of either version.

    In a container the path in /proc may be one of the host that is not visible here; then only the
    folders above it that exist are left, at last the container's own.
    """
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            bases = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            bases = [mount / controllers, mount / controller]
        else:
            continue
        inner = Path(path.strip("/"))
        for base in bases:
            folders += [base / inner, *(base / above for above in inner.parents)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _limit_v2(path: Path) -> float | None:
    text = read_text(path)
    return None if text in ("", "max") else int(text)


def _limit_v1(path: Path) -> float | None:
    limit = int(read_text(path) or _NO_LIMIT_BYTES)
    return None if limit >= _NO_LIMIT_BYTES else limit


def _quota_v2(path: Path) -> float | None:
    quota, period = (read_text(path) or "max 1").split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(path: Path) -> float | None:
    quota = int(read_text(path) or -1)
    period = read_text(path.with_name("cpu.cfs_period_us"))
    return None if quota < 0 else quota / int(period or 100_000)


def read_text(path: Path) -> str:
    """Return the stripped text of a file; "" where there is none, or it may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def processor_name(root: Path = Path("/")) -> str:
    """Return the name of this computer's processor; "" if Linux does not say it.

    Parameters
    ----------
    root : path
        Folder that holds `proc`.
    """
    return cpu_model(read_text(root / "proc/cpuinfo"))


def cpu_model(cpuinfo: str) -> str:
    """Return the name of the processor in the text of /proc/cpuinfo; "" if it has none.

    >>> cpu_model("processor : 0\\nmodel name : AMD EPYC 7763\\n")
    'AMD EPYC 7763'
    """
    fields = first_fields(cpuinfo)
    return next((fields[key] for key in _ANSWERS if fields.get(key)), "")


def first_fields(cpuinfo: str) -> dict[str, str]:
    """Return each key of /proc/cpuinfo with its first value.

    >>> first_fields("processor : 0\\nflags : a b\\n\\nprocessor : 1\\n")
    {'processor': '0', 'flags': 'a b'}
    """
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), " ".join(value.split()))
    return fields
