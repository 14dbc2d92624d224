"""What engines do to a job's container, and fail to do: real docker and podman."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpulaunch.agent.proc import stat_fields
from tests.containers.carried import Bench, Limit
from tests.containers.daemons import PATIENCE, busybox_here
from tests.containers.test_carrier import FOREVER, started
from tests.helpers import wait_until

MEMORY = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


@contextmanager
def silent(bench: Bench) -> Iterator[None]:
    """dockerd does not answer meanwhile."""
    os.kill(bench.engine.daemon, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(bench.engine.daemon, signal.SIGCONT)


# ── What people do to it ────────────────────────────────────────────────────────────────────────


def test_a_container_that_is_stopped_ends_its_job_by_term(contained: Bench) -> None:
    job = started(contained, f"trap 'echo saved; exit 7' TERM; up; {FOREVER}")
    contained.engine.command("stop", job.name)
    assert job.wait() == 7
    assert "saved" in job.text().splitlines()
    assert job.cleared()


def test_a_container_that_is_killed_ends_its_job_by_kill(contained: Bench) -> None:
    job = started(contained, f"up; {FOREVER}")
    contained.engine.command("kill", job.name)
    words = f"gpulaunch: the container {job.name} was ended from outside"
    assert (job.wait(), job.lines()) == (-signal.SIGKILL, [words])
    assert job.cleared()


# ── What it may use ─────────────────────────────────────────────────────────────────────────────


def test_a_process_that_was_killed_for_memory_is_told(contained: Bench) -> None:
    if contained.engine.account or not os.access(MEMORY, os.W_OK):
        pytest.skip("memory can be limited by root, with cgroup v1")
    limits = ["--memory=32m", "--memory-swap=32m"]
    job = contained.run("sh", "-c", "tail /dev/zero; exit 9", options=limits)
    words = "the kernel killed 1 process of the container for memory (its cgroup's oom_kill)"
    assert (job.wait(), job.lines()) == (9, [f"gpulaunch: {words}"])
    job = contained.run("tail", "/dev/zero", options=limits)
    assert (job.wait(), job.lines()) == (-signal.SIGKILL, [f"gpulaunch: {words}"])


def test_an_image_may_have_nothing_but_the_program(contained: Bench) -> None:
    contained.engine.import_image("lone:1", {"true": busybox_here().read_bytes()}, busybox=False)
    job = contained.run("/true", image="lone:1", unset=["PATH", "HOME"])
    assert (job.wait(), job.text()) == (0, "")


def test_it_ends_all_of_its_own_among_the_machine_s_processes(contained: Bench) -> None:
    """With `--pid=host` there is no PID 1 with which the others end."""
    daemons = 'setsid sh -c "sleep 999; true" & (setsid sleep 999 &);'
    job = started(contained, f"{daemons} up; {FOREVER}", options=["--pid=host"])
    job.kill()
    assert job.wait() == -signal.SIGKILL
    job.await_gone()
    job = started(contained, f"{daemons} up; exit 3", options=["--pid=host"])
    assert job.wait() == 3
    assert job.cleared()


def test_the_machine_s_other_processes_are_left_alone(docker_bench: Bench) -> None:
    bystander = subprocess.Popen(["sleep", "999"])
    job = started(docker_bench, f"up; {FOREVER}", options=["--pid=host"])
    job.kill()
    job.wait()
    job.await_gone()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_the_container_s_first_process_is_named_beside_the_record(contained: Bench) -> None:
    job = started(contained, f"up; {FOREVER}")
    pid, began = map(int, (job.folder / "pid").read_text().split())
    assert int(stat_fields(pid)[19]) == began
    assert Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") == b"keeper-inside"
    assert not (job.folder / "socket").exists(), "nobody else can connect"
    job.kill(signal.SIGTERM)
    job.wait()


def test_the_engine_s_own_words_are_in_the_log_where_it_starts_nothing(contained: Bench) -> None:
    job = contained.run("true", options=["--no-such-option"])
    name = contained.engine.name
    words = f"gpulaunch: {name} could not start the container (status 125)"
    assert (job.wait(), job.lines()) == (125, [words])
    assert "no-such-option" in job.text()
    assert job.cleared()


def test_another_user_inside_is_let_in_through_a_directory_of_the_caller_s(
    contained: Bench,
) -> None:
    """Only the socket's directory is mounted: the modes of those above it keep others out."""
    home = contained.engine.folder
    before = home.stat().st_mode
    home.chmod(0o700)
    try:
        job = contained.run("sh", "-c", "id -u; exit 3", options=["--user=1234:1234"], anyone=True)
    finally:
        home.chmod(before)
    assert (job.wait(), job.text()) == (3, "1234\n")


# ── A daemon that does not answer ───────────────────────────────────────────────────────────────


def test_a_start_is_given_up_where_no_daemon_answers(docker_bench: Bench) -> None:
    quick = [Limit("starting.FIRST_LOOK", 0.1), Limit("starting.ANSWER_TIMEOUT", 0.1)]
    quick += [Limit("engine.ABANDON_TIMEOUT", 0.1), Limit("engine.REMOVE_TIMEOUT", 0.1)]
    with silent(docker_bench):
        job = docker_bench.run("sh", "-c", "echo begun > $WORK/begun", limits=quick)
    words = "gpulaunch: docker does not answer; the container was not started"
    assert (job.wait(), job.lines()) == (125, [words])
    assert (job.folder / "record.json").exists(), "for who comes later"
    docker_bench.containers()
    job.await_gone()
    assert not job.file("begun").exists()


def test_a_term_ends_it_before_a_silent_daemon_has_started_it(docker_bench: Bench) -> None:
    with silent(docker_bench):
        job = docker_bench.job("true")
        wait_until((job.folder / "socket").exists, PATIENCE)
        job.kill(signal.SIGTERM)
        words = "gpulaunch: docker does not answer; the container was not started"
        assert (job.wait(), job.lines()) == (-signal.SIGTERM, [words])
    job.await_gone()


def test_a_term_ends_it_while_the_daemon_is_silent(docker_bench: Bench) -> None:
    quick = [Limit("engine.ASKED_REMOVAL_TIMEOUT", 0.2)]
    job = started(docker_bench, f"trap 'exit 8' TERM; up; {FOREVER}", limits=quick)
    with silent(docker_bench):
        job.kill(signal.SIGTERM)
        words = f"docker did not remove the container {job.name} in time; its processes are gone"
        assert (job.wait(), job.lines()) == (8, [f"gpulaunch: {words}"])
        assert not job.alive()
    record = json.loads((job.folder / "record.json").read_text())
    wait_until(job.gone, PATIENCE, "the daemon removes it when it answers")
    assert record["name"] == job.name


def test_a_kill_ends_it_while_the_daemon_is_silent(docker_bench: Bench) -> None:
    job = started(docker_bench, f"trap '' TERM; up; {FOREVER}")
    with silent(docker_bench):
        job.kill()
        assert job.wait() == -signal.SIGKILL
        wait_until(lambda: not [pid for pid in job.alive() if is_of_it(pid)], PATIENCE)
    job.await_gone()


def is_of_it(pid: int) -> bool:
    """Whether a process is in the container, and not the client, which waits for the daemon."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"docker\0")
    except OSError:
        return False


def test_a_daemon_that_answers_is_waited_for(docker_bench: Bench) -> None:
    quick = [Limit("starting.FIRST_LOOK", 0.0), Limit("starting.NEXT_LOOK", 0.0)]
    job = docker_bench.run("sh", "-c", "exit 3", limits=quick)
    assert (job.wait(), job.text()) == (3, "")
    assert job.cleared()
