"""Who outlives whom: a run its server and client, the server a cancelled call and any garbage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import psutil
import pytest

from gpulaunch.mcp.server import MAX_CALLS
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.cli.terminal import terminal
from tests.helpers import goes_along, held_by, wait_until
from tests.mcp.client import SERVER, Talk, server_of_this_process, talk

WAITS = f"jobs: [{{name: a, run: '{UNTIL_GO}'}}]"
VANISHING = """
import sys
import anyio
from tests.mcp.client import Talk, server_of_this_process, talk
from tests.cli.launcher import Launcher
from pathlib import Path

async def conversation(to):
    await to.tell("run", job_file="jobs.yaml", simulate=1)
    print(server_of_this_process().pid, flush=True)
    await to.tell("status", wait=55)

talk(Launcher(Path(sys.argv[1])), conversation)
"""


def test_a_run_goes_on_when_the_server_is_killed(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)

    async def conversation(to: Talk) -> None:
        await to.tell("run", job_file="jobs.yaml", simulate=1)
        launcher.wait_for("attempt_started")
        server_of_this_process().send_signal(signal.SIGKILL)
        with pytest.raises(Exception, match="closed"):
            await to.tell("status")

    talk(launcher, conversation)
    assert launcher.status()["run"]["state"] == "running"
    (launcher.path / "go").touch()
    assert launcher("wait").status == 0


def test_a_run_goes_on_when_the_client_leaves_and_finds_it_again(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)

    async def begin(to: Talk) -> None:
        await to.tell("run", job_file="jobs.yaml", simulate=1)

    async def find(to: Talk) -> None:
        assert (await to.tell("status"))["run"]["state"] == "running"
        (launcher.path / "go").touch()
        assert (await to.over())["run"]["state"] == "succeeded"

    talk(launcher, begin)
    talk(launcher, find)


def test_a_server_ends_with_its_client_and_its_run_does_not(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)
    client = subprocess.Popen(
        [sys.executable, "-c", VANISHING, str(launcher.path)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    assert client.stdout is not None
    with client, client.stdout as told:
        server = psutil.Process(int(told.readline()))
        client.kill()
        wait_until(lambda: not server.is_running() or server.status() == "zombie", 30)
    launcher.wait_for("attempt_started")
    assert launcher.status()["run"]["state"] == "running"


def test_a_call_that_is_cancelled_holds_up_nobody(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)

    async def conversation(to: Talk) -> None:
        await to.tell("run", job_file="jobs.yaml", simulate=1)
        launcher.wait_for("attempt_started")
        for _ in range(20):  # more than the server works on at a time
            with anyio.move_on_after(0.01):
                await to.tell("status", wait=55)
        with anyio.fail_after(40):  # sooner than one of those would have been answered
            assert (await to.tell("status"))["run"]["state"] == "running"
            assert (await to.tell("cancel", jobs=["a"]))["names"] == ["a"]

    talk(launcher, conversation)


def test_those_who_wait_hold_up_nobody_and_leave_nothing_behind(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)

    async def conversation(to: Talk) -> None:
        await to.tell("run", job_file="jobs.yaml", simulate=1)
        launcher.wait_for("attempt_started")
        waiting: set[int] = set()

        async def wait(number: int) -> None:
            async def progress(*_: object) -> None:
                waiting.add(number)

            await to.client.call_tool("status", {"wait": 55}, progress_callback=progress)

        async with anyio.create_task_group() as waits:
            for number in range(MAX_CALLS):
                waits.start_soon(wait, number)
            with anyio.fail_after(40):  # sooner than one of those is answered
                while len(waiting) < MAX_CALLS:
                    await anyio.sleep(0.01)
                assert (await to.tell("status"))["run"]["state"] == "running"
            waits.cancel_scope.cancel()
        server, journal = server_of_this_process(), str(launcher.run / "events.jsonl")
        wait_until(lambda: journal not in held_by(server.pid), 40, "no thread follows the run")

    talk(launcher, conversation)


def test_who_waits_hears_how_many_jobs_are_over(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml", f"jobs: [{{name: a, run: 'true'}}, {{name: b, needs: [a], run: '{UNTIL_GO}'}}]"
    )

    async def conversation(to: Talk) -> None:
        heard: list[tuple[float, float | None]] = []

        async def progress(done: float, total: float | None, _: str | None) -> None:
            heard.append((done, total))
            if done == 1:
                (launcher.path / "go").touch()

        await to.tell("run", job_file="jobs.yaml", simulate=1)
        await to.client.call_tool("status", {"wait": 55}, progress_callback=progress)
        assert heard[-2:] == [(1, 2), (2, 2)]
        assert len({done for done, _ in heard}) == len(heard)  # as the protocol has it: more each

    talk(launcher, conversation)


# ── Byte for byte ───────────────────────────────────────────────────────────────────────────────


def line(number: int, method: str, **params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode() + b"\n"


HELLO = line(
    1,
    "initialize",
    protocolVersion="2025-06-18",
    capabilities={},
    clientInfo={"name": "bytes", "version": "0"},
)
RUN_IT = {"job_file": "jobs.yaml", "simulate": 1}
GARBAGE = [
    b"no json\n",
    b"\xff\xfe\x00\n",
    b"\n",
    b"[]\n",
    b"{}\n",
    b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "\\ud800"}}\n',
    b"[" * 100_000 + b"\n",
    line(3, "tools/call"),
    line(4, "tools/call", name="status", arguments=[]),
    line(5, "no/such/method"),
    line(6, "resources/read", uri="gpulaunch://nothing"),
]


@contextmanager
def served(launcher: Launcher) -> Iterator[subprocess.Popen[bytes]]:
    """A server in the launcher's directory, between pipes."""
    with subprocess.Popen(
        [sys.executable, *SERVER],
        cwd=launcher.path,
        env=launcher.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=goes_along(),
    ) as server:
        yield server


