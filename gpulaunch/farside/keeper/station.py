"""What a monitor and its attempts share."""

from __future__ import annotations

from .channel import KeeperChannel
from .child import ForkedChild
from .worker import WorkerPipes


class Station:
    """The pair's socket and leases, what jobs start from, and what stays between attempts.

    `spare`: a child forked ahead; `spare_at`: when one is to be. `exec_only`: jobs exec although
    this interpreter could run them.
    """

    def __init__(
        self, channel: KeeperChannel, leases: list[int], environment: dict[bytes, bytes]
    ) -> None:
        self.channel = channel
        self.leases = leases
        self.environment = environment
        self.worker: WorkerPipes | None = None
        self.spare: ForkedChild | None = None
        self.spare_at: float | None = None
        self.exec_only = False

    def reap_worker(self, pid: int) -> bool:
        """Forget the worker if it was the process just reaped, and close its pipes; True if so."""
        if self.worker is None or self.worker.pid != pid:
            return False
        self.worker.close()
        self.worker = None
        return True
