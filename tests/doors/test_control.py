"""Whatever comes on a run's control socket, the run goes on, and the sender is answered."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.core.events import Cancel, Finish, Stop
from gpulaunch.journal.liveness import control_name
from gpulaunch.run.control_protocol import BUFFERED_BYTES, REQUEST_BYTES, decoded
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.doors.spoilt import count, messages

JOB = {"run": "true", "gpus": 0, "env": {"A": "b"}, "timeout": "1h", "retries": 1}
REAL: list[dict[str, Any]] = [
    {"kind": "hello"},
    {"kind": "reasons"},
    {"kind": "cancel", "jobs": ["nobody"]},
    {"kind": "retry", "jobs": ["first"], "as_filed": True},
    {"kind": "retry", "jobs": ["first"]},
    {"kind": "drain_gpus", "gpus": ["GPU-x"], "now": False, "off": True},
    {"kind": "pause", "why": {"kind": "asked"}, "by": "asked"},
    {"kind": "pause", "why": None},
    {"kind": "go_on"},
    {"kind": "reload", "dry_run": True},
    {"kind": "reload"},
    {
        "kind": "add",
        "addition": "1",
        "text": json.dumps({"name": "x", "jobs": [JOB]}),
        "label": "add",
        "base": "/",
        "environ": {"PATH": "/usr/bin:/bin"},
        "stem": "x",
    },
    {"kind": "set_fields", "jobs": ["later"], "fields": {"priority": "5", "timeout": "3h"}},
    {"kind": "set_fields", "jobs": ["later"], "fields": {"retries": "{times: 2}"}},
    {"kind": "set_fields", "jobs": ["later"], "fields": {"needs": "[long]"}},
]
LIST = f"""
jobs:
  - {{name: first, run: "true", gpus: 0}}
  - {{name: long, run: "{UNTIL_GO}", gpus: 0}}
  - {{name: later, run: "true", gpus: 0, needs: [long]}}
"""


class Asked:
    """A run, and what may be sent to it."""

    def __init__(self, launcher: Launcher) -> None:
        manifest = json.loads((launcher.run / "manifest.json").read_text())
        self.name = control_name(manifest["run"])

    def link(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(30)
        link.connect(self.name)
        return link

    def send(self, line: bytes) -> bytes:
        """The answer to a line: empty where the run only closes the connection."""
        with self.link() as link:
            try:
                link.sendall(line + b"\n")
                with link.makefile("rb") as answers:
                    return answers.readline()
            except ConnectionError:
                return b""

    def lives(self) -> bool:
        return "dir" in json.loads(self.send(b'{"kind":"hello"}'))


def ends_the_run(line: bytes) -> bool:
    try:
        asking = decoded(line)
    except ValueError:
        return False
    return isinstance(asking, Stop | Finish) or (isinstance(asking, Cancel) and asking.jobs is None)


def test_a_run_goes_on_whatever_it_is_sent_and_can_be_gone_on_with(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIST)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started", 2)
        run = Asked(launcher)
        for line in messages(REAL, count(150)):
            if ends_the_run(line):
                continue
            answer = run.send(line)
            assert process.poll() is None, (line[:300], process.communicate()[1][-2000:])
            assert isinstance(json.loads(answer or b"{}"), dict), line[:300]
        assert run.lives()
        process.send_signal(signal.SIGKILL)
    shown = launcher("status", "--all")
    assert (shown.status, "Traceback" in shown.err) == (0, False), shown.err
    (launcher.path / "go").touch()
    gone_on = launcher("resume", "--quiet")
    assert gone_on.status in (0, 1), gone_on.err
    assert "Traceback" not in gone_on.err


WRONG_ADDITIONS: list[dict[str, Any]] = [
    *({"text": text} for text in ('{"jobs":[]}', "no JSON", "5", '{"jobs":[5]}', '{"jobs":{}}')),
    *({"environ": {name: "x"}} for name in ("", "A=B", "\0", "\ud800")),
    *({"environ": {"A": value}} for value in ("\0", "\ud800")),
    {"base": "here"},
    {"text": '{"jobs": [{"run": "true", "env": {"A": "\ud800"}}]}'},
]


def test_an_addition_that_cannot_be_used_is_refused_and_not_recorded(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIST)
    (add,) = [one for one in REAL if one["kind"] == "add"]
    with launcher.begun("run", "jobs.yaml", "--simulate", "1"):
        launcher.wait_for("attempt_started", 2)
        run = Asked(launcher)
        for wrong in WRONG_ADDITIONS:
            answer = json.loads(run.send(json.dumps(add | wrong).encode()))
            assert set(answer) <= {"error", "found"}, wrong
        assert launcher.events("jobs_given") == []
        assert run.lives()


@pytest.mark.parametrize("field", ["priority", "timeout", "retries", "gpus", "memory", "needs"])
def test_a_value_that_is_set_may_be_anything(launcher: Launcher, field: str) -> None:
    bomb = "[&a [x], " + ", ".join(f"&{name} [{'*a,' * 9}]" for name in "bcdefgh") + "]"
    odd = ["[" * 3000, "&a [*a]", "{&k [x]: 1}", "{<<: 5}", bomb, "[!!binary x]", "nan", "1e999"]
    odd += [
        "x" * 200_000,
        "-1",
        "9" * 5000,
        "",
        "none",
        "\0",
        "\udcff",
        "{}",
        "[]",
        "{{x}}",
        '["\\ud800"]',
    ]
    launcher.file("jobs.yaml", LIST)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started", 2)
        run = Asked(launcher)
        for typed in odd:
            asking = {"kind": "set_fields", "jobs": ["later"], "fields": {field: typed}}
            answer = run.send(json.dumps(asking).encode())
            assert answer.endswith(b"}\n"), (typed, process.poll())
        assert run.lives()


def test_a_field_of_a_newer_version_cannot_be_set(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIST)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1"):
        launcher.wait_for("attempt_started", 2)
        asking = b'{"kind":"set_fields","jobs":["later"],"fields":{"cpus":"2"}}'
        (error,) = json.loads(Asked(launcher).send(asking)).values()
        assert error.splitlines() == [
            "cpus=2: cannot be set (what can: priority, timeout, retries, gpus, memory, needs)",
            "nothing was set",
        ]


def test_one_job_that_is_named_often_is_set_once(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIST)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1"):
        launcher.wait_for("attempt_started", 2)
        asking = {"kind": "set_fields", "jobs": ["later"] * 10_000, "fields": {"priority": "5"}}
        assert "change" in json.loads(Asked(launcher).send(json.dumps(asking).encode()))
        assert len(launcher.events("job_set")) == 1


def test_clients_take_no_more_memory_together_than_is_allowed(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIST)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started", 2)
        run, links = Asked(launcher), []
        half = b"x" * (REQUEST_BYTES // 2)
        try:
            for _ in range(2 * BUFFERED_BYTES // len(half)):
                links.append(run.link())
                with contextlib.suppress(ConnectionError):  # it took the most
                    links[-1].sendall(half)
                assert run.lives()
            assert memory_of(process.pid) < 2 * BUFFERED_BYTES
        finally:
            for link in links:
                link.close()


def memory_of(pid: int) -> int:
    """The bytes that a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
