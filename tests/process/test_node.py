"""The shim on a node: what it claims, checks, fills in, stops and says; real keepers below it."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.agent.launch import launch_message
from gpulaunch.agent.node import grant, run, status
from gpulaunch.agent.node.attempt import NodeAttempt
from gpulaunch.agent.node.signals import StopSignals
from gpulaunch.agent.shared import claim
from gpulaunch.core.causes import Because, ByCluster, Quoted
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Exited,
    Gpu,
    Interrupted,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    TimedOut,
)
from gpulaunch.engines.client import AttemptOver, for_the_child, for_the_keeper
from gpulaunch.engines.command import Command, NodeSlots
from gpulaunch.engines.programs import FOLDER
from gpulaunch.engines.slurm.node_files import (
    Withdrawn,
    last_beat,
    read_start,
    withdraw,
    write_stop,
)
from gpulaunch.gpus.socket_locks import NameHeldError, bind_name
from gpulaunch.journal.ends import read_end
from tests.helpers import goes_along, wait_until
from tests.process.onnode import PATIENCE, Node, driver, finished, listing
from tests.process.pythons import VERSIONS, python
from tests.process.support import Slot, children_of, compiled, marked, token

DEAF = "trap 'echo heard' TERM; echo up; while :; do sleep 0.01; done"
SHOW_MASK = ("sh", "-c", 'echo "${CUDA_VISIBLE_DEVICES-unset}" ${CUDA_DEVICE_ORDER-unset}')


def granted(index: int, uuid: str, name: str) -> Gpu:
    return Gpu(uuid, index, f"n1/{index}", name, 0, node="n1")


@pytest.fixture
def node(tmp_path: Path, keeper: str) -> Node:
    return Node(tmp_path / "run")


Ask = Callable[..., list[str]]


@pytest.fixture(scope="session")
def asked_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("asked.c")
    program = tmp_path_factory.mktemp("asked") / "asked"
    return compiled(program, [source, FOLDER / "native/tools.c"])


@pytest.fixture
def ask(asked_program: Path) -> Ask:
    """Ask a part of the compiled keepers: `ask("rest", "12") == ["1"]`."""

    def lines(*words: str, **environ: str) -> list[str]:
        said = subprocess.check_output([asked_program, *words], env=environ, timeout=PATIENCE)
        return os.fsdecode(said).splitlines()

    return lines


def running(node: Node, attempt: AttemptId, text: str = "up") -> None:
    """Until the job has said so in its log."""

    def said() -> bool:
        log = node.run.log(attempt)
        return log.exists() and text in log.read_text()

    wait_until(said, PATIENCE)


# ── How it ends ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "limits", "outcome", "status"),
    [
        ("exit 0", {}, Exited(0), 0),
        ("exit 3", {}, Exited(3), 3),
        ("exit 3", {"success_codes": frozenset({0, 3})}, Exited(3), 0),
        ("exit 0", {"success_codes": frozenset({3})}, Exited(0), 1),
        ("kill -SEGV $$", {}, Signaled(11), 139),
        ("sleep 100", {"timeout": 0.2}, TimedOut("timeout", 0.2, Signaled(15)), 124),
        ("sleep 100", {"idle_timeout": 0.2}, TimedOut("idle_timeout", 0.2, Signaled(15)), 124),
        ("trap 'exit 0' TERM; sleep 100 & wait", {"timeout": 0.2},
         TimedOut("timeout", 0.2, Exited(0)), 124),
        ("exit 0", {"outputs": ("/no/file",)}, MissingOutput(("/no/file (absent)",), Exited(0)), 1),
    ],
)  # fmt: skip
def test_slurm_is_told_success_only_of_what_the_job_file_calls_one(
    node: Node, script: str, limits: dict[str, Any], outcome: Outcome, status: int
) -> None:
    attempt = node.ticket("bash", "-c", script, **limits)
    assert node.serve() == (status, "")
    assert node.outcome(attempt) == outcome


@pytest.mark.parametrize(
    ("script", "kept"), [("exit 0", False), ("exit 3", True), ("echo x", True), ("echo >&2", True)]
)
def test_a_success_without_a_word_leaves_no_log(node: Node, script: str, kept: bool) -> None:
    attempt = node.ticket("sh", "-c", script)
    node.serve()
    assert node.run.log(attempt).exists() == kept


def test_what_stands_in_the_place_of_an_empty_log_is_left_alone(node: Node) -> None:
    log = node.run.log(AttemptId("job", 1))
    attempt = node.ticket("sh", "-c", f"rm '{log}' && mkfifo '{log}'")
    assert node.serve()[0] == 0
    assert node.run.log(attempt).is_fifo()


def test_what_cannot_be_started_has_an_end_that_says_why(node: Node) -> None:
    absent = node.ticket("/no/program", job="absent")
    nowhere = node.ticket("true", job="nowhere", cwd="/no/directory")
    assert [node.serve(0)[0], node.serve(1)[0]] == [78, 78]
    assert node.outcome(absent) == NotStarted("there is no program /no/program")
    why = "the working directory /no/directory does not exist"
    assert node.outcome(nowhere) == NotStarted(why)


def test_without_its_keepers_nothing_is_started(node: Node) -> None:
    ends, absent = node.ticket("true", job="ends"), node.ticket("true", job="absent")
    node.run.keepers().write_text("#!/bin/sh\nexit 1\n")
    assert node.serve(0)[0] == 78
    assert node.outcome(ends) == NotStarted("its keepers did not start on node n1")
    node.run.keepers().unlink()
    assert node.serve(1)[0] == 78
    where = f"No such file or directory: {node.run.keepers()}, on node n1"
    assert node.outcome(absent) == NotStarted(where)


def test_where_the_end_cannot_be_laid_out_that_is_said(node: Node) -> None:
    node.ticket("true")
    node.run.ends.rmdir()
    status, said = node.serve()
    assert status == 78
    assert "may be lost (No such file or directory)" in said
    assert "cannot lay out" in said


def test_where_it_cannot_be_claimed_nothing_is_begun(node: Node) -> None:
    attempt = node.ticket("true")
    node.run.starts.rmdir()
    status, said = node.serve()
    assert status == 78
    assert re.fullmatch(
        r"gpulaunch: job\.1: No such file or directory: .*/slurm/starts/\.new-[0-9a-f]{24}, on node"
        r" n1\n",
        said,
    )
    assert isinstance(node.outcome(attempt), NotStarted)
    assert not node.run.log(attempt).exists()


@pytest.mark.parametrize("spoilt", ["empty", "half", "its checksum is another's"])
def test_a_ticket_that_is_not_whole_is_none(node: Node, spoilt: str) -> None:
    attempt = node.ticket("echo", "ran")
    whole = node.run.ticket(attempt).read_bytes()
    cut = {"empty": b"", "half": whole[: len(whole) // 2]}
    node.run.ticket(attempt).write_bytes(cut.get(spoilt, b"%08x\0" % 7 + whole[9:]))
    assert node.serve(patience=0.1)[0] == 78
    assert isinstance(node.outcome(attempt), NotStarted)
    assert not node.run.log(attempt).exists()


def test_a_long_command_comes_whole(node: Node) -> None:
    """Longer than one message to keepers."""
    words = [f"{number:05}" for number in range(20_000)]
    attempt = node.ticket("echo", *words)
    assert node.serve() == (0, "")
    assert node.log(attempt).split() == words


def test_what_it_needed_is_linked_where_it_left_something(node: Node) -> None:
    for name in ("a.1", "b.2", "empty.1"):
        (node.run.path / "out" / name).mkdir(parents=True)
    (node.run.path / "results").mkdir()
    for name in ("a.1", "b.2"):
        (node.run.path / "out" / name / "x").touch()
    (node.run.path / "results/a").symlink_to("../out/a.0")
    node.ticket("true", after=("a.1", "b.2", "empty.1", "gone.1"))
    assert node.serve() == (0, "")
    links = {each.name: os.readlink(each) for each in (node.run.path / "results").iterdir()}
    assert links == {"a": "../out/a.1", "b": "../out/b.2"}


def test_nothing_of_an_attempt_is_left_when_the_shim_is_gone(node: Node) -> None:
    mark = token()
    attempt = node.ticket("sh", "-c", "setsid sleep 1000 & exit 0", env_set={"MARK": mark})
    assert node.serve()[0] == 0
    assert node.end(attempt).end.leftovers == 1
    assert marked(mark, "environ") == []
    assert marked(str(node.run.path)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shim_runs_on(version: str, tmp_path: Path) -> None:
    node = Node(tmp_path / "run", python(version))
    slots = NodeSlots.fresh(2)
    words = f"{slots.gpu_index} {slots.gpu_uuid} {slots.port} {slots.master_port}"
    good = node.ticket("echo", words, job="good", gpus=2, slots=slots)
    long = node.ticket("sh", "-c", "echo up; exec sleep 1000", job="long")
    environ = driver(tmp_path / "bin", listing(["GPU-a", "GPU-b"]))
    assert node.serve(0, mask="0,1", environ=environ) == (0, "")
    index, uuid, *ports = node.log(good).split()
    assert (index, uuid) == ("0,1", "GPU-a,GPU-b")
    assert len({int(port) for port in ports}) == 2
    assert node.serve(0, mask="0,1", environ=environ)[0] == 75
    process = node.start(1)
    running(node, long)
    process.terminate()
    assert finished(process) == (143, "")
    assert node.outcome(long) == Interrupted(ByCluster("told_to_end"), Signaled(15))


# ── Once ────────────────────────────────────────────────────────────────────────────────────────


def test_the_claim_says_who_runs_it_and_where(node: Node) -> None:
    attempt = node.ticket("true", gpus=1)
    environ: dict[str, str | None] = {"SLURM_RESTART_COUNT": "2", "PATH": "/usr/bin:/bin"}
    process = node.start(mask="3", environ=environ)
    assert finished(process)[0] == 0
    start = node.began(attempt)
    assert (start.attempt, start.job, start.node) == ("job.1", "12_0", "n1")
    assert (start.pid, start.restart, start.mask) == (process.pid, 2, "3")
    assert (start.host, start.boot) == (os.uname().nodename, grant.boot())
    assert start.started.mono < node.end(attempt).end.ended.mono
    assert start.started.utc < node.end(attempt).end.ended.utc
    assert node.run.start(attempt).stat().st_mode & 0o777 == 0o600


def test_outside_of_an_array_the_first_of_the_list_is_run(node: Node) -> None:
    attempt = node.ticket("true")
    alone: dict[str, str | None] = {"SLURM_ARRAY_JOB_ID": None, "SLURM_ARRAY_TASK_ID": None}
    assert node.serve(environ=alone)[0] == 0
    assert node.began(attempt).job == "13"


def test_what_was_started_before_is_left_alone(node: Node) -> None:
    attempt = node.ticket("sh", "-c", "echo ran")
    assert node.serve()[0] == 0
    files = {path: path.read_bytes() for path in node.run.path.rglob("*") if path.is_file()}
    before = "was started before, as Slurm job 12_0 on node n1"
    expected = f"gpulaunch: job.1 {before}: it is not started again\n"
    again: dict[str, str | None] = {"SLURMD_NODENAME": "n2", "SLURM_ARRAY_JOB_ID": "99"}
    assert node.serve(environ=again) == (75, expected)
    node.run.ticket(attempt).rename(node.run.path / "aside")  # as the client does after its end
    assert node.serve(environ=again, patience=3600) == (75, expected), "no ticket is waited for"
    (node.run.path / "aside").rename(node.run.ticket(attempt))
    assert files == {path: path.read_bytes() for path in node.run.path.rglob("*") if path.is_file()}
    assert node.log(attempt) == "ran\n"


def test_of_twenty_who_claim_an_attempt_together_one_runs_it(node: Node) -> None:
    attempt = node.ticket("sh", "-c", f"echo ran >> {node.run.path}/ran")
    node.run.ticket(attempt).rename(node.run.path / "aside")
    processes = [node.start() for _ in range(20)]
    (node.run.path / "aside").rename(node.run.ticket(attempt))
    statuses = [finished(process)[0] for process in processes]
    assert sorted(statuses) == [0, *[75] * 19]
    assert (node.run.path / "ran").read_text() == "ran\n"
    assert node.outcome(attempt) == Exited(0)
    assert [path.name for path in node.run.starts.iterdir()] == ["job.1"]


def test_a_link_that_was_made_though_its_answer_was_lost_is_a_claim(tmp_path: Path) -> None:
    """As NFS does it: the repeated request finds the name taken, by ourselves."""
    place = os.fsencode(tmp_path / "job.1")
    assert claim([place], {"a": 1}) == [True]
    assert claim([place], {"a": 2}) == [False]
    assert json.loads(Path(os.fsdecode(place)).read_text()) == {"a": 1}

    def repeated(draft: bytes, name: bytes) -> None:
        os.link(draft, name)
        os.link(draft, name)

    assert claim([os.fsencode(tmp_path / "job.2")], {"a": 3}, repeated) == [True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.1", "job.2"]


def test_what_its_client_withdrew_is_never_begun(node: Node) -> None:
    attempt = node.ticket("sh", "-c", "echo ran")
    assert withdraw([node.run.start(attempt)], "cancelled", "you") == [True]
    node.run.ticket(attempt).unlink()  # as the client does then
    assert node.serve(patience=3600) == (
        75,
        "gpulaunch: job.1 was withdrawn (you): it is not started\n",
    )
    assert read_start(node.run.start(attempt)) == Withdrawn("cancelled", "you")
    assert not node.run.log(attempt).exists()
    assert not node.run.end(attempt).exists()


def test_of_what_is_withdrawn_together_only_what_no_node_has_is(node: Node) -> None:
    attempts = [node.ticket("true", job=f"job{number}") for number in range(4)]
    assert node.serve(2)[0] == 0
    claims = [node.run.start(attempt) for attempt in attempts]
    assert withdraw(claims, "interrupted", "Ctrl-C") == [True, True, False, True]
    assert node.began(attempts[2]).job == "12_2"
    assert withdraw(claims, "interrupted", "again") == [False] * 4
    assert read_start(claims[0]) == Withdrawn("interrupted", "Ctrl-C")
    assert sorted(path.name for path in node.run.starts.iterdir()) == [c.name for c in claims]


def test_a_withdrawal_whose_answer_was_lost_is_one(tmp_path: Path) -> None:
    """As NFS does it: the repeated request finds the name taken, by ourselves."""

    def repeated(draft: str, name: str | os.PathLike[str]) -> None:
        os.link(draft, name)
        os.link(draft, name)

    (tmp_path / "job.2").write_text("a node's")
    claims = [tmp_path / f"job.{number}" for number in (1, 2, 3)]
    assert withdraw(claims, "interrupted", "Ctrl-C", repeated) == [True, False, True]


def test_of_a_node_and_a_client_who_claim_it_together_one_has_it(node: Node) -> None:
    for number in range(10):
        attempt = node.ticket("sh", "-c", "echo up; exec sleep 1000", job=f"job{number}")
        aside = node.run.path / "aside"
        node.run.ticket(attempt).rename(aside)
        process = node.start(number)
        wait_until(lambda pid=process.pid: hears(pid, signal.SIGTERM), PATIENCE)  # type: ignore[misc]
        aside.rename(node.run.ticket(attempt))
        (won,) = withdraw([node.run.start(attempt)], "interrupted", "Ctrl-C")
        if not won:
            running(node, attempt)
            process.terminate()
        assert finished(process)[0] == (75 if won else 143)
        assert node.run.log(attempt).exists() == (not won)


def test_a_start_of_another_version_is_read_for_what_it_has_in_common(node: Node) -> None:
    attempt = node.ticket("true", gpus=1)
    assert node.serve(mask="0", environ={"PATH": "/usr/bin:/bin"})[0] == 0
    start, path = node.began(attempt), node.run.start(attempt)
    record = json.loads(path.read_text().splitlines()[0])
    record["gpus"][0]["more"] = record["more"] = 1
    del record["awaits_cards"]
    path.write_text(json.dumps(record))
    assert node.began(attempt) == start


def test_where_nobody_claimed_there_is_no_start(tmp_path: Path) -> None:
    assert read_start(tmp_path / "job.1") is None
    assert read_start(tmp_path / "absent" / "job.1") is None


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────


def test_the_mask_is_what_slurm_set(node: Node, tmp_path: Path) -> None:
    environ = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", **driver(tmp_path / "bin", "exit 9")}
    env_set = {"CUDA_VISIBLE_DEVICES": "7"}
    unset = ("CUDA_VISIBLE_DEVICES",)
    attempt = node.ticket(*SHOW_MASK, gpus=2, env_set=env_set, env_unset=unset)
    assert node.serve(mask="1,3", environ=environ)[0] == 0
    assert node.log(attempt) == "1,3 PCI_BUS_ID\n"
    cards = (granted(1, "n1/1", ""), granted(3, "n1/3", ""))
    assert node.began(attempt).gpus == cards


@pytest.mark.parametrize("mask", [None, "", "NoDevFiles", "0,1"])
def test_a_job_without_cards_sees_none(node: Node, mask: str | None) -> None:
    attempt = node.ticket(*SHOW_MASK)
    status, _ = node.serve(environ={"CUDA_VISIBLE_DEVICES": mask, "PATH": "/usr/bin:/bin"})
    assert status == 0
    assert node.log(attempt) == " unset\n"


@pytest.mark.parametrize(
    ("mask", "gpus", "words"),
    [
        (None, 1, "0 cards on node n1 (CUDA_VISIBLE_DEVICES is not set), 1 card was asked for"),
        ("", 1, "0 cards on node n1 (CUDA_VISIBLE_DEVICES is ''), 1 card was asked for"),
        ("0,1", 1, "2 cards on node n1 (CUDA_VISIBLE_DEVICES is '0,1'), 1 card was asked for"),
        ("4", 2, "1 card on node n1 (CUDA_VISIBLE_DEVICES is '4'), 2 cards were asked for"),
    ],
)
def test_more_or_fewer_cards_than_asked_for_start_nothing(
    node: Node, mask: str | None, gpus: int, words: str
) -> None:
    attempt = node.ticket("true", gpus=gpus)
    assert node.serve(mask=mask, environ={"PATH": "/usr/bin:/bin"}) == (
        78,
        f"gpulaunch: job.1: Slurm granted {words}\n",
    )
    assert node.outcome(attempt) == NotStarted(f"Slurm granted {words}")
    assert not node.run.log(attempt).exists()


def test_a_card_has_the_nodes_number_and_the_drivers_identity(node: Node, tmp_path: Path) -> None:
    """Under device cgroups the only card is the first one, to the mask and to the driver."""
    slots = NodeSlots.fresh(1)
    attempt = node.ticket(
        "sh", "-c", f"echo {slots.gpu_index} '{slots.gpu_uuid}' $GPU $CACHE", gpus=1, slots=slots,
        env_set={"GPU": slots.gpu_uuid, "CACHE": f"/cache/triton/{slots.card}"},
    )  # fmt: skip
    environ = {**driver(tmp_path / "bin", listing(["GPU-5f"])), "SLURM_JOB_GPUS": "3"}
    assert node.serve(mask="0", environ=environ)[0] == 0
    assert node.log(attempt) == "3 GPU-5f GPU-5f /cache/triton/GPU-5f\n"
    assert node.began(attempt).gpus == (granted(3, "GPU-5f", "NVIDIA H100"),)


def test_a_card_that_no_driver_knows_is_named_for_its_node(node: Node) -> None:
    slots = NodeSlots.fresh(2)
    attempt = node.ticket("echo", slots.gpu_uuid, slots.card, gpus=2, slots=slots)
    assert node.serve(mask="0,2", environ={"PATH": "/usr/bin:/bin"})[0] == 0
    assert node.log(attempt) == "n1/0,n1/2 n1_0+n1_2\n"


def test_a_mask_of_identities_is_kept_as_it_is(node: Node) -> None:
    attempt = node.ticket(*SHOW_MASK, gpus=1)
    environ: dict[str, str | None] = {"SLURM_JOB_GPUS": "5", "PATH": "/usr/bin:/bin"}
    assert node.serve(mask="MIG-77", environ=environ)[0] == 0
    assert node.log(attempt) == "MIG-77 PCI_BUS_ID\n"
    assert node.began(attempt).gpus == (granted(5, "MIG-77", ""),)


V1 = "9:name=systemd:/x\n4:cpu,memory:/slurm_n1/uid_7/job_12/step_batch\n0::/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_12/step_batch/user/task_0\n"


@pytest.mark.parametrize(
    ("groups", "counter", "found"),
    [
        (V1, "memory/slurm_n1/uid_7/job_12/step_batch/memory.oom_control", True),
        (V2, "system.slice/slurmstepd.scope/job_12/step_batch/user/task_0/memory.events", True),
        (V2, "system.slice/slurmstepd.scope/job_12/memory.events", True),
        (V2, "system.slice/slurmstepd.scope/memory.events", False),
        (V2.replace("job_12", "job_123"), "system.slice/slurmstepd.scope/memory.events", False),
        ("0::/user.slice\n", "user.slice/memory.events", False),
    ],
)
def test_kills_for_want_of_memory_are_counted_in_the_cgroup_of_the_job_alone(
    tmp_path: Path, groups: str, counter: str, found: bool
) -> None:
    (tmp_path / "own").write_text(groups)
    file = tmp_path / counter
    file.parent.mkdir(parents=True)
    file.write_text("oom_kill_disable 0\nunder_oom 0\noom 9\noom_kill 3\noom_group_kill 1\n")
    told = grant.memory_counter(
        {b"SLURM_JOB_ID": b"12"}, os.fsencode(tmp_path / "own"), os.fsencode(tmp_path)
    )
    assert told == (os.fsencode(file) if found else None)


@pytest.mark.parametrize(
    ("text", "count"),
    [("oom 9\noom_kill 3\noom_group_kill 1\n", 3), ("", 0), ("oom 1\n", 0), (None, 0)],
)
def test_kills_for_want_of_memory_are_in_the_record(
    slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, count: int
) -> None:
    counter = tmp_path / "counter"
    command = Command("a.1", ("true",), log=str(slot.log), end=str(slot.end_file))
    told = for_the_keeper(command) | {"oom_kills": str(counter)}
    if text is not None:
        counter.write_text(text)
    message = launch_message(told, for_the_child(command))  # as the node's program fills it in
    monkeypatch.setattr("gpulaunch.engines.client.message_of", lambda _: message)
    slot.pair.launch(command)
    slot.expect(AttemptOver)
    assert json.loads(slot.end_file.read_text().split(" ", 1)[1].strip("\0"))["oom_kills"] == count


def test_a_driver_that_does_not_answer_holds_nobody_up_for_long(node: Node, tmp_path: Path) -> None:
    attempt = node.ticket("true", gpus=1)
    environ = driver(tmp_path / "bin", "exec sleep 1000")
    assert node.serve(mask="0", environ=environ)[0] == 0
    assert node.began(attempt).gpus == (granted(0, "n1/0", ""),)


def test_an_attempt_is_claimed_while_the_driver_takes_its_time(node: Node, tmp_path: Path) -> None:
    attempt = node.ticket("sh", "-c", "echo ran", gpus=1)
    go = tmp_path / "go"
    slow = f"until [ -e {go} ]; do sleep 0.01; done\n" + listing(["GPU-a"])
    process = node.start(mask="0", environ=driver(tmp_path / "bin", slow))
    wait_until(node.run.start(attempt).exists, PATIENCE)
    start = node.began(attempt)
    assert (start.gpus, start.awaits_cards) == ((granted(0, "n1/0", ""),), True)
    assert withdraw([node.run.start(attempt)], "interrupted", "Ctrl-C") == [False]
    status, said = node.serve(environ={"SLURM_ARRAY_JOB_ID": "99"})
    assert (status, "as Slurm job 12_0 on node n1" in said) == (75, True)
    go.touch()
    assert finished(process)[0] == 0
    start = node.began(attempt)
    assert (start.gpus, start.awaits_cards) == ((granted(0, "GPU-a", "NVIDIA H100"),), False)
    status, said = node.serve(environ={"SLURM_ARRAY_JOB_ID": "99"})
    assert (status, "as Slurm job 12_0 on node n1" in said) == (75, True)
    assert node.log(attempt) == "ran\n"


def test_a_stop_that_comes_while_the_driver_takes_its_time_begins_nothing(
    node: Node, tmp_path: Path
) -> None:
    attempt = node.ticket("sh", "-c", "echo ran", gpus=1)
    go = tmp_path / "go"
    slow = f"until [ -e {go} ]; do sleep 0.01; done"
    process = node.start(mask="0", environ=driver(tmp_path / "bin", slow))
    wait_until(node.run.start(attempt).exists, PATIENCE)
    process.terminate()
    go.touch()
    assert finished(process) == (1, "")
    assert node.outcome(attempt) == Interrupted(ByCluster("told_to_end"))
    assert not node.run.log(attempt).exists()


@pytest.mark.parametrize(
    "more", [b"", b'{"gpus": [{"ind', b'{"gpus": 1', b"\0\0\0\n", b"[]\n", b'{"gpus": 1}\n']
)
def test_a_claim_stands_whatever_became_of_what_follows_it(node: Node, more: bytes) -> None:
    attempt = node.ticket("true", gpus=1)
    environ: dict[str, str | None] = {"PATH": "/usr/bin:/bin"}
    assert node.serve(mask="3", environ=environ)[0] == 0
    claim = node.run.start(attempt).read_bytes().partition(b"\n")[0]
    node.run.start(attempt).write_bytes(claim + b"\n" + more)
    start = node.began(attempt)
    assert (start.gpus, start.awaits_cards) == ((granted(3, "n1/3", ""),), True)
    assert node.serve(mask="3", environ=environ)[0] == 75


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", [0]), ("2,0", [2, 0]), ("0-2,5", [0, 1, 2, 5]), ("", []), ("a", []), ("0,GPU-1", [])],
)
def test_the_nodes_numbers_are_read(text: str, numbers: list[int]) -> None:
    assert grant.spread(text) == numbers


def test_the_drivers_listing_is_read_with_and_without_instances() -> None:
    text = (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5f3c)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-c6d4)\n"
        "GPU 10: NVIDIA H100 (PCIe) (UUID: GPU-77)\n"
        "Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error\n"
    )
    first, last = ("GPU-5f3c", "NVIDIA A100-SXM4-80GB"), ("GPU-77", "NVIDIA H100 (PCIe)")
    expected = {"0": first, "GPU-5f3c": first, "10": last, "GPU-77": last}
    assert grant.parsed_listing(text) == expected


@pytest.mark.parametrize("wrapped", ["", "sh -c '{}; true'"])
def test_slurms_own_process_is_found_above_the_batch_script(
    asked_program: Path, tmp_path: Path, wrapped: str
) -> None:
    for name in ("slurmstepd", "other"):
        (tmp_path / name).symlink_to("/bin/sh")
    line = (wrapped or "{}").format(f"{asked_program} sender")
    for name in ("slurmstepd", "other"):
        said = subprocess.check_output([tmp_path / name, "-c", f"echo $$; {line}; true"])
        own, found = map(int, said.split())
        assert found == (own if name == "slurmstepd" else 0)


SENDER = "import threading, sys; threading.Thread(target=sys.stdin.read).start(); {}"


@pytest.mark.parametrize(
    ("does", "rests"), [("sys.stdin.read()", True), ("\nwhile 1: pass", False)]
)
def test_who_may_be_sending_signals_is_at_rest_once_no_thread_is_at_work(
    ask: Ask, does: str, rests: bool
) -> None:
    command = [sys.executable, "-c", SENDER.format(does)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=goes_along()) as sender:
        threads = Path(f"/proc/{sender.pid}/task")
        wait_until(lambda: len(list(threads.iterdir())) == 2, PATIENCE)
        try:
            wait_until(lambda: ask("rest", str(sender.pid)) == ["01"[rests]], PATIENCE)
            os.kill(sender.pid, signal.SIGSTOP)  # it may be in the midst of it
            wait_until(lambda: ask("rest", str(sender.pid)) == ["0"], PATIENCE)
        finally:
            sender.kill()
    assert ask("rest", str(sender.pid)) == ["0"]


# ── What only the node knows ────────────────────────────────────────────────────────────────────


def test_every_attempt_on_a_node_has_ports_of_its_own(node: Node) -> None:
    names = ["a", "b"]
    for job in names:
        slots = NodeSlots.fresh(0)
        script = f"echo {slots.port} {slots.master_port} up; exec sleep 1000"
        node.ticket("sh", "-c", script, job=job, slots=slots)
    processes = [node.start(index) for index in (0, 1)]
    for attempt in node.attempts:
        running(node, attempt)
    ports = [int(word) for each in node.attempts for word in node.log(each).split()[:2]]
    assert len(set(ports)) == 4
    for port in ports:
        with pytest.raises(NameHeldError):
            bind_name(f"port/{port}")
    for process in processes:
        process.terminate()
        finished(process)
    bind_name(f"port/{ports[0]}").close()


def test_the_environment_is_slurms_with_the_jobs_changes(node: Node) -> None:
    slots = NodeSlots.fresh(0)
    changes = {"ADDED": "1", "THREADS": slots.threads, "MASTER": slots.master_port}
    unset = ("SLURM_PROCID", "NOT_THERE")
    attempt = node.ticket("env", "-0", slots=slots, env_set=changes, env_unset=unset)
    site: dict[str, str | None] = {"SLURM_PROCID": "0", "SITE": "ä b", "LC_ALL": None, "LANG": None}
    assert node.serve(environ=site)[0] == 0
    found = dict(word.split("=", 1) for word in node.log(attempt).rstrip("\0").split("\0"))
    assert found.pop("MASTER").isdigit()
    expected = {
        "ADDED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": os.environ["PATH"],
        "SITE": "ä b",
        "SLURMD_NODENAME": "n1",
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "0",
        "SLURM_CPUS_ON_NODE": "6",
        "SLURM_JOB_ID": "13",
        "THREADS": "6",
    }
    assert found == expected


def test_marks_are_filled_in_outputs_too(node: Node, tmp_path: Path) -> None:
    slots = NodeSlots.fresh(1)
    place = f"{tmp_path}/{slots.gpu_index}.out"
    attempt = node.ticket("sh", "-c", f"echo x > {place}", gpus=1, slots=slots, outputs=(place,))
    assert node.serve(mask="4", environ={"PATH": "/usr/bin:/bin"})[0] == 0
    assert node.outcome(attempt) == Exited(0)
    assert (tmp_path / "4.out").exists()


def test_marks_need_no_quotes_and_are_never_the_same() -> None:
    slots, others = NodeSlots.fresh(1), NodeSlots.fresh(1)
    marks = [getattr(slots, name) for name in NodeSlots.__slots__ if name != "gpus"]
    assert len(set(marks)) == len(marks)
    assert all(set(mark) <= set("@:_0123456789abcdefghijklmnopqrstuvwxyz") for mark in marks)
    assert slots.port != others.port


def test_no_mark_is_part_of_another() -> None:
    slots = NodeSlots.fresh(1)
    assert slots.port not in slots.master_port


# ── Stopping ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_for_which_the_client_left_a_reason_has_that_reason(
    node: Node, number: signal.Signals
) -> None:
    script = "trap 'exit 5' TERM; echo up; sleep 1000 & wait"
    attempt = node.ticket("bash", "-c", script, grace=1000.0)
    process = node.start()
    running(node, attempt)
    write_stop(node.run.stop(attempt), "cancelled", "you")
    process.send_signal(number)
    assert finished(process) == (5, "")
    assert node.outcome(attempt) == Cancelled(Exited(5))


def test_a_stop_is_found_without_any_signal(node: Node) -> None:
    """As where Slurm's controller does not answer."""
    script = "trap 'exit 5' TERM; echo up; sleep 1000 & wait"
    attempt = node.ticket("bash", "-c", script, grace=1000.0)
    process = node.start()
    running(node, attempt)
    write_stop(node.run.stop(attempt), "cancelled", "you")
    assert finished(process) == (5, "")
    assert node.outcome(attempt) == Cancelled(Exited(5))


