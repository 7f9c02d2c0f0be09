"""The options of a server: where it listens, and the limits of its requests."""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.model.units import parse_bytes
from heteroplace.options import count, duration, option, seed_number

_MAX_PORT = 65535


def _port(text: str) -> int:
    """Read the number of a TCP port; 0: any free one."""
    number = seed_number(text)
    if number > _MAX_PORT:
        raise ValueError(f"expected a port from 0 to {_MAX_PORT}, got {text!r}")
    return number


@dataclass(frozen=True)
class ServingOptions:
    """Address and limits of a server."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0: every IPv4 address")
    port: int = option(8000, "TCP port; 0: a free port, which is printed", metavar="N", parse=_port)
    max_body_bytes: int = option(
        64 << 20,
        'largest body of a request, in bytes or as "64 MiB"',
        name="max_body",
        metavar="SIZE",
        parse=parse_bytes,
    )
    max_waiting: int = option(
        64,
        "requests of one model that may wait while others run; more get status 429",
        name="queue",
        metavar="N",
        parse=seed_number,
    )
    timeout_s: float = option(
        60.0,
        "longest time of a request from its first byte to its answer, such as 500 or 2m",
        name="timeout",
        metavar="TIME",
        parse=duration,
    )
    max_sequences: int = option(
        1000,
        "sequences of one model with state that may be open at once; more get status 429",
        metavar="N",
        parse=count,
    )
    sequence_idle_s: float = option(
        60.0,
        "after this time without a request a sequence may make room for a new one",
        name="sequence_idle",
        metavar="TIME",
        parse=duration,
    )
    max_in_flight: int = option(
        2,
        "requests of one model that run at once; each needs memory for all values of the model",
        name="in_flight",
        metavar="N",
        parse=count,
    )
