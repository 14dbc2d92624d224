"""The process that answers scrapes, until the pipe from its supervisor is at its end.

The server is the client library's. It gets the port that the supervisor holds already, so that
nobody else can take that port meanwhile; `start_http_server` would bind one of its own.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.metrics.read import open_metrics
from gpulaunch.observe.prometheus.families import RunCollector

LAST_WORDS = 1
"""Seconds for answers under way when the run ends, unless the supervisor ends them earlier."""
NICE = 10


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
    source = RunCollector(run.events, partial(open_metrics, run.metrics), earlier)
    # What is read stays: looking through it for garbage would double the time that it takes.
    gc.disable()
    source.collect()
    gc.freeze()
    gc.enable()
    serve(listener, sys.stdin.fileno(), source)
    # The interpreter waits for answers under way. A client that does not take its own is cut off.
    signal.setitimer(signal.ITIMER_REAL, LAST_WORDS)


def serve(listener: socket.socket, lifeline: int, source: RunCollector) -> None:
    """Answer until `lifeline` is readable; nothing is ever written there, so that is its end."""
    registry = CollectorRegistry()
    registry.register(source)
    listener.setblocking(False)  # a client may be gone before it is accepted
    with _Server(listener) as server, selectors.DefaultSelector() as waiting:
        server.set_app(make_wsgi_app(registry))
        waiting.register(listener, selectors.EVENT_READ)
        waiting.register(lifeline, selectors.EVENT_READ)
        while lifeline not in (ready := {key.fd for key, _ in waiting.select()}):
            if listener.fileno() in ready:
                server.handle_request()


class _Server(ThreadingWSGIServer):
    """A thread for each connection."""

    daemon_threads = block_on_close = False
    timeout = 0.0

    def __init__(self, listener: socket.socket) -> None:
        address = listener.getsockname()
        super().__init__(address, WSGIRequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # What binding would have done, less the question to a name server for our own name.
        self.server_name, self.server_port = address
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that went away: that is no error of ours."""