def test_while_it_is_at_work_it_gives_signs_of_life(node: Node) -> None:
    """By which a client knows that it lives, whatever Slurm says of it."""
    node.hasten()
    go = node.run.path / "go"
    attempt = node.ticket("sh", "-c", f"echo up; until [ -e '{go}' ]; do sleep 0.01; done")
    process = node.start()
    running(node, attempt)
    beats: set[float | None] = set()

    def three() -> bool:
        beats.add(last_beat(node.run.start(attempt)))
        return len(beats) > 2

    wait_until(three, PATIENCE)
    go.touch()
    assert finished(process) == (0, "")
    assert last_beat(node.run.start(AttemptId("never", 1))) is None


def test_a_stop_that_becomes_stronger_is_found_as_well(node: Node) -> None:
    attempt = node.ticket("bash", "-c", DEAF, grace=1000.0)
    process = node.start()
    running(node, attempt)
    write_stop(node.run.stop(attempt), "interrupted", "Ctrl-C")
    running(node, attempt, "heard")
    write_stop(node.run.stop(attempt), "interrupted", "Ctrl-C", now=True)
    assert finished(process)[0] == 137
    assert node.outcome(attempt) == Interrupted(Quoted("Ctrl-C"), Signaled(9))


@pytest.mark.parametrize("signals", [[signal.SIGUSR1] * 2, [signal.SIGTERM]])
def test_a_stop_that_comes_by_signal_and_by_its_file_is_one(
    node: Node, signals: list[signal.Signals]
) -> None:
    """Also where it is found first, and where Slurm's answer was lost and it was told again."""
    go = node.run.path / "go"
    script = f"trap 'echo heard' TERM; echo up; until [ -e '{go}' ]; do sleep 0.01; done; exit 4"
    attempt = node.ticket("bash", "-c", script, grace=1000.0)
    process = node.start()
    running(node, attempt)
    write_stop(node.run.stop(attempt), "interrupted", "Ctrl-C")
    running(node, attempt, "heard")
    for number in signals:
        process.send_signal(number)
        wait_until(lambda: not pending(process.pid), PATIENCE)
    go.touch()
    assert finished(process)[0] == 4
    assert node.outcome(attempt) == Interrupted(Quoted("Ctrl-C"), Exited(4))


