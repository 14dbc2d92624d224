"""`retry` into a run that lives: the job file as it is now, these jobs or all that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpulaunch.journal.read import replay
from tests.cli.launcher import Launcher, Result
from tests.helpers import wait_until

TYPO = """
    jobs:
      - {name: long, run: 'until [ -e over ]; do sleep 0.05; done', gpus: 0}
      - {name: fold-1, run: ech folded, gpus: 0}
      - {name: fold-2, run: ech folded, gpus: 0}
      - {name: after, run: echo after, needs: [fold-1], gpus: 0}
"""
MENDED = TYPO.replace("ech folded", "echo folded")


@contextmanager
def alive(launcher: Launcher, failed: int = 2) -> Iterator[None]:
    """The run while `long` runs and so many have failed; `long` is let go of at the end."""
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        states = lambda: list(launcher.states().values()) if launcher.events() else []  # noqa: E731
        wait_until(lambda: states().count("failed") == failed, 60)
        yield
        launcher.file("over", "")
        process.wait(60)


def settled(launcher: Launcher, job: str, state: str) -> None:
    wait_until(lambda: launcher.states()[job] == state, 60, f"{job} {state}")


def test_a_typo_mended_in_the_file_is_mended_for_what_is_retried(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        launcher.file("jobs.yaml", MENDED)
        result = launcher("retry")
        assert result.status == 0, result.err
        assert "requeued 3 jobs" in result.err
        assert "changed in the job file, run as they are now: fold-1, fold-2" in result.err
        settled(launcher, "after", "succeeded")
        settled(launcher, "fold-2", "succeeded")
        assert launcher.log("fold-2", 2) == "folded\n"
    assert (launcher.run / "jobs.2.yaml").read_bytes() == (launcher.path / "jobs.yaml").read_bytes()
    assert launcher.status()["run"]["state"] == "succeeded"
    assert launcher("resume", "--dry-run").err.count("changed") == 0


def test_what_a_live_retry_took_from_the_file_is_in_the_journal(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        launcher.file("jobs.yaml", MENDED)
        assert launcher("retry", "fold-2").status == 0
        settled(launcher, "fold-2", "succeeded")
    record = replay(launcher.run / "events.jsonl").jobs["fold-2"]
    assert record.succeeded_as == record.definition.digest != record.attempts[0].digest


def test_a_wrong_file_changes_nothing_and_every_mistake_is_told(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        launcher.file("jobs.yaml", MENDED.replace("needs: [fold-1]", "neds: x, gpus: many"))
        result = launcher("retry")
        assert result.status == 2
        assert "neds" in result.err
        assert "many" in result.err
        assert "nothing was changed: the run goes on as it was" in result.err
        assert launcher.events("job_requeued") == []
        launcher.file("jobs.yaml", MENDED.replace("echo folded, gpus: 0", "echo folded, gpus: 4"))
        result = launcher("retry")
        assert result.status == 2
        assert "needs 4 cards, the run has 1" in result.err
        assert launcher.events("job_requeued") == []


def test_only_the_jobs_that_are_named_are_retried(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        launcher.file("jobs.yaml", MENDED)
        result = launcher("retry", "fold-1", "long")
        assert "requeued 2 jobs" in result.err
        assert "long is not retried: it has not failed (running)" in result.err
        settled(launcher, "after", "succeeded")
        assert launcher.states()["fold-2"] == "failed"


def test_a_job_that_the_file_has_no_more_is_named_and_not_run(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        kept = [line for line in MENDED.splitlines() if "fold-2" not in line]
        launcher.file("jobs.yaml", "\n".join(kept))
        result = launcher("retry")
        assert "no longer in the job file, and not run: fold-2" in result.err
        settled(launcher, "after", "succeeded")
    run = launcher.status()["run"]
    assert run["state"] == "succeeded"
    assert len(launcher.jobs()["fold-2"]["attempts"]) == 1


def test_other_needs_are_taken_into_a_live_run(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        launcher.file("jobs.yaml", MENDED.replace("name: fold-1,", "name: fold-1, needs: [long],"))
        assert launcher("retry").status == 0
        launcher.wait_for("job_requeued", 3)
        assert "needs long" in launcher.jobs()["fold-1"]["reason"]
    assert launcher.states()["after"] == "succeeded"


def test_needs_of_jobs_that_the_run_does_not_have_are_a_reloads_affair(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        text = MENDED.replace("name: fold-1,", "name: fold-1, needs: [new],")
        launcher.file("jobs.yaml", text + "      - {name: new, run: 'true', gpus: 0}\n")
        result = launcher("retry")
        assert result.status == 2
        assert "fold-1: needs or after names a job that this run does not have yet" in result.err
        assert "gpulaunch reload" in result.err
        assert launcher.events("job_requeued") == []
        assert launcher("retry", "--recorded").status == 0
        launcher.wait_for("job_requeued", 3)


def test_a_file_that_is_gone_is_told_with_the_way_out(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        (launcher.path / "jobs.yaml").unlink()
        result = launcher("retry")
        assert result.status == 2
        assert "jobs.yaml is gone; --recorded" in result.err


def test_a_dry_retry_of_a_live_run_lists_what_would_be_put_back(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    with alive(launcher):
        launcher.file("jobs.yaml", MENDED)
        result = launcher("retry", "--dry-run")
        assert result.status == 0, result.err
        assert "fold-1" in result.out
        assert "echo folded" in result.out
        assert "long" not in result.out
        assert launcher.events("job_requeued") == []


# ── Of a run that is over ───────────────────────────────────────────────────────────────────────


def over(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TYPO)
    launcher.file("over", "")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    launcher.file("jobs.yaml", MENDED)


def test_of_a_run_that_is_over_only_the_named_jobs_are_retried(launcher: Launcher) -> None:
    over(launcher)
    result = launcher("retry", "fold-1")
    assert result.status == 1, "fold-2 has still failed"
    assert launcher.states() == {
        "long": "succeeded",
        "fold-1": "succeeded",
        "fold-2": "failed",
        "after": "succeeded",
    }


def test_what_keeps_a_named_job_from_running_is_retried_with_it(launcher: Launcher) -> None:
    over(launcher)
    assert launcher("retry", "-r", "jobs", "after").status == 1
    states = launcher.states()
    assert (states["fold-1"], states["after"], states["fold-2"]) == (
        "succeeded",
        "succeeded",
        "failed",
    )


def test_runs_and_jobs_are_told_apart(launcher: Launcher) -> None:
    over(launcher)
    named = launcher("retry", "--dry-run", "jobs", "fold-[2]")
    assert ("fold-2" in named.out, "fold-1" in named.out) == (True, False)
    neither: Result = launcher("retry", "fold-9")
    assert neither.status == 2
    assert "fold-9 is not a run, nor a job of gpulaunch-runs/jobs-" in neither.err
    unknown = launcher("retry", "-r", "jobs", "fold-9")
    assert unknown.status == 2
    assert "no job of jobs is called fold-9; did you mean fold-" in unknown.err


def test_what_is_a_run_and_a_job_is_asked_back(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: jobs, run: exit 1}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    result = launcher("retry", "jobs")
    assert result.status == 2
    assert "jobs is a run and a job of gpulaunch-runs/jobs-" in result.err
    assert "-r jobs" in result.err
    assert launcher("retry", "-r", "jobs").status == 1
