"""The process that answers scrapes, until the pipe from its supervisor is at its end.

Formats, their negotiation and compression are the client library's; the limits on clients are
here: so many connections at once (the oldest makes room), so long and so many bytes each.
"""

from __future__ import annotations

import gc
import io
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from gpulaunch.journal.rundir import RunDir
from gpulaunch.metrics.read import open_metrics
from gpulaunch.prometheus.source import RunCollector

CONNECTIONS = 16
SECONDS = 5.0
"""A connection's whole life, at most. Prometheus gives a scrape 10 s unless told otherwise."""
LAST_WORDS = 0.25
"""Seconds for answers under way when the run ends."""
REQUEST_BYTES = 32 << 10
NICE = 10

App: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def main() -> None:
    """Serve; arguments: the supervisor's PID, the descriptors of the listener and of what jobs
    took in earlier runs, and the run's directory."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the supervisor had put off what ends it
    with suppress(OSError):
        os.nice(NICE)  # what is computed comes first
    listener = socket.socket(fileno=int(sys.argv[3]))
    with open(int(sys.argv[4]), encoding="utf-8") as file:
        earlier = json.load(file)
    run = RunDir(Path(sys.argv[5]))
    open_samples = partial(open_metrics, run.metrics)
    with closing(RunCollector(run.events, open_samples, earlier)) as source:
        # What is read stays: looking through it for garbage would double the time that it takes.
        gc.disable()
        source.refresh()
        gc.freeze()
        gc.enable()
        serve(listener, sys.stdin.fileno(), source)


def serve(
    listener: socket.socket, lifeline: int, source: RunCollector, seconds: float = SECONDS
) -> None:
    """Answer until `lifeline` is readable; nothing is ever written there, so that is its end."""
    listener.setblocking(False)  # a client may be gone before it is accepted
    with (
        _ScrapeServer(listener, _app(source), seconds) as server,
        selectors.DefaultSelector() as waiting,
    ):
        waiting.register(listener, selectors.EVENT_READ)
        waiting.register(lifeline, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in waiting.select(server.patience())}
            server.drop_overdue()
            if lifeline in ready:
                break
            if listener.fileno() in ready:
                source.refresh()
                server.handle_request()
        server.finish()


def _app(source: RunCollector) -> App:
    registry = CollectorRegistry()
    registry.register(source)
    answer: App = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # The library says nothing to the client before it has the whole answer.
        try:
            return answer(environ, start_response)
        except Exception as error:
            text = f"gpulaunch: {str(error) or type(error).__name__}\n"
            head = [("Content-Type", "text/plain; charset=utf-8")]
            start_response("500 Internal Server Error", head)
            return [text.encode(errors="backslashreplace")]

    return app


class _ScrapeServer(ThreadingMixIn, WSGIServer):
    """A thread per connection. `_since`: when (monotonic) each open one came, oldest first."""

    daemon_threads = True
    block_on_close = False
    timeout = 0.0

    def __init__(self, listener: socket.socket, app: App, seconds: float) -> None:
        address = listener.getsockname()
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # What binding would have done, less the question to a name server for our own name.
        self.server_name, self.server_port = address
        self.setup_environ()
        self.set_app(app)
        self.seconds = seconds
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self._since: dict[socket.socket, float] = {}

    def patience(self) -> float | None:
        """Return the seconds until a connection is overdue; None: none is open."""
        with self._lock:
            oldest = next(iter(self._since.values()), None)
        return None if oldest is None else max(0.0, oldest + self.seconds - time.monotonic())

    def drop_overdue(self) -> None:
        with self._lock:
            self._drop(time.monotonic() - self.seconds)

    def finish(self) -> None:
        """Accept nobody more, and let the answers under way get out, for a moment."""
        self.socket.close()
        with self._lock:
            self._empty.wait_for(lambda: not self._since, LAST_WORDS)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._since) >= CONNECTIONS:
                self._drop(next(iter(self._since.values())))
            self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        # INVARIANT: what `_since` holds is open, so that `_drop` never meets another's descriptor.
        with self._lock:
            self._since.pop(request, None)
            self._empty.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away or took too long: that is no error of ours."""

    def _drop(self, until: float) -> None:
        """Shut the connections down that came until then: their threads wake up, and close them."""
        for request in [each for each, since in self._since.items() if since <= until]:
            del self._since[request]
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    server: _ScrapeServer

    def setup(self) -> None:
        self.request.settimeout(self.server.seconds)  # for the next bytes, or for taking ours
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_AtMost(self.connection, REQUEST_BYTES))

    def get_stderr(self) -> Any:
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None: ...


class _AtMost(io.RawIOBase):
    """A socket's bytes, and the end after so many: headers alone may have six million."""

    def __init__(self, link: socket.socket, most: int) -> None:
        self._link = link
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            return 0
        count = self._link.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count
