"""Those who are told: a web server and a mail server on the loopback address, each in a thread."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class WebSink(http.server.ThreadingHTTPServer):
    """Keeps the JSON bodies it is sent; answers with `status`, once `answers` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Web)
        self.bodies: list[Any] = []
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        return  # whoever sent it was killed


class _Web(http.server.BaseHTTPRequestHandler):
    server: WebSink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        self.server.answers.wait(60)
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


class MailSink(socketserver.ThreadingTCPServer):
    """Speaks as much SMTP as takes a mail; keeps (recipients, mail). `refuses`: every recipient."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Mail)
        self.mails: list[tuple[list[str], str]] = []
        self.refuses = False

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Mail(socketserver.StreamRequestHandler):
    server: MailSink

    def handle(self) -> None:
        recipients: list[str] = []
        self._say("220 sink")
        for raw in self.rfile:
            line = raw.decode().strip()
            verb = line[:4].upper()
            if verb == "RCPT" and self.server.refuses:
                self._say("550 s3cret is nobody here")
            elif verb == "RCPT":
                recipients.append(line.partition(":")[2].strip("<> "))
                self._say("250 ok")
            elif verb == "DATA":
                self._say("354 go on")
                self.server.mails.append((recipients, self._mail()))
                self._say("250 ok")
            elif verb == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _mail(self) -> str:
        lines = []
        for raw in self.rfile:
            if raw == b".\r\n":
                break
            lines.append(raw.decode())
        return "".join(lines)

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


@contextmanager
def web() -> Iterator[WebSink]:
    with WebSink() as sink, _served(sink):
        yield sink
        sink.answers.set()


@contextmanager
def mail() -> Iterator[MailSink]:
    with MailSink() as sink, _served(sink):
        yield sink


@contextmanager
def _served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def closed_port() -> int:
    """A port of the loopback address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
