"""Asks services whether they are ready, at `tcp:PORT`, `tcp:HOST:PORT` or an HTTP address.

Each service that starts has a thread: a connection attempt can hang, and must not block the
supervisor. The thread ends with the first answer or with `close`.
"""

from __future__ import annotations

import os
import socket
import threading
from functools import partial
from urllib.parse import urlsplit

from gpulaunch.base.text import span
from gpulaunch.core.events import Unanswered
from gpulaunch.core.facts import ServiceReady
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.context import SCARCITY_RETRY_DELAY, RunContext

READY_RETRY_DELAY = 0.25
"""Seconds between two connections to a service that is not ready."""


def address_of(ready: str) -> str:
    """Return HOST:PORT of a service, from its `ready`: `tcp:8000`, `http://127.0.0.1:8000/up`."""
    if ready.startswith("tcp:"):
        host, _, port = ready[4:].rpartition(":")
        return f"{host or '127.0.0.1'}:{port}"
    url = urlsplit(ready)
    try:
        number = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:  # beyond all ports: it will never answer, and times out as such
        number = 0
    return f"{url.hostname or '127.0.0.1'}:{number}"


class Readiness:
    """Asks one service in a thread; `fileno` becomes readable (end of file) once it answered."""

    def __init__(self, address: str) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(address,), daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._read

    def _ask(self, address: str) -> None:
        try:
            while not self._over.is_set():
                if answers(address, address_of(address)):
                    break
                self._over.wait(READY_RETRY_DELAY)
        finally:
            os.close(self._write)

    def close(self) -> None:
        """Stop asking. Unwatch the descriptor first; the thread ends by itself, a little later."""
        self._over.set()
        os.close(self._read)


class Services:
    """The services that run: where each is found, and who is still asked whether it is ready."""

    def __init__(self, context: RunContext) -> None:
        self._loop = context.loop
        self._post = context.post
        self._asked: dict[AttemptId, Readiness] = {}
        self.addresses: dict[str, str] = {}

    def begin(self, attempt: AttemptId, ready: str, within: float) -> None:
        """Ask the service until it answers; then post ServiceReady.

        After `within` seconds without an answer, post Unanswered and ask no more.
        """
        self.addresses[attempt.job] = address_of(ready)
        self._ask(attempt, ready)
        over = partial(self._unanswered, attempt, f"no answer at {ready} within {span(within)}")
        self._loop.call_after(_deadline(attempt), within, over)

    def _unanswered(self, attempt: AttemptId, text: str) -> None:
        self._stop_asking(attempt)
        self._post(Unanswered(attempt, text))

    def _ask(self, attempt: AttemptId, ready: str) -> None:
        try:
            asked = self._asked[attempt] = Readiness(ready)
        except (OSError, RuntimeError):  # no descriptor, or no thread, is to be had now
            again = partial(self._ask, attempt, ready)
            self._loop.call_after(_timer(attempt), SCARCITY_RETRY_DELAY, again)
        else:
            self._loop.watch(asked.fileno(), partial(self._answered, attempt))

    def _answered(self, attempt: AttemptId) -> None:
        self._stop_asking(attempt)
        self._post(ServiceReady(attempt))

    def _stop_asking(self, attempt: AttemptId) -> None:
        self._loop.forget(_timer(attempt))
        self._loop.forget(_deadline(attempt))
        if asked := self._asked.pop(attempt, None):
            self._loop.unwatch(asked.fileno())
            asked.close()

    def end(self, attempt: AttemptId) -> None:
        """Forget the service of an attempt that is over. Ignores attempts without one."""
        self._stop_asking(attempt)
        self.addresses.pop(attempt.job, None)


def _timer(attempt: AttemptId) -> str:
    return f"ready:{attempt}"


def _deadline(attempt: AttemptId) -> str:
    return f"unanswered:{attempt}"


READY_ANSWER_TIMEOUT = 5.0
"""Seconds that a connection and its answer may take."""


def answers(address: str, place: str) -> bool:
    """Tell whether the service, which is at `place` (HOST:PORT), answers now.

    An HTTP status below 500 other than 404 counts.
    """
    if address.startswith("tcp:"):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), READY_ANSWER_TIMEOUT).close()
        except (OSError, ValueError):
            return False
        return True
    # Few runs have a service: these are imported when one starts.
    import urllib.error
    import urllib.request

    try:
        # No proxy from the environment: the service is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(address, timeout=READY_ANSWER_TIMEOUT):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return error.code < 500 and error.code != 404
    except Exception:  # whatever a library makes of what a service sends, it is no answer
        return False
