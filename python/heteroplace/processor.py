"""What Linux says of the processor -> its name."""

from __future__ import annotations

from pathlib import Path

from heteroplace.control_groups import read_text

_ANSWERS = ("model name", "Hardware", "cpu model", "cpu")
"""Keys under which /proc/cpuinfo names the processor: x86, older ARM, MIPS, POWER."""


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