def pending(pid: int) -> bool:
    """Whether a signal was sent to it that it has not taken yet."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("SigPnd:", "ShdPnd:")) and int(line.split()[1], 16):
            return True
    return False


def test_an_interruption_says_by_whom(node: Node) -> None:
    attempt = node.ticket("sh", "-c", "echo up; exec sleep 1000")
    process = node.start()
    running(node, attempt)
    write_stop(node.run.stop(attempt), "interrupted", "Ctrl-C")
    process.send_signal(signal.SIGUSR1)
    assert finished(process)[0] == 143
    assert node.outcome(attempt) == Interrupted(Quoted("Ctrl-C"), Signaled(15))


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGUSR2], [signal.SIGTERM, signal.SIGTERM], [signal.SIGUSR1, signal.SIGTERM]],
)
def test_what_does_not_heed_the_first_signal_goes_with_the_second(
    node: Node, signals: list[signal.Signals]
) -> None:
    attempt = node.ticket("bash", "-c", DEAF, grace=1000.0)
    process = node.start()
    running(node, attempt)
    for number in signals[:-1]:
        process.send_signal(number)
        running(node, attempt, "heard")
    process.send_signal(signals[-1])
    assert finished(process)[0] == 137
    assert node.outcome(attempt) == Interrupted(ByCluster("told_to_end"), Signaled(9))


def test_signals_of_a_terminal_are_ignored(node: Node) -> None:
    go = node.run.path / "go"
    script = f"echo up; while [ ! -e {go} ]; do sleep 0.01; done; exit 4"
    attempt = node.ticket("sh", "-c", script)
    process = node.start()
    running(node, attempt)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    go.touch()
    assert finished(process)[0] == 4


def test_slurms_signal_to_all_its_processes_leaves_the_keepers_at_work(node: Node) -> None:
    """As scancel without --batch does it: each process of the job gets it."""
    mark = token()
    script = "trap 'echo bye; exit 6' TERM; echo up; while :; do sleep 0.01; done"
    attempt = node.ticket("bash", "-c", script, env_set={"MARK": mark})
    process = node.start()
    running(node, attempt)
    for pid in [*below(process.pid), process.pid]:
        with suppress(ProcessLookupError):  # one of the job's many short ones
            os.kill(pid, signal.SIGTERM)
    assert finished(process)[0] == 6
    record = node.end(attempt)
    assert record.end.outcome in (Exited(6), Interrupted(ByCluster("told_to_end"), Exited(6)))
    assert "bye" in node.log(attempt)
    assert marked(mark, "environ") == []


def test_a_job_that_heeds_slurms_signal_with_0_before_the_shim_does_was_ended_by_slurm(
    node: Node,
) -> None:
    """It may have saved half of its work: no success, of which others go on."""
    script = "trap 'exit 0' TERM; echo up; sleep 1000 & wait"
    attempt = node.ticket("bash", "-c", script)
    process = node.start()
    running(node, attempt)
    for pid in below(process.pid):  # the keepers first; the shim's comes too late
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert finished(process) == (1, "")
    assert node.outcome(attempt) == Interrupted(ByCluster("told_to_end"), Exited(0))


def test_a_signal_that_the_job_alone_has_got_is_not_slurms(node: Node) -> None:
    script = "trap 'exit 0' TERM; echo up; sleep 1000 & wait"
    attempt = node.ticket("bash", "-c", script)
    process = node.start()
    running(node, attempt)
    pid = node_job(process.pid)
    os.kill(pid, signal.SIGTERM)
    assert finished(process) == (0, "")
    assert node.outcome(attempt) == Exited(0)


def node_job(shim: int) -> int:
    """The job's own process: below the spawner, the guardian and the monitor one."""
    (spawner,) = children_of(shim)
    (guardian,) = children_of(spawner)
    (monitor,) = children_of(guardian)
    (job,) = children_of(monitor)
    return job


