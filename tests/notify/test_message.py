"""What is said, from a ledger: counts, reasons, the line that goes on."""

from __future__ import annotations

import json

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId, End, Exited, Failure
from gpulaunch.observe.notify.message import LINE, TITLE, compose
from tests.views.history import History

DIR = "/data/my runs/nanobodies-1"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"


def fail(run: History, name: str, kind: str, evidence: str) -> None:
    run.start(name, 0)
    number = len(run.ledger.jobs[name].attempts)
    attempt = AttemptId(name, number)
    run.add(
        f.AttemptEnded(
            attempt,
            End(Exited(1), Failure(kind, evidence, (Quoted(f"mend {kind}"),))),
            charged=True,
        )
    )
    run.add(f.JobSettled(name, "failed", Quoted(f"{kind} (exited with status 1)")))


def night() -> History:
    """Six jobs: one succeeded, three out of memory, one with another error, one waiting."""
    run = History().open().jobs("a", "b", "c", "d", "e", "f")
    run.start("a", 0).pass_(60).succeed("a")
    fail(run, "b", "access", "401 Client Error: gated")
    for name in "cde":
        fail(run, name, "gpu_oom", f"{OOM} ({name})")
    return run.pass_(3600)


def closed(
    run: History, state: str = "failed", reason: str = "b and 3 more did not succeed"
) -> str:
    end = f.RunClosed(state, Quoted(reason), 1)  # type: ignore[arg-type]
    return compose(["finish"], run.ledger, DIR, run.now, end).text


def test_the_end_tells_counts_reasons_and_how_to_go_on() -> None:
    run = night()
    end = f.RunClosed("failed", Quoted("b and 3 more did not succeed"), 1)
    said = compose(["finish", "failures"], run.ledger, DIR, run.now, end)
    assert said.title == "nanobodies failed: 1 succeeded, 4 failed, 1 waiting"
    assert said.text.splitlines() == [
        "1 succeeded, 4 failed, 1 waiting; 1:01:00 on box",
        "b and 3 more did not succeed",
        f"3 failed: out of GPU memory [gpu_oom], first c: {OOM} (c)",
        "1 failed: access refused [access], first b: 401 Client Error: gated",
        f"run: {DIR}",
        f"go on with: gpulaunch resume '{DIR}'",
    ]


def test_the_summary_is_plain_json_with_the_counts() -> None:
    run = night()
    said = compose(["failures"], run.ledger, DIR, run.now, None)
    summary = json.loads(json.dumps(said.summary))
    assert summary["event"] == "failures"
    assert summary["run"]["counts"]["failed"] == 4
    assert summary["run"]["state"] == "running"
    assert summary["run"]["exit_status"] is None
    assert summary["failures"][0] == {
        "class": "gpu_oom",
        "jobs": 3,
        "first": "c",
        "evidence": f"{OOM} (c)",
        "advice": "mend gpu_oom",
    }
    assert summary["next"] == f"gpulaunch status '{DIR}'"
    assert said.variables["GPULAUNCH_FAILED"] == "4"
    assert said.variables["GPULAUNCH_EVENT"] == "failures"


def test_a_command_of_ours_is_not_taken_for_a_jobs_process() -> None:
    said = compose(["finish"], night().ledger, DIR, night().now, None)
    assert "GPULAUNCH_RUN_ID" not in said.variables


def test_each_occasion_has_its_title() -> None:
    run = History().open().jobs("a", "b")
    fail(run, "a", "gpu_oom", OOM)

    def title(event: str) -> str:
        return compose([event], run.ledger, DIR, run.now, None).title

    assert title("first_failure") == "nanobodies: a failed: out of GPU memory"
    fail(run, "b", "gpu_oom", OOM)
    assert title("first_failure") == "nanobodies: 2 jobs failed, a with: out of GPU memory"
    assert title("failures") == "nanobodies: 2 jobs failed so far, 0 of 2 succeeded"
    run.add(f.AdmissionPaused(Quoted("2 jobs in a row failed alike")))
    assert title("paused") == (
        "nanobodies is paused, nothing more starts: 2 jobs in a row failed alike"
    )


def test_a_job_that_holds_a_card_unused_is_told_with_what_it_holds() -> None:
    run = History().open().jobs("a", "b").start("a", 0).start("b", 1)
    run.add(f.AttemptIdle(AttemptId("b", 1), 3665.0, 38 << 30))
    said = compose(["gpu_idle"], run.ledger, DIR, run.now, None)
    told = "b used 0 % of GPU 1 for 1 h 1 min with 38 GiB held"
    assert said.title == f"nanobodies: {told}"
    assert told in said.text.splitlines()
    run.add(f.AttemptIdle(AttemptId("a", 1), 3700.0, 1 << 30))
    assert compose(["gpu_idle"], run.ledger, DIR, run.now, None).title.startswith("nanobodies: a ")


def test_a_simulated_run_says_so() -> None:
    run = History(simulated=True).open().jobs("a").start("a", 0).succeed("a")
    said = compose(["finish"], run.ledger, DIR, run.now, f.RunClosed("succeeded"))
    assert said.title == "nanobodies (simulated) succeeded: 1 succeeded"
    assert "simulated cards" in said.text
    assert said.summary["run"]["simulated"] is True


def test_a_stopped_run_says_why_and_how_it_goes_on() -> None:
    text = closed(night(), "stopped", "Ctrl-C")
    assert "\nCtrl-C\n" in text
    assert "gpulaunch resume" in text


def test_what_logs_and_names_hold_is_bounded_and_visible() -> None:
    run = History().open("x" * 500).jobs(*(f"job-{i}" for i in range(30)))
    for i in range(30):
        fail(run, f"job-{i}", f"kind{i}", "\x1b[31m\n" + "e" * 10_000)
    run.add(f.AdmissionPaused(Quoted("y" * 10_000)))
    said = compose(["paused"], run.ledger, DIR, run.now, None)
    assert len(said.title) <= TITLE
    assert all(len(line) <= LINE + 200 for line in said.text.splitlines())
    assert len(said.text) < 5000
    assert len(json.dumps(said.summary)) < 15_000
    assert "\x1b" not in said.title + said.text
    assert "25 failed in other ways" in said.text


def test_a_job_that_never_started_has_a_reason_too() -> None:
    run = (
        History()
        .open()
        .jobs("a")
        .add(f.JobSettled("a", "failed", Quoted("no such program: foldx")))
    )
    said = compose(["first_failure"], run.ledger, DIR, run.now, None)
    assert "could not be started [not_started], first a: no such program: foldx" in said.text
