"""Ctrl-C is raised where Python drops it or another error hides it."""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from heteroplace.interrupts import Interrupts, interruptible


@contextmanager
def heeded() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def work() -> None:
    """Python that goes on, up to ten seconds, if nothing ends it."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        pass


def in_callback() -> None:
    """Press Ctrl-C where ctypes drops what is raised."""
    ctypes.CFUNCTYPE(None)(press)()
    work()


def in_finalizer() -> None:
    class Value:
        def __del__(self) -> None:
            press()

    Value()
    work()


def in_error() -> None:
    try:
        press()
    except KeyboardInterrupt:
        raise AttributeError("body") from None


@pytest.mark.parametrize("interrupted", [press, in_callback, in_finalizer, in_error])
def test_ctrl_c_is_an_interrupt_wherever_it_comes(interrupted, capsys) -> None:
    hook = sys.unraisablehook
    with heeded():
        with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
            interrupted()
        assert interrupts.count == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_an_interrupt_within_another_counter_is_counted_by_both() -> None:
    @interruptible
    def inner() -> None:
        in_error()

    with heeded(), pytest.raises(KeyboardInterrupt), Interrupts() as outer:
        inner()
    assert outer.count == 1


def test_errors_without_ctrl_c_and_best_plans_after_it_stay() -> None:
    with heeded():
        with pytest.raises(AttributeError), Interrupts():
            raise AttributeError("body")
        with Interrupts() as interrupts:
            with pytest.raises(KeyboardInterrupt):
                press()
            interrupts.ends_work = False
        # A solver takes its best plan, and the command goes on.
        with Interrupts(), pytest.raises(KeyboardInterrupt):
            press()


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            press()
        assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.relay
@pytest.mark.parametrize("depth", [1, 3])
def test_ctrl_c_passes_through_callbacks_of_tvm(depth: int) -> None:
    tvm = pytest.importorskip("tvm")

    def call(left: int) -> None:
        if left == 0:
            _thread.interrupt_main()
            work()
        else:
            tvm.runtime.convert(lambda: call(left - 1))()

    with heeded(), pytest.raises(KeyboardInterrupt), Interrupts():
        call(depth)


@pytest.mark.relay
def test_ctrl_c_passes_through_callbacks_by_ctypes() -> None:
    """Where TVM's Cython interface is missing."""
    test = f"{__file__}::test_ctrl_c_passes_through_callbacks_of_tvm"
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        command, env={**os.environ, "TVM_FFI": "ctypes"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