def below(pid: int) -> list[int]:
    """The keepers and the job."""
    found = children_of(pid)
    return [*found, *(each for child in found for each in below(child))]


def test_what_was_to_stop_before_it_began_is_not_begun(node: Node) -> None:
    attempt = node.ticket("sh", "-c", "echo ran")
    write_stop(node.run.stop(attempt), "cancelled", "you")
    assert node.serve() == (1, "")
    assert node.outcome(attempt) == Cancelled()
    assert not node.run.log(attempt).exists()
    assert node.serve()[0] == 75


def test_slurm_may_end_it_while_its_ticket_is_awaited(node: Node) -> None:
    attempt = node.ticket("true")
    node.run.ticket(attempt).unlink()
    process = node.start(patience=1000)
    wait_until(lambda: hears(process.pid, signal.SIGTERM), PATIENCE)
    process.terminate()
    assert finished(process)[0] == 1
    assert node.outcome(attempt) == Interrupted(ByCluster("told_to_end"))


def hears(pid: int, number: signal.Signals) -> bool:
    heard = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("SigCgt:", "SigBlk:")):  # blocked, it is read from a descriptor
            heard |= int(line.split()[1], 16)
    return bool(heard >> (number - 1) & 1)


# ── Kills ───────────────────────────────────────────────────────────────────────────────────────


