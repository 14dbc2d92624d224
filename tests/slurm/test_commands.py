"""Slurm's programs as gpulaunch calls them, on a real cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from gpulaunch.core.model import Exited, Signaled
from gpulaunch.engines.slurm.commands import (
    Config,
    Done,
    Full,
    QueueAnswer,
    QueueListing,
    Slurm,
    SubmissionAccepted,
    SubmissionRefused,
    Unknown,
    Unreachable,
)
from gpulaunch.engines.slurm.reading import QueueRow, Tasks
from gpulaunch.loop import Loop
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster, processes_told_of

T = TypeVar("T")
MakeCluster = Callable[..., Cluster]
TRAPS = """
trap 'echo told >> "$SAID"; exit 7' TERM
(trap 'echo child >> "$SAID"' TERM; : > "$SAID"; while :; do sleep 600; done) &
wait
"""
SLEEPS = "exec sleep 600"


class Client:
    """Calls, waiting for each answer."""

    def __init__(self, environ: Mapping[str, str], limit: float = PATIENCE) -> None:
        self.loop = Loop()
        self.slurm = Slurm(self.loop, environ, limit)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.slurm.close()
        self.loop.close()

    def ask(self, call: Callable[[Callable[[T], object]], None]) -> T:
        answers: list[T] = []
        call(answers.append)
        assert not answers, "answered from within the call"
        self.loop.call_after("patience", 2 * PATIENCE, lambda: None)
        end = time.monotonic() + 2 * PATIENCE
        while not answers and time.monotonic() < end:
            self.loop.turn()
        (answer,) = answers
        return answer

    def submit(
        self, script: Path, *options: str, environ: Mapping[str, str] | None = None
    ) -> object:
        options = ("--parsable", "--output=/dev/null", "--no-requeue", *options)
        given = dict(os.environ) if environ is None else environ
        return self.ask(lambda done: self.slurm.submit(options, script, given, done))

    def submitted(self, script: Path, *options: str, **environ: str) -> str:
        answer = self.submit(script, *options, environ=dict(os.environ) | environ)
        assert isinstance(answer, SubmissionAccepted), answer
        return answer.id

    def rows(self) -> tuple[QueueRow, ...]:
        answer = self.ask(self.slurm.queue)
        assert isinstance(answer, QueueListing), answer
        return answer.rows

    def row(self, id: str, task: int | None = None) -> QueueRow:
        (row,) = (row for row in self.rows() if row.is_about(id, task))
        return row

    def reaches(self, phase: str, id: str, task: int | None = None) -> QueueRow:
        wait_until(lambda: self.row(id, task).phase == phase, PATIENCE, f"{id} is {phase}")
        return self.row(id, task)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.environ) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "script.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        return path

    return write


Write = Callable[[str], Path]


def test_a_job_is_submitted_followed_and_its_status_read(client: Client, script: Write) -> None:
    id = client.submitted(script("exit 3"), "--gpus=1", "--job-name=one")
    row = client.reaches("over", id)
    assert (row.kind, row.status, row.name) == ("failed", Exited(3), "one")
    assert row.node in ("n1", "n2")
    id = client.submitted(script("kill -KILL $$"))
    assert client.reaches("over", id).status == Signaled(9)
    id = client.submitted(script("true"))
    assert client.reaches("over", id).kind == "completed"


def test_names_that_look_like_fields_and_rows_are_read_whole(client: Client, script: Write) -> None:
    names = [
        "a b  c",
        "gl:läuf|RUNNING|x",
        "x\n7|COMPLETED|None|0|0|n1|y|",
        "日本 %s ; $(true)",
        "-",
    ]
    ids = {client.submitted(script("true"), f"--job-name={name}"): name for name in names}
    found = {row.id: row.name for row in client.rows() if row.id in ids}
    assert found == ids
    assert not any(row.id == "7" and row.name == "y" for row in client.rows())


def test_the_tasks_of_an_array_are_told_apart(client: Client, script: Write) -> None:
    id = client.submitted(script("exit $SLURM_ARRAY_TASK_ID"), "--array=0-2")
    for task, kind in enumerate(("completed", "failed", "failed")):
        row = client.reaches("over", id, task)
        assert (row.kind, row.status, str(row)) == (kind, Exited(task), f"{id}_{task}")
    id = client.submitted(script(SLEEPS), "--array=0-999%2", "--gpus-per-node=2", "--nodes=1")
    client.reaches("running", id, 1)
    assert client.row(id, 999).tasks == Tasks((range(2, 1000),))


def test_a_long_list_of_waiting_tasks_is_not_cut(client: Client, script: Write) -> None:
    odd = [n for n in range(1, 400) if n % 3 and n % 5]
    id = client.submitted(script(SLEEPS), f"--array={','.join(map(str, odd))}", "--hold")
    assert list(client.row(id, odd[-1]).tasks) == odd


def test_what_waits_is_cancelled_alone_and_never_starts(
    client: Client, script: Write, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    text = f'echo "$SLURM_ARRAY_TASK_ID" >> {said}; exec sleep 600'
    id = client.submitted(script(text), "--array=0-3%1")
    client.reaches("running", id, 0)
    assert client.ask(lambda done: client.slurm.cancel([f"{id}_2"], done)) == Done()
    assert list(client.row(id, 3).tasks) == [1, 3]
    assert client.row(id, 0).phase == "running"
    assert client.ask(lambda done: client.slurm.cancel([f"{id}_0"], done)) == Done()
    client.reaches("running", id, 1)
    assert client.ask(lambda done: client.slurm.cancel([id], done)) == Done()
    client.reaches("over", id, 1)
    assert said.read_text().split() == ["0", "1"]


def test_what_waits_is_held_and_released_and_what_is_over_is_no_mistake(
    client: Client, cluster: Cluster, script: Write
) -> None:
    id = client.submitted(script("exec sleep 600"), "--array=0-5%1")
    client.reaches("running", id, 0)
    over = client.submitted(script("true"))
    client.reaches("over", over)
    terms = [f"{id}_[1-3]", f"{id}_5", over, "4000000"]
    assert client.ask(lambda done: client.slurm.hold(terms, done)) == Done()

    def reasons() -> list[str]:
        shown = cluster.command("squeue", "-h", "-r", "-j", id, "-t", "PD", "-o", "%K %r")
        return [line.split()[0] for line in shown.splitlines() if "JobHeld" in line]

    assert sorted(reasons()) == ["1", "2", "3", "5"]
    assert client.ask(lambda done: client.slurm.release(terms, done)) == Done()
    assert not reasons()


def test_a_signal_goes_to_the_batch_script_alone(
    client: Client, script: Write, tmp_path: Path
) -> None:
    path = script(TRAPS)
    lone, array = tmp_path / "lone", tmp_path / "array"
    ids = [
        client.submitted(path, SAID=str(lone)),
        f"{client.submitted(path, '--array=4', SAID=str(array))}_4",
    ]
    wait_until(lambda: lone.exists() and array.exists(), PATIENCE, "both run")
    assert client.ask(lambda done: client.slurm.signal(ids, "TERM", done)) == Done()
    row = client.reaches("over", ids[0])
    assert (row.kind, row.status) == ("failed", Exited(7))
    assert client.reaches("over", ids[1][:-2], 4).status == Exited(7)
    assert lone.read_text() == array.read_text() == "told\n"


def test_cancelling_what_is_over_or_was_never_there_is_no_mistake(
    client: Client, script: Write
) -> None:
    id = client.submitted(script("true"))
    client.reaches("over", id)
    for ids in ([id], ["4000000"], [id, "4000000", f"{id}_3"]):
        assert client.ask(lambda done, ids=ids: client.slurm.cancel(ids, done)) == Done()
        assert client.ask(lambda done, ids=ids: client.slurm.signal(ids, "TERM", done)) == Done()


def test_a_job_that_was_never_there_is_unknown(client: Client, script: Write) -> None:
    id = client.submitted(script("true"), "--array=0-1")
    client.reaches("over", id, 1)
    assert client.ask(lambda done: client.slurm.show("4000000", done)) == Unknown()
    answer = client.ask(lambda done: client.slurm.show(f"{id}_1", done))
    assert isinstance(answer, QueueListing)
    assert [str(row) for row in answer.rows] == [f"{id}_1"]
    answer = client.ask(lambda done: client.slurm.show(id, done))
    assert isinstance(answer, QueueListing)
    assert {str(row) for row in answer.rows} == {f"{id}_0", f"{id}_1"}


@pytest.mark.slow
def test_a_forgotten_job_is_unknown_and_another_is_not(
    own_cluster: MakeCluster, script: Write
) -> None:
    cluster = own_cluster(nodes=1, settings={"MinJobAge": "2"})
    with Client(cluster.environ) as client:
        id, other = client.submitted(script("true")), client.submitted(script(SLEEPS))
        client.reaches("over", id)
        cluster.forget(id)
        assert client.ask(lambda done: client.slurm.show(id, done)) == Unknown()
        assert [row.id for row in client.rows()] == [other]


def test_a_job_whose_need_failed_is_cancelled_as_such(client: Client, script: Write) -> None:
    first = client.submitted(script("exit 1"))
    depends = f"--dependency=afterok:{first}"
    gone = client.submitted(script("true"), depends, "--kill-on-invalid-dep=yes")
    kept = client.submitted(script("true"), depends)
    assert client.reaches("over", gone).kind == "dependency"
    wait_until(lambda: client.row(kept).reason == "DependencyNeverSatisfied", PATIENCE)
    assert client.row(kept).phase == "queued"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--partition=none", "invalid partition"),
        ("--gpus=9", "configuration is not available"),
        ("--array=0-5000000", "Invalid job array specification"),
        ("--no-such-option", "unrecognized option"),
    ],
)
def test_a_submission_that_can_never_be_is_refused_in_slurms_words(
    client: Client, script: Write, option: str, words: str
) -> None:
    answer = client.submit(script("true"), option, "--nodes=1")
    assert isinstance(answer, SubmissionRefused), answer
    assert words in answer.text
    assert "\n" not in answer.text
    assert answer.text.startswith("sbatch: ")


def test_more_jobs_than_may_be_are_for_later(own_cluster: MakeCluster, script: Write) -> None:
    cluster = own_cluster(nodes=1, settings={"MaxJobCount": "3"})
    with Client(cluster.environ) as client:
        path = script(SLEEPS)
        ids = [client.submitted(path, "--hold") for _ in range(2)]
        answers = [client.submit(path, "--hold") for _ in range(2)]
        assert isinstance(answers[-1], Full), answers
        assert "retrying" not in answers[-1].text
        assert {row.id for row in client.rows()} >= set(ids)


def test_while_the_controller_is_away_nothing_is_said_of_any_job(
    own_cluster: MakeCluster, script: Write
) -> None:
    cluster = own_cluster(nodes=1)
    path = script(SLEEPS)
    with Client(cluster.environ) as client:
        id = client.submitted(path)
        wait_until(lambda: client.row(id).phase == "running", PATIENCE)
        cluster.stop_controller()
        with Client(cluster.environ, limit=1.0) as hurried:
            slurm = hurried.slurm
            answers = [
                hurried.submit(path),
                hurried.ask(slurm.queue),
                hurried.ask(lambda done: slurm.show(id, done)),
                hurried.ask(lambda done: slurm.show("4000000", done)),
                hurried.ask(lambda done: slurm.cancel([id], done)),
                hurried.ask(lambda done: slurm.signal([id], "TERM", done)),
                hurried.ask(lambda done: slurm.hold([id], done)),
                hurried.ask(slurm.ask),
            ]
        assert [type(answer) for answer in answers] == [Unreachable] * len(answers), answers
        cluster.start_controller()
        assert client.row(id).phase == "running"


def test_the_end_of_the_time_limit_is_no_answer(tmp_path: Path, script: Write) -> None:
    with pretend(tmp_path, "echo 12; sleep 600 & wait", limit=0.5) as client:
        answer = client.submit(script("true"), environ={"PATH": f"{tmp_path}:/usr/bin:/bin"})
        assert answer == Unreachable("sbatch: no answer within 0.5 s")
        wait_until(lambda: not processes_told_of(tmp_path), PATIENCE, "nothing of it is left")


@pytest.mark.parametrize(
    "words",
    [
        "Unable to contact slurm controller (connect failure)",
        "Socket timed out on send/recv operation",
        "Munge encode failed: Failed to access /run/munge/munge.socket.2",
    ],
)
def test_a_program_that_says_itself_that_nobody_answers_says_nothing_of_any_job(
    tmp_path: Path, script: Write, words: str
) -> None:
    with pretend(tmp_path, f'echo "slurm_load_jobs error: {words}" >&2; exit 1') as client:
        slurm = client.slurm
        answers = [
            client.submit(script("true")),
            client.ask(slurm.queue),
            client.ask(lambda done: slurm.show("7", done)),
            client.ask(lambda done: slurm.cancel(["7"], done)),
            client.ask(lambda done: slurm.signal(["7"], "TERM", done)),
            client.ask(lambda done: slurm.release(["7"], done)),
            client.ask(slurm.ask),
        ]
    assert [type(answer) for answer in answers] == [Unreachable] * len(answers), answers


def test_a_cancellation_that_slurm_does_not_allow_is_refused(tmp_path: Path) -> None:
    said = "scancel: error: Kill job error on job id 7: Access/permission denied"
    with pretend(tmp_path, f"echo '{said}' >&2; exit 1") as client:
        answer = client.ask(lambda done: client.slurm.cancel(["7"], done))
    text = "scancel: Kill job error on job id 7: Access/permission denied"
    assert answer == SubmissionRefused(text)


def test_an_answer_without_a_number_may_have_been_a_submission(
    tmp_path: Path, script: Write
) -> None:
    with pretend(tmp_path, "echo Welcome") as client:
        assert isinstance(client.submit(script("true")), Unreachable)
    with pretend(tmp_path, "kill -KILL $$") as client:
        assert isinstance(client.submit(script("true")), Unreachable)
    with pretend(tmp_path, "echo Welcome; echo '12;cluster'") as client:
        assert client.submit(script("true")) == SubmissionAccepted("12")


def test_a_machine_without_slurm_says_so(tmp_path: Path, script: Write) -> None:
    with Client({"PATH": str(tmp_path)}) as client:
        assert client.slurm.missing == ("sbatch", "squeue", "scancel", "scontrol")
        answer = client.ask(client.slurm.queue)
        assert isinstance(answer, Unreachable)
        assert "not found" in answer.text


def test_a_job_is_given_the_environment_that_was_passed_and_no_settings_of_slurms(
    cluster: Cluster, script: Write, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    own = {
        "SBATCH_WAIT": "",
        "SQUEUE_STATES": "RUNNING",
        "SBATCH_JOB_NAME": "no",
        "SLURM_JOBID": "1",
    }
    with Client(cluster.environ | own) as client:
        given = {"PATH": os.environ["PATH"], "TWO": "a\nb", "SBATCH_WAIT": "", "SLURM_NTASKS": "8"}
        answer = client.submit(
            script(f"env -0 > {said}.new && mv {said}.new {said}; sleep 600"), environ=given
        )
        assert isinstance(answer, SubmissionAccepted)
        wait_until(said.exists, PATIENCE)
        found = dict(item.split("=", 1) for item in said.read_text().split("\0") if item)
        assert found["TWO"] == "a\nb"
        assert found["SLURM_JOB_ID"] == answer.id
        assert not {"SBATCH_WAIT", "HOME", "SBATCH_JOB_NAME"} & set(found)
        assert client.row(answer.id).name == "script.sh"


def test_the_cluster_says_its_limits(client: Client) -> None:
    answer = client.ask(client.slurm.ask)
    assert isinstance(answer, Config)
    assert int(answer.version.partition(".")[0]) >= 20
    assert answer.array == 1001


def test_calls_that_are_given_up_leave_no_process_and_do_not_answer(tmp_path: Path) -> None:
    answers: list[QueueAnswer] = []
    with pretend(tmp_path, "sleep 600") as client:
        client.slurm.queue(answers.append)
        wait_until(lambda: processes_told_of(tmp_path), PATIENCE)
    wait_until(lambda: not processes_told_of(tmp_path), PATIENCE)  # the kernel takes a moment
    assert not answers


def pretend(at: Path, text: str, limit: float = PATIENCE) -> Client:
    """A client of programs that all do this."""
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        path = at / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return Client({"PATH": f"{at / 'bin'}:{os.environ['PATH']}"}, limit)
