"""Slurm's programs as gpulaunch calls them, on a real cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from gpulaunch.base.loop import Loop
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
    Unreachable,
)
from gpulaunch.engines.slurm.health import finding, unconfigured
from gpulaunch.engines.slurm.reading import QueueRow, Tasks
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


NAMES = [
    "a b  c",
    "gl:läuf|RUNNING|x",
    "x\n7|COMPLETED|None|0|0|n1|y|",
    "日本 %s ; $(true)",
    "-",
]
"""They look like fields and rows."""
NOWHERE = "4000000"
"""No job has that number."""

# ── On a cluster ────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_submitted_followed_and_read_whole(client: Client, script: Write) -> None:
    ids = {client.submitted(script("true"), f"--job-name={name}"): name for name in NAMES}
    found = {row.id: row.name for row in client.rows() if row.id in ids}
    assert found == ids
    assert not any(row.id == "7" and row.name == "y" for row in client.rows())

    id = client.submitted(script("exit 3"), "--gpus=1", "--job-name=one")
    row = client.reaches("over", id)
    assert (row.kind, row.status, row.name) == ("failed", Exited(3), "one")
    assert row.node in ("n1", "n2")
    killed = client.submitted(script("kill -KILL $$"))
    assert client.reaches("over", killed).status == Signaled(9)
    good = client.submitted(script("true"))
    assert client.reaches("over", good).kind == "completed"

    for over in ([id], [NOWHERE], [id, NOWHERE, f"{id}_3"]):  # which is no mistake
        assert client.ask(lambda done, ids=over: client.slurm.cancel(ids, done)) == Done()
        assert client.ask(lambda done, ids=over: client.slurm.signal(ids, "TERM", done)) == Done()

    need = f"--dependency=afterok:{id}"
    gone = client.submitted(script("true"), need, "--kill-on-invalid-dep=yes")
    kept = client.submitted(script("true"), need)
    assert client.reaches("over", gone).kind == "dependency"
    wait_until(lambda: client.row(kept).reason == "DependencyNeverSatisfied", PATIENCE)
    assert client.row(kept).phase == "queued"


def test_the_tasks_of_an_array_are_told_apart(client: Client, script: Write) -> None:
    id = client.submitted(script("exit $SLURM_ARRAY_TASK_ID"), "--array=0-2")
    for task, kind in enumerate(("completed", "failed", "failed")):
        row = client.reaches("over", id, task)
        assert (row.kind, row.status, str(row)) == (kind, Exited(task), f"{id}_{task}")
    for which, shown in ((f"{id}_1", {f"{id}_1"}), (id, {f"{id}_{n}" for n in range(3)})):
        answer = client.ask(lambda done, which=which: client.slurm.show(which, done))
        assert isinstance(answer, QueueListing)
        assert {str(row) for row in answer.rows} == shown
    assert client.ask(lambda done: client.slurm.show(NOWHERE, done)) == QueueListing(())

    many = client.submitted(script(SLEEPS), "--array=0-999%2", "--gpus-per-node=2", "--nodes=1")
    client.reaches("running", many, 1)
    assert client.row(many, 999).tasks == Tasks((range(2, 1000),))

    odd = [n for n in range(1, 400) if n % 3 and n % 5]  # a long list, which is not cut
    held = client.submitted(script(SLEEPS), f"--array={','.join(map(str, odd))}", "--hold")
    assert list(client.row(held, odd[-1]).tasks) == odd


def test_tasks_that_wait_are_held_released_and_cancelled_alone(
    client: Client, cluster: Cluster, script: Write, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    text = f'echo "$SLURM_ARRAY_TASK_ID" >> {said}; {SLEEPS}'
    id = client.submitted(script(text), "--array=0-5%1")
    client.reaches("running", id, 0)
    over = client.submitted(script("true"))
    client.reaches("over", over)

    terms = [f"{id}_[1-3]", f"{id}_5", over, NOWHERE]  # the last two are no mistake
    assert client.ask(lambda done: client.slurm.hold(terms, done)) == Done()

    def held() -> list[int]:
        shown = cluster.command("squeue", "-h", "-r", "-j", id, "-t", "PD", "-o", "%K %r")
        return sorted(int(line.split()[0]) for line in shown.splitlines() if "JobHeld" in line)

    assert held() == [1, 2, 3, 5]
    reasons = {task: client.row(id, task).reason for task in (3, 4, 5)}
    assert {task for task, reason in reasons.items() if "JobHeld" in reason} == {3, 5}
    assert client.ask(lambda done: client.slurm.release(terms, done)) == Done()
    assert not held()

    for task in (2, 4, 5):
        assert client.ask(lambda done, n=task: client.slurm.cancel([f"{id}_{n}"], done)) == Done()
    waiting = [row for row in client.rows() if row.id == id and row.phase == "queued"]
    assert sorted(task for row in waiting for task in row.tasks or [row.task]) == [1, 3]
    assert client.row(id, 0).phase == "running"
    assert client.ask(lambda done: client.slurm.cancel([f"{id}_0"], done)) == Done()
    client.reaches("running", id, 1)
    assert client.ask(lambda done: client.slurm.cancel([id], done)) == Done()
    client.reaches("over", id, 1)
    assert said.read_text().split() == ["0", "1"]


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


REFUSED = {
    "--partition=none": "invalid partition",
    "--gpus=9": "configuration is not available",
    "--array=0-5000000": "Invalid job array specification",
    "--no-such-option": "unrecognized option",
}


def test_a_submission_that_can_never_be_is_refused_in_slurms_words_and_its_limits_are_known(
    client: Client, cluster: Cluster, script: Write
) -> None:
    for option, words in REFUSED.items():
        answer = client.submit(script("true"), option, "--nodes=1")
        assert isinstance(answer, SubmissionRefused), answer
        assert words in answer.text, option
        assert "\n" not in answer.text
        assert answer.text.startswith("sbatch: ")
    limits = client.ask(client.slurm.ask)
    assert isinstance(limits, Config)
    assert int(limits.version.partition(".")[0]) >= 20
    assert limits.array == 1001
    found = finding(cluster.environ)
    assert found is not None
    assert found.level == "ok"
    assert found.what.startswith(f"Slurm {limits.version}")
    assert "answers" in found.what


def test_a_job_that_is_forgotten_a_full_queue_and_a_controller_that_is_away_are_told_apart(
    own_cluster: MakeCluster, script: Write
) -> None:
    cluster = own_cluster(nodes=1, settings={"MinJobAge": "2", "MaxJobCount": "3"})
    with Client(cluster.environ) as client:
        over = client.submitted(script("true"))
        path = script(SLEEPS)
        id = client.submitted(path)
        client.reaches("over", over)
        cluster.forget(over)
        assert client.ask(lambda done: client.slurm.show(over, done)) == QueueListing(())
        assert [row.id for row in client.rows()] == [id]
        wait_until(lambda: client.row(id).phase == "running", PATIENCE)

        answers = [client.submit(path, "--hold") for _ in range(3)]
        full = answers[-1]
        assert isinstance(full, Full), answers
        assert "retrying" not in full.text
        assert id in {row.id for row in client.rows()}

        cluster.stop_controller()
        check_that_nothing_is_said_of_any_job(cluster, id, path)
        cluster.start_controller()
        assert client.row(id).phase == "running"


def check_that_nothing_is_said_of_any_job(cluster: Cluster, id: str, path: Path) -> None:
    with Client(cluster.environ, limit=1.0) as hurried:
        slurm = hurried.slurm
        answers = [
            hurried.submit(path),
            hurried.ask(slurm.queue),
            hurried.ask(lambda done: slurm.show(id, done)),
            hurried.ask(lambda done: slurm.show(NOWHERE, done)),
            hurried.ask(lambda done: slurm.cancel([id], done)),
            hurried.ask(lambda done: slurm.signal([id], "TERM", done)),
            hurried.ask(lambda done: slurm.hold([id], done)),
            hurried.ask(slurm.ask),
        ]
    assert [type(answer) for answer in answers] == [Unreachable] * len(answers), answers
    found = finding(cluster.environ)
    assert found is not None
    assert found.level == "warning"
    assert "its controller does not answer: " in found.what
    assert unconfigured(cluster.environ) == ""


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


# ── Without one ─────────────────────────────────────────────────────────────────────────────────


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
