"""Compiled files -> a running HTTP server, from its socket to its clean end."""

from __future__ import annotations

import ctypes
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import heteroplace
from heteroplace.errors import ExecutionError, HeteroPlaceError
from heteroplace.parts.serving.http_routes import ServingRoutes
from heteroplace.parts.serving.served_model import ServedModel
from heteroplace.parts.serving.serving_metrics import ServingMetrics
from heteroplace.parts.serving.serving_options import ServingOptions
from heteroplace.stage_log import StageLog

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Numbers of parameters of mallopt."""
_KEPT_BLOCK_BYTES = 8 << 20
_KEPT_BYTES = 64 << 20
_KEEP_ALIVE_S = 75
"""Longer than proxies keep idle connections, so that they never use one that is just closed."""
_END_S = 5
"""How long the end of a server may take beyond the limit of its requests."""


def serve(
    files: Mapping[str, str],
    options: ServingOptions,
    trusted_keys: Sequence[str] | None,
    started: Callable[[str, int], None],
    log: StageLog,
) -> None:
    """Load models and serve them until SIGTERM or SIGINT; then finish the requests in flight.

    Parameters
    ----------
    files
        Paths of compiled files, by the names of their models.
    trusted_keys
        As of `heteroplace.load`.
    started
        Called with host and port once requests are taken.
    log
        Shows which file is loaded.

    Raises
    ------
    HeteroPlaceError
        A file cannot be loaded or served, or the port is taken.
    """
    # Nobody can connect before `listen`; but a port that is taken is noticed before files load.
    with bound_socket(options) as listener:
        metrics = ServingMetrics()
        models: dict[str, ServedModel] = {}
        try:
            log.say("Loading models")
            for name, path in files.items():
                log.count(len(models), len(files))
                executor = _loaded(path, options.max_in_flight, trusted_keys)
                models[name] = ServedModel(name, executor, options, metrics.of_model(name))
            server = _Server(started, options)
            server.config.app = ServingRoutes(
                models, options, metrics, lambda: not server.should_exit
            )
            _keep_freed_memory()
            server.run([listener])
        finally:
            for model in models.values():
                model.close()


def _keep_freed_memory() -> None:
    """Let the C library keep the memory of bodies that it frees, for the next ones.

    Else it returns blocks to the system and gets new ones for each request. Their page faults take
    a third of the event loop's time where bodies have 600 KB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class _Server(uvicorn.Server):
    """A server that ends without an error at SIGTERM and SIGINT."""

    def __init__(self, started: Callable[[str, int], None], options: ServingOptions) -> None:
        super().__init__(
            uvicorn.Config(
                "",
                http=HttpToolsProtocol,
                interface="asgi3",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(options.timeout_s) + _END_S,
            )
        )
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port, then say so."""
        await super().startup(sockets)
        assert sockets
        host, port = sockets[0].getsockname()[:2]
        self._started(host, port)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take both signals; unlike uvicorn's own, do not raise them again at the end."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        handlers = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def bound_socket(options: ServingOptions) -> socket.socket:
    """Return a socket that has its port, but does not listen yet.

    Raises
    ------
    HeteroPlaceError
        The address does not exist here, or another program has the port.
    """
    where = f"{options.host}:{options.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM
        )[0]
        # asyncio sets TCP_NODELAY only on sockets that name TCP; else each answer waits 40 ms.
        listener = socket.socket(family, kind, protocol)
    except OSError as err:
        raise HeteroPlaceError(f"cannot listen on {where}: {err}") from err
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as err:
        listener.close()
        raise HeteroPlaceError(
            f"cannot listen on {where}: {err.strerror}; choose another --port, or 0 for a free one"
        ) from err
    return listener


def _loaded(
    path: str, max_in_flight: int, trusted_keys: Sequence[str] | None
) -> heteroplace.Executor:
    executor = heteroplace.load(path, max_in_flight=max_in_flight, trusted_keys=trusted_keys)
    if len(executor.solution.cluster.hosts) > 1:
        text = f"{path} is for several hosts; a server runs files for one host only"
        executor.fail(text)
        raise ExecutionError(text)
    return executor
