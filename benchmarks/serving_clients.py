"""Clients of `benchmarks serving` in a process of their own: one keep-alive connection each.

    python -m benchmarks.serving_clients HOST PORT NUM_CLIENTS FILE

The file holds one HTTP request, which every client sends again and again. Each line of stdin is a
number of seconds; the answer is a line of JSON with the requests and their processor time. Clients
read and write plain sockets, so that they take as little of the cores as possible.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length:"
_OK = b"HTTP/1.1 200"
_BUFFER_BYTES = 1 << 20


class Client:
    """One connection, and what it sends."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.count = 0
        """Requests that were answered."""

    def call(self) -> None:
        """Send the request and read the answer to its end."""
        self._socket.sendall(self._request)
        num_bytes = 0
        left = 1
        while left > 0:
            received = self._socket.recv_into(self._buffer[num_bytes:])
            if not received:
                raise ConnectionError("the server closed the connection")
            num_bytes += received
            left = _missing_bytes(self._buffer[:num_bytes])
        self.count += 1

    def run(self, end_s: float) -> None:
        """Call until a moment of `time.monotonic`."""
        while time.monotonic() < end_s:
            self.call()


def _missing_bytes(answer: memoryview) -> int:
    """Return how many bytes of an answer are still to come, at least; 0: it is whole."""
    start = bytes(answer[:4096])
    head, end, _ = start.partition(_END_OF_HEAD)
    if not end:
        return 1
    if not head.startswith(_OK):
        raise ConnectionError(bytes(answer).decode(errors="replace"))
    (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(_LENGTH))
    return len(head) + len(end) + int(length.removeprefix(_LENGTH)) - len(answer)


def main() -> None:
    """Connect, then answer each line of stdin."""
    host, port, num_clients, file = sys.argv[1:]
    request = Path(file).read_bytes()
    clients = [Client((host, int(port)), request) for _ in range(int(num_clients))]
    for line in sys.stdin:
        before = sum(client.count for client in clients)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        end_s = began_s + float(line)
        threads = [threading.Thread(target=client.run, args=(end_s,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        count = sum(client.count for client in clients) - before
        answer = {
            "requests": count,
            "seconds": time.monotonic() - began_s,
            "cpu_s": time.process_time() - began_cpu_s,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
