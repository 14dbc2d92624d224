"""What Slurm's programs of several versions print, and what is read from it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpulaunch.core.model import Exited, Signaled, Status
from gpulaunch.engines.slurm.reading import (
    FIELDS,
    OVER,
    QUEUED,
    UNSEEN,
    QueueRow,
    Tasks,
    is_full,
    is_over_already,
    is_plain_no,
    is_unknown,
    is_unreachable,
    one_line,
    queue_format,
    read_id,
    read_limit,
    read_queue,
    read_setting,
    read_shown,
    read_status,
    read_tasks,
)

SEPARATOR = "|5f0c|"
EVERY_STATE = {
    # state: (phase, kind), as `squeue.1` lists them, 20.11 to 26.05
    "BOOT_FAIL": ("over", "boot_fail"),
    "CANCELLED": ("over", "cancelled"),
    "COMPLETED": ("over", "completed"),
    "COMPLETING": ("running", ""),
    "CONFIGURING": ("queued", ""),
    "DEADLINE": ("over", "deadline"),
    "EXPEDITING": ("queued", ""),
    "FAILED": ("over", "failed"),
    "LAUNCH_FAILED": ("queued", ""),
    "NODE_FAIL": ("over", "node_fail"),
    "OUT_OF_MEMORY": ("over", "out_of_memory"),
    "PENDING": ("queued", ""),
    "POWER_UP_NODE": ("queued", ""),
    "PREEMPTED": ("over", "preempted"),
    "RECONFIG_FAIL": ("queued", ""),
    "REQUEUED": ("queued", ""),
    "REQUEUE_FED": ("queued", ""),
    "REQUEUE_HOLD": ("queued", ""),
    "RESIZING": ("running", ""),
    "RESV_DEL_HOLD": ("queued", ""),
    "REVOKED": ("over", "revoked"),
    "RUNNING": ("running", ""),
    "SIGNALING": ("running", ""),
    "SPECIAL_EXIT": ("queued", ""),
    "STAGE_OUT": ("running", ""),
    "STOPPED": ("running", ""),
    "SUSPENDED": ("running", ""),
    "TIMEOUT": ("over", "timeout"),
    "UPDATE_DB": ("running", ""),
}


def printed(*rows: tuple[str, ...]) -> str:
    """None of them preempted, each with a day and a half of time."""
    told = ((*row[:-1], "N/A", "1-12:00:00", row[-1]) for row in rows)
    return "".join("".join(f"{field}{SEPARATOR}" for field in row) + "\n" for row in told)


@pytest.mark.parametrize("state", EVERY_STATE)
def test_every_state_of_slurms_has_a_meaning(state: str) -> None:
    (row,) = read_queue(printed(("7", state, "None", "0", "0", "n1", "a")), SEPARATOR)
    assert (row.state, row.phase, row.kind) == (state, *EVERY_STATE[state])
    assert (QUEUED | set(OVER)) <= set(EVERY_STATE)


@pytest.mark.parametrize("state", ["", "?", "A_NEW_ONE"])
def test_a_state_that_nobody_knows_is_not_an_end(state: str) -> None:
    (row,) = read_queue(printed(("7", state, "None", "0", "0", "n1", "a")), SEPARATOR)
    assert (row.phase, row.kind, row.status) == ("running", "", None)


@pytest.mark.parametrize(
    ("said", "preempted"),
    [("2026-11-22T09:51:21", True), ("N/A", False), ("NOT_SET", False), ("UNLIMITED", False)],
)
def test_what_makes_room_for_another_is_known(said: str, preempted: bool) -> None:
    fields = ("7", "RUNNING", "None", "0", "0", "n1", said, "UNLIMITED", "a")
    text = "".join(f"{field}{SEPARATOR}" for field in fields)
    (row,) = read_queue(text, SEPARATOR)
    assert row.preempted == preempted


@pytest.mark.parametrize(
    ("version", "state", "reason", "code", "kind", "status"),
    [
        ("20.11", "FAILED", "NonZeroExitCode", "768", "failed", Exited(3)),
        ("26.05", "FAILED", "NonZeroExitCode", "3:0", "failed", Exited(3)),
        ("20.11", "FAILED", "JobLaunchFailure", "9", "failed", Signaled(9)),
        ("26.05", "FAILED", "RaisedSignal:9(Killed)", "0:9", "failed", Signaled(9)),
        ("20.11", "CANCELLED", "None", "36608", "cancelled", Exited(143)),
        ("24.11", "CANCELLED", "None", "143:0", "cancelled", Exited(143)),
        ("20.11", "CANCELLED", "DependencyNeverSatisfied", "0", "dependency", Exited(0)),
        ("26.05", "CANCELLED", "DependencyNeverSatisfied", "0:0", "dependency", Exited(0)),
        ("20.11", "OUT_OF_MEMORY", "OutOfMemory", "253", "out_of_memory", Signaled(125)),
        ("26.05", "OUT_OF_MEMORY", "OutOfMemory", "0:125", "out_of_memory", Signaled(125)),
        ("20.11", "FAILED", "BadConstraints", "1", "failed", Signaled(1)),  # and sbatch refused it
        ("26.05", "FAILED", "BadConstraints", "0:1", "failed", Signaled(1)),
    ],
)
def test_the_oldest_and_the_newest_say_the_same_in_their_own_ways(
    version: str, state: str, reason: str, code: str, kind: str, status: Status
) -> None:
    (row,) = read_queue(printed(("7", state, reason, code, "0", "n1", "a")), SEPARATOR)
    assert (row.phase, row.kind, row.status) == ("over", kind, status), version


@pytest.mark.parametrize(
    "status", ["256", "1:0", "53", "0:53"], ids=["21.08", "21.08 scontrol", "22.05", "23.11"]
)
def test_a_script_whose_output_could_not_be_opened_is_told_by_its_status(status: str) -> None:
    assert read_status(status) in UNSEEN
    assert read_status("78:0") not in UNSEEN


def test_a_queue_is_read_row_by_row() -> None:
    text = printed(
        ("7", "RUNNING", "None", "0", "0", "n1", "gl:a b|c"),
        ("9_4", "FAILED", "NonZeroExitCode", "768", "0", "n2", "läuf %s"),
        ("9_[5-999%3]", "PENDING", "Resources,JobHeldUser", "0", "2", "", "läuf %s"),
        ("11_[12]", "PENDING", "ReqNodeNotAvail, UnavailableNodes:n[1-2]", "0", "0", "(null)", ""),
        ("12", "CANCELLED by 1000", "DependencyNeverSatisfied", "0:15", "0", "n/a", "x"),
    )
    tail = Tasks((range(5, 1000),))
    wait = "ReqNodeNotAvail, UnavailableNodes:n[1-2]"
    rows = (
        QueueRow("7", None, Tasks(), "gl:a b|c", "RUNNING", "", None, 0, "n1"),
        QueueRow("9", 4, Tasks(), "läuf %s", "FAILED", "NonZeroExitCode", Exited(3), 0, "n2"),
        QueueRow("9", None, tail, "läuf %s", "PENDING", "Resources,JobHeldUser", None, 2, ""),
        QueueRow("11", None, Tasks((range(12, 13),)), "", "PENDING", wait),
        QueueRow("12", None, Tasks(), "x", "CANCELLED", "DependencyNeverSatisfied", Signaled(15)),
    )
    assert read_queue(text, SEPARATOR) == tuple(replace(row, limit=129600.0) for row in rows)
    assert [row.kind for row in read_queue(text, SEPARATOR)] == ["", "failed", "", "", "dependency"]


def test_a_name_cannot_pass_for_a_row_nor_a_greeting_for_one() -> None:
    name = "a\n7|x|COMPLETED|None|0|0|n1|b|"
    text = "Welcome | to CLUSTER: one\n\n" + printed(("8", "RUNNING", "None", "0", "0", "n1", name))
    assert [(row.id, row.name) for row in read_queue(text + "bye\n", SEPARATOR)] == [("8", name)]
    assert read_queue("", SEPARATOR) == read_queue("CLUSTER: one\n", SEPARATOR) == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:00", 60.0), ("90:30", 5430.0), ("2:00:00", 7200.0), ("00:01:00", 60.0),
        ("3-00:00:05", 259205.0), ("UNLIMITED", 0.0), ("NOT_SET", 0.0), ("N/A", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_a_time_limit_is_read_in_seconds(text: str, seconds: float) -> None:
    assert read_limit(text) == seconds


def test_a_queue_that_broke_off_has_no_half_rows() -> None:
    text = printed(*[("7", "RUNNING", "None", "0", "0", "n1", "a")] * 2)
    assert len(read_queue(text[: -len(SEPARATOR) - 1], SEPARATOR)) == 1


def test_the_format_asks_for_what_is_read_and_for_nothing_to_be_cut() -> None:
    parts = queue_format(SEPARATOR).split(",")
    assert parts == [f"{name}:{SEPARATOR}" for name in FIELDS]


def test_a_row_is_about_a_job_or_one_of_its_tasks() -> None:
    waiting = QueueRow("9", None, read_tasks("1,4-6"))
    assert waiting.is_about("9", 5)
    assert not waiting.is_about("9", 2)
    assert not waiting.is_about("8", 5)
    assert QueueRow("9", 4).is_about("9", 4)
    assert not QueueRow("9", 4).is_about("9", 5)
    assert not QueueRow("9").is_about("9", 4)
    assert QueueRow("9").is_about("9")


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("", []),
        ("12", [12]),
        ("0-3%2", [0, 1, 2, 3]),
        ("1-9:4", [1, 5, 9]),
        ("1,3,5-7,9%10", [1, 3, 5, 6, 7, 9]),
    ],
)
def test_lists_of_tasks_are_read(text: str, tasks: list[int]) -> None:
    found = read_tasks(text)
    assert list(found) == tasks
    assert not found.cut
    assert bool(found) == bool(tasks)


@pytest.mark.parametrize("text", ["1,3,5-7,...", "1,3,5-7,8..."])
def test_what_a_cut_list_leaves_out_may_be_waiting(text: str) -> None:
    found = read_tasks(text)
    assert 900 in found
    assert 6 in found
    assert 4 not in found


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("0", Exited(0)),
        ("768", Exited(3)),
        ("35584", Exited(139)),
        ("9", Signaled(9)),
        ("139", Signaled(11)),  # with a core dump
        ("0:0", Exited(0)),
        ("3:0", Exited(3)),
        ("0:15", Signaled(15)),
        ("", None),
        ("n/a", None),
    ],
)
def test_both_ways_to_write_a_status_are_read(text: str, status: Status | None) -> None:
    assert read_status(text) == status


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("12\n", "12"),
        ("12;cluster\n", "12"),
        ("Welcome\n12\n", "12"),
        ("12\r\n", "12"),
        ("Submitted batch job 12\n", None),
        ("", None),
        ("12", None),  # of 1234
        ("123\n12", "123"),
        ("12 jobs wait\n", None),
    ],
)
def test_the_number_of_a_submission_is_read(text: str, id: str | None) -> None:
    assert read_id(text) == id


FAILED = "sbatch: error: Batch job submission failed: "
POLICY = (
    FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    "text",
    [
        POLICY,
        f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}",
        f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}",
        f"sbatch: error: AssocGrpSubmitJobsLimit\n{POLICY}",
        FAILED + "MaxJobCount limit reached",
        FAILED + "Unable to create job record, try again",
        FAILED + "System submissions disabled",
        "sbatch: error: Slurm job queue full, sleeping and retrying.",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying.",
    ],
)
def test_a_full_queue_is_told_apart(text: str) -> None:
    assert is_full(text)
    assert not is_unreachable(text)


@pytest.mark.parametrize(
    "text",
    [
        f"sbatch: error: QOSMaxGRESPerUser\n{POLICY}",
        f"sbatch: error: AssocMaxWallDurationPerJobLimit\n{POLICY}",
        FAILED + "Invalid account or account/partition combination specified",
        FAILED + "Invalid job array specification",
        FAILED + "Requested node configuration is not available",
        FAILED + "Requested time limit is invalid (missing or exceeds some limit)",
        "sbatch: error: invalid partition specified: none\n" + FAILED + "Invalid partition name",
        "sbatch: unrecognized option '--bad'",
    ],
)
def test_what_will_not_change_is_neither_full_nor_unreachable(text: str) -> None:
    assert not is_full(text)
    assert not is_unreachable(text)


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        FAILED + "Socket timed out on send/recv operation",
        FAILED + "Unable to contact slurm controller (send failure)",
        FAILED + "Zero Bytes were transmitted or received",
        FAILED + "Rate limit exceeded, please retry momentarily",
        'squeue: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"',
        "slurm_load_jobs error: Protocol authentication error",
        "slurm_load_jobs error: Slurm backup controller in standby mode",
        "squeue: fatal: Could not establish a configuration source",
        "scancel: error: Kill job error on job id 7: Connection refused",
    ],
)
def test_a_controller_that_is_away_is_told_apart(text: str) -> None:
    assert is_unreachable(text)
    assert not is_full(text)


def test_cancelling_met_with_nothing_left_to_cancel() -> None:
    gone = "scancel: error: Kill job error on job id 7: Invalid job id specified\n"
    over = "scancel: error: Kill job error on job id 8: Job/step already completing or completed\n"
    assert is_over_already("")
    assert is_over_already(gone + over)
    denied = "scancel: error: Kill job error on job id 9: Access/permission denied\n"
    assert not is_over_already(gone + denied)


def test_a_complaint_becomes_one_line() -> None:
    text = "sbatch: error: invalid partition specified: none\n\nsbatch: lua: no\nsbatch: fatal: x\n"
    assert one_line(text) == "invalid partition specified: none; lua: no; x"
    assert one_line("sbatch: error: queue full, sleeping and retrying.") == "queue full"
    assert len(one_line("x" * 5000)) == 500


def test_settings_are_read_from_the_configuration() -> None:
    text = "MaxArraySize            = 1001\nMinJobAge               = 300 sec\nX = \n"
    assert read_setting(text, "MaxArraySize") == "1001"
    assert read_setting(text, "MinJobAge") == "300 sec"
    assert read_setting(text, "MaxJobCount") == ""


# ── scontrol show job ───────────────────────────────────────────────────────────────────────────

SHOWN = """\
JobId=1 ArrayJobId=1 ArrayTaskId=2-3,5%2 ArrayTaskThrottle=2 JobName=gl:x y:1
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=PENDING Reason=JobArrayTaskLimit Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=
   Power=
   

