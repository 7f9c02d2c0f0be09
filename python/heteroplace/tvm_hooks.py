"""What `import heteroplace` changes in TVM: more names, and no trace in the file system."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from heteroplace.options import Option, duration, options_of
from heteroplace.tvm_bridge import add_to_relay_transform
from heteroplace.tvm_import import keep_docstrings, keep_tvm_from_writing, quicken_tvm_import

_OPTIONS = "heteroplace.place_options"
_PASS_WITH_OPTIONS = "HeteroPlace"


def add_tvm_hooks(passes: Iterable[str], load: Callable[[str], object]) -> None:
    """Add what takes effect while TVM is imported, or at once if it is.

    Parameters
    ----------
    passes
        Names in `tvm.relay.transform` next to TVM's own passes.
    load
        Returns the pass of a name, when it is first used.
    """
    keep_tvm_from_writing()
    quicken_tvm_import()
    keep_docstrings()
    for name in passes:
        config_types = _config_types if name == _PASS_WITH_OPTIONS else dict
        add_to_relay_transform(name, partial(load, name), config_types)


def _config_types() -> Mapping[str, str]:
    """The keys of the pass in a PassContext's config, each with TVM's type of its values."""
    declared = importlib.import_module(_OPTIONS)
    entries = [entry for cls in declared.OPTION_CLASSES for entry in options_of(cls)]
    return {declared.CONFIG_PREFIX + entry.name: _type_key(entry) for entry in entries}


def _type_key(entry: Option) -> str:
    """TVM's type of an option's values in a PassContext."""
    if entry.join is not None:
        return "Array"  # TVM would make an object of the fields of a map
    numbers = {int: "IntImm", float: "FloatImm", duration: "FloatImm"}
    return numbers.get(entry.parse, "runtime.String")
