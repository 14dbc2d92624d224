"""The sending process: web hooks, mail, commands; what it says when that fails, and that it dies.

Every server is on the loopback address.
"""

from __future__ import annotations

import email
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from email.header import decode_header, make_header
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.observe.notify import preflight
from gpulaunch.observe.notify.sender import in_words
from tests.helpers import wait_until
from tests.notify import sinks

SAID = {"title": "nanobodies failed: 3 failed", "text": "3 failed\nrun: /data", "summary": {"n": 3}}


def sent(request: Mapping[str, Any], seconds: float = 30.0) -> str:
    """Why it failed, or ""."""
    process = preflight.start({**SAID, **request}, seconds)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        preflight.end(process)
    return str(json.loads(out)["trouble"]) if out else f"status {process.returncode}"


def looked(*addresses: str) -> list[Any]:
    process = preflight.start({"look": addresses}, 30.0)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        preflight.end(process)
    found: list[Any] = json.loads(out)["looks"]
    return found


def test_a_web_hook_gets_the_summary() -> None:
    with sinks.web() as sink:
        assert sent({"to": f"http://{sink.address}/hook/s3cret"}) == ""
    assert sink.bodies == [{"n": 3}]


def test_a_service_of_apprise_gets_title_and_text() -> None:
    with sinks.web() as sink:
        assert sent({"to": f"json://{sink.address}/x"}) == ""
    (body,) = sink.bodies
    assert body["title"] == SAID["title"]
    assert body["message"] == SAID["text"]


def test_a_mail_arrives_with_the_title_as_its_subject() -> None:
    with sinks.mail() as sink:
        address = f"mailto://localhost:{sink.port}?from=run@lab.example&to=me@lab.example"
        assert sent({"to": address.replace("localhost", "127.0.0.1")}) == ""
    ((recipients, text),) = sink.mails
    mail = email.message_from_string(text)
    assert recipients == ["me@lab.example"]
    assert str(make_header(decode_header(mail["Subject"]))) == SAID["title"]
    parts = [part for part in mail.walk() if not part.is_multipart()]
    assert any(b"run: /data" in part.get_payload(decode=True) for part in parts)


@pytest.mark.parametrize("scheme", ["http", "json"])
def test_a_refused_connection_is_said_in_our_own_words(scheme: str) -> None:
    to = f"{scheme}://127.0.0.1:{sinks.closed_port()}/s3cret?key=s3cret"
    assert sent({"to": to}) in ("connection refused", "no connection")


@pytest.mark.parametrize(("status", "scheme"), [(404, "http"), (302, "http"), (500, "json")])
def test_a_refusal_by_the_server_is_its_status(status: int, scheme: str) -> None:
    with sinks.web() as sink:
        sink.status = status
        assert sent({"to": f"{scheme}://{sink.address}/s3cret"}) == f"HTTP status {status}"


def test_a_mail_that_is_refused_does_not_repeat_what_the_server_said() -> None:
    with sinks.mail() as sink:
        sink.refuses = True
        why = sent({"to": f"mailto://127.0.0.1:{sink.port}?from=a@b.example&to=c@b.example"})
    assert why == "the mail server answered 550"


def test_library_texts_are_never_passed_on() -> None:
    texts = [
        "HTTPConnectionPool(host='s3cret'): Max retries (Caused by [Errno 111] Connection refused)",
        "Failed to send to s3cret: error=403.",
        "Connection error while submitting email to s3cret\nSocket Exception: [Errno 113] s3cret",
        "KeyError: 's3cret'",
        "(535, b'5.7.8 s3cret')",
        "",
    ]
    assert [in_words(text) for text in texts] == [
        "connection refused",
        "HTTP status 403",
        os.strerror(113).lower(),
        "it was not accepted",
        "the mail server answered 535",
        "it was not accepted",
    ]


# ── Commands ────────────────────────────────────────────────────────────────────────────────────


def test_a_command_gets_the_title_the_summary_and_the_counts(tmp_path: Path) -> None:
    script = 'cat > stdin; printf %s "$1" > title; printf %s "$GPULAUNCH_FAILED" > failed'
    run = ["sh", "-c", script, "sh", str(SAID["title"])]
    request = {"run": run, "cwd": str(tmp_path), "variables": {"GPULAUNCH_FAILED": "3"}}
    assert sent(request) == ""
    assert json.loads((tmp_path / "stdin").read_text()) == {"n": 3}
    assert (tmp_path / "title").read_text() == SAID["title"]
    assert (tmp_path / "failed").read_text() == "3"


def test_a_command_that_reads_nothing_and_leaves_something_behind_holds_nothing_up() -> None:
    summary = {"text": "x" * 1_000_000}
    run = ["sh", "-c", "sleep 40 & exit 0"]  # longer than its time
    assert sent({"run": run, "cwd": "/", "variables": {}, "summary": summary}) == ""


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (["sh", "-c", "echo s3cret >&2; exit 3"], "the command exited with status 3"),
        (["sh", "-c", "kill -9 $$"], "the command was killed by signal 9"),
        (["./s3cret"], "the command cannot be started: No such file or directory"),
    ],
)
def test_a_command_that_fails_is_said_without_its_words(run: list[str], why: str) -> None:
    assert sent({"run": run, "cwd": "/", "variables": {}}) == why


# ── Its time ────────────────────────────────────────────────────────────────────────────────────


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_a_command_that_hangs_ends_with_its_children_when_its_time_is_up(tmp_path: Path) -> None:
    run = ["sh", "-c", "sleep 1000 & echo $! > pid; wait"]
    assert sent({"run": run, "cwd": str(tmp_path), "variables": {}}, 1.0) == "status -9"
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: gone(pid))


def test_a_server_that_never_answers_is_given_up() -> None:
    with sinks.web() as sink:
        sink.answers.clear()
        assert sent({"to": f"http://{sink.address}/"}, 2.5) == f"status {-signal.SIGALRM}"


def test_a_killed_launcher_leaves_no_sender_and_no_command_behind(tmp_path: Path) -> None:
    script = f"""
from gpulaunch.observe.notify.preflight import start
run = ["sh", "-c", "sleep 1000 & echo $! $$ $PPID > pids.new; mv pids.new pids; wait"]
start({{"run": run, "cwd": {str(tmp_path)!r}, "variables": {{}}, "summary": {{}}}}, 60.0)
input()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as launcher:
        pids = tmp_path / "pids"
        wait_until(pids.exists, 20)
        launcher.kill()
    for pid in pids.read_text().split():
        wait_until(lambda pid=pid: gone(int(pid)), what=f"{pid} is gone")


# ── Looking at addresses ────────────────────────────────────────────────────────────────────────


def test_addresses_are_looked_at_without_being_asked() -> None:
    with sinks.web() as sink:
        found = looked(f"http://{sink.address}/x", f"json://{sink.address}/x")
        assert sink.bodies == []
    assert found == [["", False], ["", False]]


def test_what_apprise_does_not_understand_is_wrong() -> None:
    nosuch, mail, url, right = looked(
        "nosuch://s3cret", "mailto://s3cret", "http://", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    )  # fmt: skip
    assert nosuch == ["Apprise knows no service nosuch://", True]
    assert mail == ["Apprise does not understand it: see its documentation of mailto://", True]
    assert url == ["there is no host in it", True]
    assert right == ["", False]


def test_what_is_no_address_at_all_is_not_repeated() -> None:
    ((why, wrong),) = looked("s3cret")
    assert wrong
    assert "s3cret" not in why
