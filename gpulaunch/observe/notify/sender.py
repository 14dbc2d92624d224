"""The process that sends one message to one target, and the only one that imports Apprise.

Standard input holds one JSON object, standard output gets one line of JSON:

    {"to": ADDRESS, "title", "text", "summary"}          -> {"trouble": ""}
    {"run": [ARGUMENT, ...], "cwd", "variables", ...}    -> {"trouble": "exited with status 3"}
    {"look": [ADDRESS, ...]}                             -> {"looks": [["", false], ...]}

It dies with the launcher and when its time is up, and takes a command that it started with it.
What it says of a trouble is made of fixed words and numbers: libraries and programs like to repeat
the address, and with it somebody's password.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

_PDEATHSIG = 1  # PR_SET_PDEATHSIG
_HTTP = ("http", "https")
_SHAPE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")
_REQUEST_SECONDS = 20
_STATUS = re.compile(r"\b(?:error|status|code)\s*[=:]\s*(\d{3})\b", re.IGNORECASE)
_SMTP = re.compile(r"\((\d{3}), ")
_ERRNO = re.compile(r"\[Errno (-?\d+)\]")
_KNOWN = (
    ("certificate", "the server's certificate was not accepted"),
    ("timed out", "the server did not answer in time"),
    ("name resolution", "no such host, or no network"),
    ("name or service not known", "no such host, or no network"),
    ("failed to resolve", "no such host, or no network"),
    ("connection refused", "connection refused"),
    ("connection unexpectedly closed", "the server closed the connection"),
)


def main() -> None:
    """Send; arguments: the launcher's PID, the time limit in seconds."""
    request = json.loads(sys.stdin.buffer.read())
    _mortal(int(sys.argv[2]), float(sys.argv[3]), group="run" in request)
    os.write(sys.stdout.fileno(), json.dumps(answer(request)).encode() + b"\n")
    # Not through interpreter shutdown: a library's threads may hold it up.
    os._exit(0)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    if "look" in request:
        return {"looks": [look(address) for address in request["look"]]}
    try:
        if "run" in request:
            return {"trouble": tell_command(request)}
        return {"trouble": tell(request)}
    except Exception as error:
        return {"trouble": in_words(f"{type(error).__name__}: {error}")}


def _mortal(parent: int, seconds: float, group: bool) -> None:
    """End with the launcher, and after so many seconds. `group`: with what was started here."""
    if group:
        signal.signal(signal.SIGTERM, _end_all)
        signal.signal(signal.SIGALRM, _end_all)
    else:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM if group else signal.SIGKILL)
    if os.getppid() != parent:  # the launcher died before that
        os._exit(1)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _end_all(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)  # the launcher gave this process a group of its own


# ── A command ───────────────────────────────────────────────────────────────────────────────────


def tell_command(request: Mapping[str, Any]) -> str:
    """Run the command with the summary on its standard input; return why it failed, or ""."""
    data = json.dumps(request["summary"]).encode() + b"\n"
    stdin = os.memfd_create("summary", os.MFD_CLOEXEC)
    try:
        # Not a pipe: a command need not read, and one that it leaves behind must not be waited for.
        os.write(stdin, data)
        os.lseek(stdin, 0, os.SEEK_SET)
        done = subprocess.run(
            [*request["run"]],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=request["cwd"],
            env={**os.environ, **request["variables"]},
            check=False,
        )
    except OSError as error:
        return f"the command cannot be started: {error.strerror}"
    finally:
        os.close(stdin)
    if done.returncode < 0:
        return f"the command was killed by signal {-done.returncode}"
    return f"the command exited with status {done.returncode}" if done.returncode else ""


# ── An address ──────────────────────────────────────────────────────────────────────────────────


def tell(request: Mapping[str, Any]) -> str:
    """Send the message to the address; return why it failed, or ""."""
    import apprise

    with _overheard() as log:
        service = _service(request["to"])
        if service is None:
            if request["to"].partition("://")[0].lower() in _HTTP:
                return _post(request["to"], request["summary"])
            return look(request["to"])[0]
        bell = apprise.Apprise()
        bell.add(service)
        sent = bell.notify(
            body=request["text"], title=request["title"], body_format=apprise.NotifyFormat.TEXT
        )
    return "" if sent else in_words("\n".join(log))


def _service(address: str) -> Any:
    """Return Apprise's object for the address; None if Apprise cannot use it here."""
    import apprise

    asset = apprise.AppriseAsset(
        app_id="gpulaunch",
        app_desc="gpulaunch",
        secure_logging=True,
        storage_mode="memory",  # some services keep a cache in the home directory otherwise
    )
    return apprise.Apprise.instantiate(address, asset=asset, suppress_exceptions=True)


def _post(address: str, summary: Mapping[str, Any]) -> str:
    """Post the summary to a URL that is no known service's."""
    import requests

    answer = requests.post(
        address, json=summary, timeout=_REQUEST_SECONDS, allow_redirects=False, stream=True
    )
    with answer:
        return "" if answer.status_code // 100 == 2 else f"HTTP status {answer.status_code}"


def look(address: str) -> tuple[str, bool]:
    """Return why nobody can be told there, or ""; and whether the address is wrong.

    Where this machine lacks something, the address is not. Nothing is sent.
    """
    try:
        from apprise.manager_plugins import NotificationManager
    except ImportError:
        return "the package apprise is not installed here", False
    shape = _SHAPE.match(address)
    if shape is None:
        return "it is no address: those begin like mailto://", True
    scheme = shape.group(1).lower()
    with _overheard():
        if _service(address) is not None:
            return "", False
        if scheme in _HTTP:
            return ("", False) if _has_host(address) else ("there is no host in it", True)
        known: Any = NotificationManager()  # type: ignore[no-untyped-call]
        try:
            plugin = known[scheme]
        except KeyError:
            return f"Apprise knows no service {scheme}://", True
        if not plugin.enabled:
            lack = "it needs a program or a package that is missing"
            return f"{scheme}:// cannot be used here: {lack}", False
        return f"Apprise does not understand it: see its documentation of {scheme}://", True


def _has_host(address: str) -> bool:
    try:
        return bool(urlsplit(address).hostname)
    except ValueError:
        return False


@contextlib.contextmanager
def _overheard() -> Iterator[list[str]]:
    """Collect what Apprise logs during the block, away from every screen."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("apprise")
    listener, level = Listener(), logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)


def in_words(text: str) -> str:
    """Return why sending failed: a status or a known phrase, never the text of the library."""
    for pattern, words in ((_SMTP, "the mail server answered {}"), (_STATUS, "HTTP status {}")):
        if match := pattern.search(text):
            return words.format(match.group(1))
    lower = text.lower()
    for phrase, words in _KNOWN:
        if phrase in lower:
            return words
    if (match := _ERRNO.search(text)) and int(match.group(1)) > 0:
        return os.strerror(int(match.group(1))).lower()
    return "no connection" if "connection error" in lower else "it was not accepted"


if __name__ == "__main__":
    main()
