"""A network of a chosen bandwidth and delay between ranks of one machine, without being root.

`python -m benchmarks.ranks.shaped` runs in a user namespace of its own (`unshare -Urn`). It
gives each rank a network namespace with one interface, a TUN device, and is itself the wire: what
one rank sends it reads, holds back as long as the link would take, and writes to the other. So no
byte goes another way, and the interfaces' counters tell how many went. The kernel's own queueing
disciplines would do it too, where they are (netem often is not).

Between any two ranks each direction has its bandwidth alone, first in, first out.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heteroplace.errors import ExecutionError

INTERFACE = "shaped0"
_MTU = 65000
"""Bytes of a packet: few and large ones, so that the wire costs little processor time."""
_BUFFER_BYTES = 16 << 20
"""Of a connection: more than any link has under way, so that the window never limits it."""
_FIRST_DESCRIPTOR = 200
"""Of the namespaces, by rank from here on."""
_LOOK_S = 0.02
_RESEND_S = 10
"""Before this a connection sends nothing again: the wire loses nothing, however long it takes."""
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True)
class ShapedLink:
    """What goes from one rank to one other."""

    bits_per_second: int
    delay_ns: int
    """One way."""

    @property
    def name(self) -> str:
        """Return it as text.

        >>> ShapedLink(10**8, 5_000_000).name
        '0.1 Gbit/s, 5 ms'
        """
        return f"{self.bits_per_second / 1e9:g} Gbit/s, {self.delay_ns / 1e6:g} ms"


def environment(num_ranks: int) -> dict[str, str]:
    """Return what MPICH must be told to use the interface, and no shared memory."""
    return {
        # Ranks of different cliques are on different machines for it.
        "MPIR_CVAR_NUM_CLIQUES": str(num_ranks),
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": INTERFACE,
    }


def shaped_command(
    link: ShapedLink, num_ranks: int, launcher: Sequence[str], program: Sequence[str]
) -> list[str]:
    """Return the command that runs `launcher program` with each rank behind such links."""
    own = [sys.executable, "-m", __name__, str(link.bits_per_second), str(link.delay_ns)]
    return ["unshare", "-Urn", *own, str(num_ranks), *launcher, "--", *program]


def why_not() -> str:
    """Return why ranks cannot be put behind such links on this machine; "": they can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        return f"there is no {', '.join(missing)} (util-linux, iproute2)"
    command = shaped_command(ShapedLink(10**9, 100_000), 1, ["env", "PMI_RANK=0"], ["true"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return f"no network namespaces without being root: {lines[-1]}"


def sent_bytes() -> int:
    """Return how many bytes this rank's interface has sent so far, with the packets' headers."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == INTERFACE:
            return int(numbers.split()[8])
    raise ExecutionError(
        f"this process has no interface {INTERFACE!r}: it was not started behind a shaped link"
    )


class Wire:
    """The namespaces of all ranks and what is under way between them.

    Parameters
    ----------
    link
        Of each ordered pair of ranks.
    num_ranks
        At most 50.
    """

    def __init__(self, link: ShapedLink, num_ranks: int) -> None:
        self._link = link
        self._ends = [self._make_end(rank) for rank in range(num_ranks)]
        self._rank_of = {end: rank for rank, end in enumerate(self._ends)}
        self._free_s: dict[tuple[int, int], float] = {}
        self._under_way: dict[tuple[int, int], deque[tuple[float, bytes]]] = {}
        # A sleep ends when it is over, not up to 50 us later.
        _libc().prctl(_PR_SET_TIMERSLACK, 1)

    def run(self, command: Sequence[str]) -> int:
        """Carry packets until a command ends; return its exit status."""
        child = subprocess.Popen(command)
        try:
            while child.poll() is None:
                self._carry()
        finally:
            # Whatever ends the wire: without it ranks would wait for ever.
            if child.poll() is None:
                child.terminate()
                child.wait()
        return child.returncode

    def _carry(self) -> None:
        """Wait until something comes or is due, and pass it on."""
        now_s = time.monotonic()
        due_s = [waiting[0][0] - now_s for waiting in self._under_way.values() if waiting]
        rest_s = max(0.0, min([_LOOK_S, *due_s]))
        ready, _, _ = select.select(self._ends, (), (), rest_s)
        for end in ready:
            self._take(end)
        self._deliver()

    def _take(self, end: int) -> None:
        src = self._rank_of[end]
        while True:
            try:
                packet = os.read(end, _MTU + 1)
            except BlockingIOError:
                return
            # The last byte of an IPv4 destination, which `_make_end` gives.
            dst = packet[19] - 1 if packet[0] >> 4 == 4 else -1
            if dst not in range(len(self._ends)):
                continue
            begin_s = max(time.monotonic(), self._free_s.get((src, dst), 0.0))
            free_s = begin_s + len(packet) * 8 / self._link.bits_per_second
            self._free_s[src, dst] = free_s
            arrival_s = free_s + self._link.delay_ns / 1e9
            self._under_way.setdefault((src, dst), deque()).append((arrival_s, packet))

    def _deliver(self) -> None:
        now_s = time.monotonic()
        for (_, dst), waiting in self._under_way.items():
            while waiting and waiting[0][0] <= now_s:
                os.write(self._ends[dst], waiting.popleft()[1])

    @staticmethod
    def _make_end(rank: int) -> int:
        """Enter a new namespace, make its interface, and keep both open."""
        if _libc().unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "a network")
        namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
        os.dup2(namespace, _FIRST_DESCRIPTOR + rank)
        os.close(namespace)
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _IFF_TUN_NO_PI))
        buffers = f"4096 {_BUFFER_BYTES // 2} {_BUFFER_BYTES}"
        for name, value in (
            ("conf/all/disable_ipv6", "1"),
            ("tcp_slow_start_after_idle", "0"),
            # The wire loses nothing, and what waits in it is not to be sent again.
            ("tcp_early_retrans", "0"),
            ("tcp_rmem", buffers),
            ("tcp_wmem", buffers),
        ):
            version = "ipv6" if name.endswith("ipv6") else "ipv4"
            Path(f"/proc/sys/net/{version}/{name}").write_text(value)
        network = "10.9.0"
        for words in (
            "link set dev lo up",
            f"addr add {network}.{rank + 1}/24 dev {INTERFACE}",
            f"link set dev {INTERFACE} txqueuelen 10000",
            f"link set dev {INTERFACE} mtu {_MTU} up",
            # From the first packet on as fast as the link, not as a connection that feels its way.
            f"route change {network}.0/24 dev {INTERFACE} initcwnd 256 initrwnd 256 "
            f"rto_min {_RESEND_S}s",
        ):
            subprocess.run(["ip", *words.split()], check=True)
        return end


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _main(arguments: Sequence[str]) -> int:
    bits_per_second, delay_ns, num_ranks = map(int, arguments[:3])
    command = list(arguments[3:])
    split = command.index("--")
    # As Ctrl-C, so that the ranks end with the wire.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    wire = Wire(ShapedLink(bits_per_second, delay_ns), num_ranks)
    if _libc().setns(home, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "the first network")
    enter = f'exec nsenter --net=/proc/{os.getpid()}/fd/$(({_FIRST_DESCRIPTOR} + PMI_RANK)) -- "$@"'
    return wire.run([*command[:split], "sh", "-c", enter, "sh", *command[split + 1 :]])


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