JobId=4 ArrayJobId=1 ArrayTaskId=1 ArrayTaskThrottle=2 JobName=gl:x JobState=FAILED
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n1
   Power=
   

JobId=2 JobName=solo
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0
   RunTime=00:00:13 TimeLimit=1-00:00:30 TimeMin=N/A
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n2
   Power=
"""  # noqa: W293


def test_a_job_as_scontrol_shows_it() -> None:
    waiting, runs, solo = read_shown(SHOWN)
    assert (waiting.id, list(waiting.tasks), waiting.phase) == ("1", [2, 3, 5], "queued")
    assert (str(runs), runs.name, runs.state) == ("1_1", "gl:x JobState=FAILED", "RUNNING")
    assert (runs.restarts, runs.node, runs.status) == (2, "n1", None)
    assert (str(solo), solo.state, solo.status, solo.node) == ("2", "FAILED", Exited(3), "n2")
    assert (runs.limit, solo.limit) == (0.0, 86430.0)


def test_of_what_scontrol_shows_nothing_is_made_of_a_job_that_is_cut_off() -> None:
    rows = read_shown(SHOWN)
    for end in range(len(SHOWN)):
        cut = read_shown(SHOWN[:end])
        assert cut == rows[: len(cut)]
    assert read_shown("Welcome to the cluster\n") == ()
    assert read_shown(f"Welcome\n{SHOWN}") == rows


def test_which_words_of_a_refusal_are_slurms_own() -> None:
    assert is_plain_no("sbatch: error: Batch job submission failed: Invalid qos specification")
    assert is_plain_no("sbatch: unrecognized option '--no-such-option'")
    assert not is_plain_no("site: cannot write to the ledger")
    assert not is_plain_no("sbatch: erreur: Impossible de contacter le contrôleur")
    assert is_unknown("slurm_load_jobs error: Invalid job id specified")
    assert is_unknown("Job 1_4 not found\n")
    assert not is_unknown("slurm_load_jobs error: Unable to contact slurm controller")