def test_when_the_shim_is_killed_the_keepers_end_the_job_and_say_so(node: Node) -> None:
    mark = token()
    script = "trap 'exit 7' TERM; echo up; sleep 1000 & wait"
    attempt = node.ticket("bash", "-c", script, env_set={"MARK": mark})
    process = node.start()
    running(node, attempt)
    process.kill()
    finished(process)
    wait_until(lambda: not marked(mark, "environ"), PATIENCE)
    wait_until(lambda: node.run.end(attempt).read_bytes()[:1] != b"\0", PATIENCE)
    assert node.outcome(attempt) == Interrupted(Because("supervisor_gone"), Exited(7))


def test_when_all_keepers_are_killed_no_end_is_made_up(node: Node) -> None:
    attempt = node.ticket("sh", "-c", "echo up; exec sleep 1000")
    process = node.start()
    running(node, attempt)
    (spawner,) = children_of(process.pid)
    (guardian,) = children_of(spawner)
    (monitor,) = children_of(guardian)
    for pid in (spawner, guardian, monitor):
        os.kill(pid, signal.SIGKILL)
    status, said = finished(process)
    assert status == 70
    assert said == "gpulaunch: job.1: its keepers were killed; how it ended nobody saw\n"


def test_an_end_that_is_there_is_never_written_over(node: Node) -> None:
    attempt = node.ticket("true", gpus=1)
    node.run.end(attempt).write_bytes(b"a keeper's")
    assert node.serve()[0] == 70
    assert node.run.end(attempt).read_bytes() == b"a keeper's"


