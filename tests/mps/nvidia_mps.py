"""A pretend MPS: control daemon, its user interface, server, and a client, strict and at its worst.

    nvidia-cuda-mps-control -f        the daemon, in the foreground
    nvidia-cuda-mps-control           passes the lines of standard input on to the daemon
    nvidia-cuda-mps-server            what the daemon starts
    mps-client SECONDS                a program that computes so long, and fails if its server goes

It takes nothing that NVIDIA does not document, and does the worst where nothing is documented: a
daemon that is killed leaves its server, with all that was open; a client without a server fails at
once. How it misbehaves is told by the file that FAKE_MPS names, looked up each time, by words like
`daemon=never`, `daemon=die`, `daemon=hang`, `server=never`, `quit=hang`, `quit=slow`,
`quit=refuse`, `quit=hasty` (not after its clients).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from typing import NoReturn

UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SUN_PATH = 107  # unix(7): 108 bytes, the last one zero
LOST = "CUDA error: the remote procedural call between the MPS server and the MPS client failed"


def misbehaves(how: str) -> bool:
    path = os.environ.get("FAKE_MPS")
    if not path or not os.path.exists(path):
        return False
    with open(path) as file:
        return how in file.read().split()


def pipes() -> tuple[str, str]:
    path = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return path, os.path.join(path, "control")


def log(who: str, words: str) -> None:
    line = f"[{time.strftime('%Y-%m-%d %H:%M:%S.000')} {who} {os.getpid()}] {words}"
    print(line, flush=True)
    with contextlib.suppress(OSError):
        name = {"Server": "server.log"}.get(who, "control.log")
        with open(os.path.join(os.environ["CUDA_MPS_LOG_DIRECTORY"], name), "a") as file:
            file.write(line + "\n")


def fail(words: str) -> NoReturn:
    print(words, file=sys.stderr, flush=True)
    sys.exit(1)


# ── the daemon ──────────────────────────────────────────────────────────────────────────────────


class Daemon:
    def __init__(self) -> None:
        self.server: subprocess.Popen[bytes] | None = None
        self.quitting: list[socket.socket] = []
        directory, path = pipes()
        cards = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if not all(UUID.fullmatch(card) for card in cards):
            fail(f"Cannot use the devices {cards}")
        if len(os.fsencode(path)) > SUN_PATH or not os.path.isdir(directory):
            fail("Cannot find MPS control daemon process")
        if os.stat(directory).st_mode & 0o077:
            fail(f"others may reach {directory}")
        if os.path.exists(path):
            fail("An instance of this daemon is already running")
        if misbehaves("daemon=never"):
            while True:
                time.sleep(1000)
        if misbehaves("daemon=die"):
            log("Control", "Failed to open the device: error 999")
            sys.exit(1)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        with open(os.path.join(directory, "nvidia-cuda-mps-control.pid"), "w") as file:
            file.write(str(os.getpid()))
        log("Control", f"Starting control daemon using socket {path}")

    def serve(self) -> NoReturn:
        while True:
            if misbehaves("daemon=hang"):
                time.sleep(0.05)
                continue
            ready, _, _ = select.select([self.listener], [], [], 0.05)
            if ready:
                link, _ = self.listener.accept()
                with link:
                    self.hear(link)
            if self.server is not None and self.server.poll() is not None:
                status = self.server.returncode
                log("Control", f"Server {self.server.pid} exited with status {status}")
                self.server = None
            if self.quitting and (misbehaves("quit=hasty") or not self.clients()):
                self.end()

    def hear(self, link: socket.socket) -> None:
        text = link.makefile().readline()
        words = text.split()
        log("Control", "Cmd:" + text.strip())
        try:
            said = self.answer(words)
        except (ValueError, LookupError):
            said = "!Unrecognized command: " + text
        if said is None:
            self.quitting.append(socket.socket(fileno=os.dup(link.fileno())))
        else:
            link.sendall(said.encode())

    def answer(self, words: list[str]) -> str | None:
        name = words.pop(0)
        if name == "get_server_list" and not words:
            return f"{self.server.pid}\n" if self.server else ""
        if name == "start_server" and words == ["-uid", str(os.getuid())]:
            self.start()
            return ""
        if name == "quit" and not words:
            if misbehaves("quit=refuse"):
                return "!MPS daemon is busy"
            return None
        if name in ("get_server_status", "get_client_list") and len(words) == 1:
            if self.server is None or int(words[0]) != self.server.pid:
                return f"!Server {words[0]} not found"
            return self.ask_server(name)
        raise ValueError(name)

    def start(self) -> None:
        if self.server is None and not misbehaves("server=never"):
            program = os.path.join(os.path.dirname(sys.argv[0]), "nvidia-cuda-mps-server")
            log("Control", f"Starting new server for user {os.getuid()}")
            self.server = subprocess.Popen([program], close_fds=False)

    def ask_server(self, what: str) -> str:
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(os.path.join(pipes()[0], "server"))
                link.sendall(what.encode() + b"\n")
                return link.makefile().read()
        except OSError:
            return "INITIALIZING\n" if what == "get_server_status" else ""

    def clients(self) -> bool:
        return bool(self.server and self.ask_server("get_client_list").split())

    def end(self) -> NoReturn:
        if misbehaves("quit=slow"):
            time.sleep(0.7)
        if misbehaves("quit=hang"):
            while True:
                time.sleep(1000)
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        log("Control", "Exit")
        sys.exit(0)


def interface() -> None:
    _, path = pipes()
    for line in sys.stdin:
        try:
            link = socket.socket(socket.AF_UNIX)
            link.connect(path)
        except OSError:
            fail("Cannot find MPS control daemon process")
        with link:
            link.sendall(line.encode())
            said = link.makefile().read()
        if said.startswith("!"):
            fail(said[1:])
        sys.stdout.write(said)


# ── the server ──────────────────────────────────────────────────────────────────────────────────


def server() -> NoReturn:
    """Keeps a connection to each client: its end is the client's, or the server's."""
    log("Server", "Startup")
    time.sleep(0.05)  # it creates its context
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(pipes()[0], "server"))
    listener.listen(64)
    clients: dict[socket.socket, int] = {}
    while True:
        ready, _, _ = select.select([listener, *clients], [], [])
        for one in ready:
            if one is not listener:
                pid = clients.pop(one)
                one.close()
                log("Server", f"Client {{PID: {pid}}} disconnected")
                continue
            link, _ = listener.accept()
            words = link.makefile().readline().split()
            if words == ["get_client_list"]:
                link.sendall("".join(f"{pid}\n" for pid in clients.values()).encode())
                link.close()
            elif words == ["get_server_status"]:
                link.sendall(b"ACTIVE\n")
                link.close()
            elif words[:1] == ["client"]:
                clients[link] = int(words[1])
                log("Server", f"Client {{PID: {words[1]}}} connected")
                link.sendall(b"ok\n")
            else:
                link.close()


# ── a client ────────────────────────────────────────────────────────────────────────────────────


def client() -> NoReturn:
    """Computes for so many seconds. On TERM it takes half a second to save, then it ends."""
    directory = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
    if not UUID.fullmatch(os.environ["CUDA_VISIBLE_DEVICES"]):
        fail("RuntimeError: CUDA error: invalid device ordinal")
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(os.path.join(directory, "server"))
        link.sendall(b"client %d\n" % os.getpid())
        assert link.recv(3)
    except OSError:
        fail("RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon")
    over: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(time.monotonic() + 0.5))
    print(f"computes on {os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)
    until = time.monotonic() + float(sys.argv[1])
    while True:
        until = min([until, *over])
        left = until - time.monotonic()
        if left <= 0:
            break
        ready, _, _ = select.select([link], [], [], min(left, 0.05))
        if ready:
            fail("RuntimeError: " + LOST)
    print("saved" if over else "done", flush=True)
    sys.exit(143 if over else 0)


def main() -> None:
    name = os.path.basename(sys.argv[0])
    if name == "nvidia-cuda-mps-server":
        server()
    elif name == "mps-client":
        client()
    elif sys.argv[1:] == ["-f"]:
        Daemon().serve()
    elif not sys.argv[1:]:
        interface()
    else:
        fail("usage: nvidia-cuda-mps-control [-d | -f]")


main()
