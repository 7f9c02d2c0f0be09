"""The PassContext around a call -> the level at which its network is optimised; inner contexts.

TVM's own default is 2: weights are packed in every run, and faster kernels are left out. A caller
who opens no PassContext gets `DEFAULT_LEVEL`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tvm

_LOG = logging.getLogger("heteroplace")
DEFAULT_LEVEL = 3
"""The level outside of a PassContext, and that of the command line."""
_TVMS_DEFAULT = 2


@contextmanager
def default_opt_level() -> Iterator[None]:
    """Optimise at `DEFAULT_LEVEL` within, unless the caller has opened a PassContext.

    It also decorates functions.
    """
    if has_opened_context():
        yield
        return
    with default_context():
        yield


def default_context() -> tvm.transform.PassContext:
    """Return a context of `DEFAULT_LEVEL`, for programs that know that nobody has opened one."""
    return tvm.transform.PassContext(opt_level=DEFAULT_LEVEL)


def inner_context(
    config: Mapping[str, Any], instruments: Sequence[Any] = ()
) -> tvm.transform.PassContext:
    """Return the context in force with more options, and with these instruments alone."""
    outer: Any = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=int(outer.opt_level),
        required_pass=[str(name) for name in outer.required_pass],
        disabled_pass=[str(name) for name in outer.disabled_pass],
        instruments=list(instruments),
        config={**dict(outer.config.items()), **config},
    )


def has_opened_context() -> bool:
    """Return whether this thread is inside a PassContext that somebody opened.

    TVM's default context equals `PassContext()`, and TVM offers no query that tells them apart.
    But only an opened context can be left: to leave the default one is an error, which changes
    nothing, and takes 0.2 s if it is TVM's first error. An opened one is entered again at once.
    One with instruments, which would notice that, is never TVM's default.
    """
    context = tvm.transform.PassContext.current()
    is_plain = not (context.instruments or context.config)
    if context.opt_level != _TVMS_DEFAULT or not is_plain:
        return True
    try:
        context.__exit__(None, None, None)
    except tvm.TVMError:
        return False
    context.__enter__()
    return True


def warn_of_low_level(context: tvm.transform.PassContext) -> None:
    """Log a warning where a caller's PassContext has the level that TVM gives it by default."""
    if context.opt_level == _TVMS_DEFAULT:
        _LOG.warning(
            "compiling at opt_level %d, the default of TVM's PassContext: weights are packed in "
            "every run and faster kernels are left out, which can take several times as long; "
            "`with tvm.transform.PassContext(opt_level=%d):` has them",
            _TVMS_DEFAULT,
            DEFAULT_LEVEL,
        )