# ── A file system that shows things late, and names that try their readers ──────────────────────


def test_files_that_show_late_are_waited_for(node: Node) -> None:
    attempt = node.ticket("true")
    late = [node.run.batch_list("b1"), node.run.ticket(attempt)]
    contents = [path.read_bytes() for path in late]
    for path in late:
        path.unlink()
    process = node.start()
    wait_until(lambda: hears(process.pid, signal.SIGTERM), PATIENCE)
    for path, content in zip(late, contents, strict=True):
        path.write_bytes(content[:20])  # and not yet whole
        assert process.poll() is None
        path.write_bytes(content)
    assert finished(process) == (0, "")
    assert node.outcome(attempt) == Exited(0)


def test_a_list_that_never_shows_is_said_with_what_to_look_at(node: Node) -> None:
    status, said = node.serve(patience=0.1)
    assert status == 78
    assert "b1.json was not to be seen on node n1 within 0 s: is the run directory on" in said
    assert list(node.run.starts.iterdir()) == []


def test_a_ticket_that_never_shows_is_an_attempt_that_was_not_started(node: Node) -> None:
    attempt = node.ticket("true", job="ä\udcff")
    node.run.ticket(attempt).unlink()
    assert node.serve(patience=0.1)[0] == 78
    record = node.end(attempt)
    assert record.attempt == node.began(attempt).attempt == str(attempt)
    assert isinstance(record.end.outcome, NotStarted)
    assert record.end.outcome.error.endswith(".1 was not to be seen on node n1 within 0 s")


