"""The socket at which a carrier waits for the container's first process."""

from __future__ import annotations

import os
import socket

from .record import Record

NAME = "socket"


class Door:
    """Listens in the record's directory until it is closed; then nobody is let in any more."""

    def __init__(self, record: Record) -> None:
        """Raise OSError where there is such a socket already: another carrier's."""
        self.record = record
        self.path = f"{record.folder}/{NAME}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A socket's path has 107 bytes at most, and a run's directory may be deep.
        self.socket.bind(f"/proc/self/fd/{record.fd}/{NAME}")
        if record.anyone:
            os.chmod(f"/proc/self/fd/{record.fd}/{NAME}", 0o666)
            os.chmod(record.folder, 0o711)
        self.socket.listen(1)
        self.socket.setblocking(False)

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        """Let a container that starts from now on find nobody, and exit."""
        self.socket.close()
        self.record.unlink(NAME)

    def accept(self) -> socket.socket | None:
        """Return a connection; None where it is gone again."""
        try:
            return self.socket.accept()[0]
        except OSError:
            return None
