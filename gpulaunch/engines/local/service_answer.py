"""Asks a service once whether it is ready. Few runs have one: it is imported when one starts."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

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
