"""The other end of a spawner and of a pair of keepers: starting them, and talking to them.

For the supervisor, and for the program that takes its part on a node of a cluster.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from .launch import launch_message, stop_message
from .wire import IO, PROTOCOL, Any, packed, send_fields

_HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(_HERE, "__main__.py") if os.path.isdir(_HERE) else _HERE
"""What an interpreter runs: the programs here, or the archive that they are in."""


def command(python: str, program: str, *arguments: str) -> list[str]:
    """Return the command line of a program here, for gpulaunch's own interpreter or a node's."""
    return [python, "-I", "-S", PROGRAM, program, *arguments]


def spawn(
    program: Sequence[str],
    environ: Mapping[str, str] | Mapping[bytes, bytes],
    files: Sequence[IO[bytes]] = (),
    stderr: IO[bytes] | None = None,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a program with a socket and these files; return its process and the socket's other end.

    Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # If our own standard streams are closed, the socket has the number of one of them.
        passed = [theirs.fileno(), *(file.fileno() for file in files)]
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in passed]
    try:
        process = subprocess.Popen(
            [*program, *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environ,
            pass_fds=fds,
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        for fd in fds:
            os.close(fd)
    return process, ours


def new_pair(
    spawner: socket.socket, leases: Sequence[int] = (), alive: int | None = None
) -> socket.socket:
    """Ask a spawner for a pair that holds these descriptors; return its socket. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    passed = [theirs.fileno(), *([] if alive is None else [alive]), *leases]
    message = packed("pair", str(PROTOCOL), str(len(passed)), "01"[alive is not None])
    with theirs:
        try:
            send_fields(spawner, message, passed, socket.MSG_NOSIGNAL)
        except OSError:
            ours.close()
            raise
    return ours


def decoded_json(data: bytes) -> dict[str, Any]:
    """Read a JSON object, whatever text it holds."""
    # Bytes would have their encoding guessed each time.
    value: dict[str, Any] = json.loads(str(data, "utf-8", "surrogatepass"))
    return value


class PairLink:
    """The socket of a pair: commands to it, and its messages, JSON objects that `decode` reads.

    `unread`: the pair is gone, and did not read the last message to it.
    """

    def __init__(
        self, ours: socket.socket, decode: Callable[[bytes], dict[str, Any]] = decoded_json
    ) -> None:
        self.socket = ours
        self.gone = self.unread = False
        self._decode = decode

    def launch(self, spec: Mapping[str, object], child: Mapping[str, object]) -> None:
        """Start an attempt: `spec` is the keeper's part of the command, `child` the job's."""
        self.tell(launch_message(spec, child))

    def stop(self, attempt: str, reason: str, by: str, now: bool, gently: bool = False) -> None:
        self.tell(stop_message(attempt, reason, by, now, gently))

    def tell(self, message: bytes) -> None:
        # A pair that is gone shows by its end of file; a full queue holds a stop already.
        try:
            send_fields(self.socket, message, flags=socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.unread = True

    def messages(self) -> Iterator[dict[str, Any] | None]:
        """Yield what has come; None, the last and once, when the pair and its job are gone."""
        while not self.gone:
            try:
                data = self.socket.recv(65536)
            except BlockingIOError:
                return
            except ConnectionResetError:
                self.unread = True
                continue  # its own last messages still come
            self.gone = not data
            yield self._decode(data) if data else None