def test_an_index_that_the_list_does_not_have_starts_nothing(node: Node) -> None:
    node.ticket("true")
    status, said = node.serve(4)
    assert status == 78
    assert said.endswith("b1.json lists 1 attempts, and this is number 4\n")


def test_an_attempt_that_cannot_be_claimed_is_not_run(node: Node) -> None:
    attempt = node.ticket("sh", "-c", "echo ran")
    node.run.starts.rmdir()
    assert node.serve()[0] == 78
    outcome = node.outcome(attempt)
    assert isinstance(outcome, NotStarted)
    assert outcome.error.startswith("No such file or directory: ")
    assert outcome.error.endswith(", on node n1")


HOSTILE = [
    "a b",
    "-rf",
    'it\'s "quoted" $(touch x) `touch y` \\',
    "ä日本",
    "\udcff\udce4",
    "x" * 200,
    "*?[a]",
    "{{job}}@gpulaunch:port:1@",
]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "de_DE.ISO-8859-1"])
def test_names_are_the_same_bytes_on_both_sides(tmp_path: Path, locale: str) -> None:
    node = Node(tmp_path / "a run's $(dir) ü\udcfe")
    for name in HOSTILE:
        node.ticket("printf", "%s", name, job=name, env_set={"NAME": name})
    for index, attempt in enumerate(node.attempts):
        assert node.serve(index, environ={"LC_ALL": locale}) == (0, "")
        record = node.end(attempt)
        assert (record.attempt, record.end.outcome) == (str(attempt), Exited(0))
        assert node.began(attempt).attempt == str(attempt)
        assert os.fsdecode(node.run.log(attempt).read_bytes()) == attempt.job
    assert len(list(node.run.starts.iterdir())) == len(HOSTILE)


