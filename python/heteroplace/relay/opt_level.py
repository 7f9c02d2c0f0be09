"""TVM's optimisation level outside of a PassContext is not the one that users expect."""

from __future__ import annotations

import logging

import tvm

_LOG = logging.getLogger("heteroplace")
_TVMS_DEFAULT = 2


def tell_default_level(context: tvm.transform.PassContext) -> None:
    """Log a warning where a network is compiled at the level that TVM has if nobody says one.

    Stock TVM is as slow there; explicit levels 0, 1 and 3 are what was asked for.
    """
    if context.opt_level == _TVMS_DEFAULT:
        _LOG.warning(
            "compiling at opt_level %d, TVM's default outside of a PassContext: weights are packed "
            "in every run and faster kernels are left out, which can take several times as long; "
            "around it `with tvm.transform.PassContext(opt_level=3):` has them",
            _TVMS_DEFAULT,
        )