def ask(server: subprocess.Popen[bytes], *lines: bytes) -> None:
    assert server.stdin
    server.stdin.write(b"".join(lines))
    server.stdin.flush()


def heard(server: subprocess.Popen[bytes], *numbers: int) -> dict[Any, Any]:
    """The answers by their numbers, once these are there; they come in any order."""
    assert server.stdout
    answers: dict[Any, Any] = {}
    while not answers.keys() >= {*numbers}:
        told = json.loads(server.stdout.readline())
        answers[told.get("id")] = told
    return answers


def hung_up(server: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """The server's status, and what it still said, once its input has ended."""
    assert server.stdin
    assert server.stdout
    assert server.stderr
    server.stdin.close()
    return server.wait(30), server.stdout.read(), server.stderr.read()


def test_what_is_no_message_is_refused_and_the_server_lives_on(launcher: Launcher) -> None:
    """By the older handshake, at once and from a pipe; standard output has the protocol alone."""
    with served(launcher) as server:
        ask(server, HELLO, *GARBAGE, line(9, "tools/call", name="cancel", arguments={}))
        answers = heard(server, 1, 3, 4, 5, 6, 9)
        assert hung_up(server)[:2] == (0, b"")
    assert answers[1]["result"]["serverInfo"]["name"] == "gpulaunch"
    assert "error" in answers[3]
    assert "error" in answers[5]
    assert "no resource" in answers[6]["error"]["message"]
    assert answers[9]["result"]["isError"]


def test_a_path_that_is_no_utf_8_is_answered_as_well_as_may_be(launcher: Launcher) -> None:
    odd = Launcher(launcher.path / os.fsdecode(b"d\xff"))
    odd.file("jobs.yaml", "jobs: [{name: a, run: 'echo $PWD'}]")
    with served(odd) as server:
        ask(server, HELLO, line(2, "tools/call", name="run", arguments=RUN_IT))
        run = heard(server, 2)[2]["result"]["structuredContent"]["run"]
        assert run.startswith(f"{launcher.path}/d?/gpulaunch-runs/")
        ask(server, line(3, "tools/call", name="status", arguments={"wait": 50}))
        told = heard(server, 3)[3]["result"]["structuredContent"]
        assert (told["run"]["state"], told["run"]["dir"]) == ("succeeded", run)
        assert hung_up(server) == (0, b"", b"")


def test_the_end_of_its_input_ends_the_server_whatever_it_looks_at(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--detach").status == 0
    launcher.wait_for("attempt_started")
    with served(launcher) as server:
        ask(server, HELLO, line(2, "tools/call", name="status", arguments={"wait": 55}))
        launcher.looked_at(server)
        status, _, said = hung_up(server)
        assert (status, said) == (0, b"")


def test_what_was_begun_is_carried_through_though_the_input_has_ended(launcher: Launcher) -> None:
    launcher.environ["PYTHONPATH"] = str(launcher.path)
    launcher.file(
        "sitecustomize.py",
        """
        import os, sys, time
        if sys.orig_argv[-1] == "mcp":
            import gpulaunch.mcp.changing as changing
            launch = changing.launch
            def slowly(*given):
                open("begun", "w").close()
                while not os.path.exists("let-go"):
                    time.sleep(0.01)
                return launch(*given)
            changing.launch = slowly
        """,
    )
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    with served(launcher) as server:
        ask(server, HELLO, line(2, "tools/call", name="run", arguments=RUN_IT))
        wait_until((launcher.path / "begun").exists)
        assert server.stdin
        server.stdin.close()
        (launcher.path / "let-go").touch()
        assert server.wait(30) == 0
    launcher.wait_for("run_closed")


def test_at_a_terminal_it_says_whom_it_waits_for_and_ends_by_ctrl_c(launcher: Launcher) -> None:
    with terminal(launcher, "mcp") as screen:
        screen.wait_for("a client is to speak here")
        wait_until(lambda: len(psutil.Process(screen.process.pid).threads()) > 1, 30)
        screen.process.send_signal(signal.SIGINT)
        assert screen.ended() == -signal.SIGINT
        assert "Traceback" not in screen.text