def test_a_hostile_host_cannot_break_out_of_what_is_filled_in(node: Node) -> None:
    slots = NodeSlots.fresh(1)
    attempt = node.ticket("sh", "-c", f"echo '{slots.gpu_uuid}'", gpus=1, slots=slots)
    environ: dict[str, str | None] = {"SLURMD_NODENAME": "n'\"$(x)\\*", "PATH": "/usr/bin:/bin"}
    assert node.serve(mask="0", environ=environ)[0] == 0
    assert node.log(attempt) == "n____x___/0\n"


# ── A full disk ─────────────────────────────────────────────────────────────────────────────────


def full_disk(*_: object) -> bool:
    raise OSError(errno.ENOSPC, "Kein Platz mehr")


def test_where_there_is_no_room_for_the_claim_slurm_is_told_so(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = node.ticket("true")
    monkeypatch.setattr(run, "claim", full_disk)
    ours = NodeAttempt(os.fsencode(node.run.path), os.fsencode(str(attempt)))
    asked = StopSignals.__new__(StopSignals)  # no signals are heard in this process
    assert run.serve(ours, {}, asked, PATIENCE) == status.NO_ROOM
    assert not node.run.log(attempt).exists()
    record = read_end(node.run.end(attempt))
    assert record is not None
    assert record.no_space


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        ("cannot lay out ends/a.1: Kein Platz mehr", "no_space", status.NO_ROOM),
        ("cannot lay out ends/a.1: Disk quota exceeded", None, status.UNFIT),
        ("there is no program No space left on device", None, status.UNFIT),
    ],
)
def test_a_keeper_without_room_for_an_end_is_told_from_a_job_that_cannot_start(
    error: str, kind: str | None, code: int
) -> None:
    end = {"status": None, "cause": None, "error": error, "kind": kind, "missing": []}
    assert status.exit_status(end, [0]) == code
