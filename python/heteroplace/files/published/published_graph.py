"""A file of the papers that the solvers come from -> its instance, whichever form it has."""

from __future__ import annotations

import os
from pathlib import Path

from heteroplace.errors import GraphError
from heteroplace.files.fields.kind_keys import (
    DNN_PARTITIONING,
    MOIRAI,
    PUBLISHED_KEYS,
    published_form,
)
from heteroplace.files.published.dnn_partitioning import import_dnn_partitioning
from heteroplace.files.published.moirai_files import import_moirai
from heteroplace.files.published.published_instance import PublishedInstance
from heteroplace.files.reader import read_json


def load_published(
    path: str | os.PathLike[str], *, is_steady: bool = False
) -> PublishedInstance | None:
    """Return the graph, devices and costs in a file of Moirai or of dnn-partitioning.

    Parameters
    ----------
    path
        Of any file; it is read whole only if it is of one of these forms.
    is_steady
        As of `import_dnn_partitioning`: time per item is minimised, not latency.

    Returns
    -------
    None: the file is of neither form, or is no regular file.

    Raises
    ------
    GraphError
        The file is of one of these forms and has faults; all are named.
    """
    if not Path(path).is_file():
        return None
    try:
        text = Path(path).read_bytes()
    except OSError:
        return None  # whoever reads it as a graph says so
    # Large graphs are not parsed twice: a file without these words is of neither form.
    if not any(f'"{keys[0]}"'.encode() in text for keys in PUBLISHED_KEYS.values()):
        return None
    form = published_form(read_json(path, GraphError))
    if form == MOIRAI:
        return import_moirai(path)
    return import_dnn_partitioning(path, is_steady=is_steady) if form == DNN_PARTITIONING else None
