"""Running again: resume with an edited file, retry, --continue, --new."""

from __future__ import annotations

from gpulaunch.core.facts import ImageKnown
from gpulaunch.core.model import ImageSource
from gpulaunch.journal.append import Journal
from gpulaunch.journal.codec import now
from gpulaunch.journal.manifest import NamedImage
from gpulaunch.journal.rundir import RunDir
from tests.cli.launcher import Launcher

FIRST = """
    jobs:
      - {name: kept, run: echo kept >> ran}
      - {name: edited, run: echo edited >> ran}
      - {name: gone, run: exit 1}
      - {name: bad, run: exit 1, priority: -1}
"""
THEN = """
    jobs:
      - {name: kept, run: echo kept >> ran}
      - {name: edited, run: echo edited differently >> ran}
      - {name: bad, run: 'true'}
      - {name: new, run: echo new >> ran}
"""


def ran(launcher: Launcher) -> list[str]:
    return sorted((launcher.path / "ran").read_text().splitlines())


def test_resume_of_an_edited_file(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", FIRST)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    launcher.file("jobs.yaml", THEN)
    result = launcher("resume")
    assert result.status == 0, result.err
    assert "2 done, 1 again, 1 new, 1 done but changed" in result.err
    assert ran(launcher) == ["edited", "kept", "new"]
    assert launcher.states()["gone"] == "failed", "a vanished job is kept, and not run"
    result = launcher("resume", "--changed")
    assert result.status == 0
    assert ran(launcher) == ["edited", "edited differently", "kept", "new"]
    assert (launcher.run / "jobs.3.yaml").exists()


def test_resume_with_the_recorded_file(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", FIRST)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    launcher.file("jobs.yaml", "nonsense")
    assert launcher("resume").status == 2
    (launcher.path / "jobs.yaml").unlink()
    result = launcher("resume")
    assert result.status == 2
    assert "--recorded" in result.err
    assert launcher("resume", "--recorded").status == 1
    assert len(launcher.jobs()["bad"]["attempts"]) == 2


def test_retry_runs_only_what_failed_and_what_was_skipped_because_of_it(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: good, run: echo good >> ran}
          - {name: bad, run: '[ -e fixed ]', priority: 1}
          - {name: after-bad, needs: [bad], run: echo after >> ran}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    launcher.file("fixed", "")
    assert launcher("retry").status == 0
    assert ran(launcher) == ["after", "good"]


def test_retry_of_a_stopped_run_leaves_what_never_started(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: bad, run: '[ -e fixed ]', priority: 1}
          - {name: never, run: echo never >> ran}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--fail-fast").status == 1
    launcher.file("fixed", "")
    result = launcher("retry")
    assert launcher.states() == {"bad": "succeeded", "never": "waiting"}, result.err
    assert launcher("resume").status == 0
    assert launcher.states()["never"] == "succeeded"


def test_each_start_has_a_fresh_retry_budget(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: bad, run: exit 1, retries: 1}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    assert launcher("retry").status == 1
    assert [a["number"] for a in launcher.jobs()["bad"]["attempts"]] == [1, 2, 3, 4]


def test_continue_is_idempotent(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: echo a >> ran}]")
    for _ in range(3):
        assert launcher("run", "--continue", "jobs.yaml", "--simulate", "1").status == 0
    assert ran(launcher) == ["a"]
    assert len(list((launcher.path / "gpulaunch-runs").iterdir())) == 2


def test_continue_from_elsewhere_goes_on_with_the_run_beside_the_job_file(
    launcher: Launcher,
) -> None:
    jobs = launcher.file("jobs.yaml", "jobs: [{name: a, run: echo a >> ran}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    for place in ("home/cron", "below"):
        there = Launcher(launcher.file(f"{place}/readme", "").parent)
        result = there("run", "--continue", jobs, "--simulate", "1")
        assert result.status == 0, result.err
        assert f"goes on with {launcher.run}, which was not begun here" in result.err
        assert not (there.path / "gpulaunch-runs").exists()
    assert ran(launcher) == ["a"]


def test_a_finished_run_does_not_stand_in_the_way_of_a_new_one(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0


def test_what_a_power_cut_left_behind_is_put_aside(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'echo {{attempt}} > {{out}}/x; echo ran'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    lines = (launcher.run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (launcher.run / "events.jsonl").write_bytes(b"".join(lines[:2]))
    assert launcher("resume").status == 0
    assert launcher.log("a") == "ran\n"
    assert len(list((launcher.run / "logs").glob("a.1.log.unrecorded-*"))) == 1


def test_a_directory_that_holds_a_run_is_refused(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--run-dir", "here").status == 0
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--run-dir", "here")
    assert result.status == 2
    assert "already holds a run" in result.err
    assert launcher("status", "here").status == 0


def test_a_failure_that_left_the_file_makes_words_and_numbers_agree(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: good, run: 'true'}, {name: bad, run: exit 1}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    launcher.file("jobs.yaml", "jobs: [{name: good, run: 'true'}]")
    result = launcher("resume")
    assert result.status == 0
    assert "2 jobs: 1 succeeded, 1 no longer in the job file" in result.err
    assert "1 failed" not in result.err
    told = launcher("status").out
    assert "1 succeeded, 1 no longer in the job file" in told
    assert "no longer in the job file; exited with status 1" in " ".join(told.split())
    run = launcher.status()["run"]
    assert (run["state"], run["counts"]["failed"], run["vanished"]) == ("succeeded", 0, 1)
    report = (launcher.run / "report.html").read_text()
    assert "1 of 2 jobs succeeded, 1 no longer in the job file." in report
    assert launcher("resume").status == 0
    assert len(launcher.events("run_opened")) == 2, "what is known is not recorded again"
    launcher.file("jobs.yaml", "jobs: [{name: good, run: 'true'}, {name: bad, run: 'true'}]")
    assert launcher("resume").status == 0
    assert launcher.status()["run"]["counts"]["succeeded"] == 2


def test_a_retry_where_nothing_failed_says_what_runs_the_cancelled(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: sleep 600, grace: 0}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started")
        assert launcher("cancel", "--all").status == 0
        run.wait(60)
    result = launcher("retry")
    assert result.status == 1
    where = f"gpulaunch-runs/{launcher.run.name}"
    said = f"nothing to do; 1 cancelled, to be run with: gpulaunch resume {where}"
    assert said in result.err


def test_a_resume_names_the_images_that_a_killed_launcher_had_only_in_the_journal(
    launcher: Launcher,
) -> None:
    launcher.file("jobs.yaml", FIRST)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    run = RunDir(launcher.run)
    with Journal.reopen(run) as journal:
        image = ImageSource("img", "docker")
        journal.append([(ImageKnown(image, "sha256:1", "sha256:a", "docker"), now())])
    assert launcher("resume").status == 1
    assert run.read_manifest().images == (NamedImage("img", "docker", "sha256:1", "sha256:a"),)
    (named,) = launcher.status()["run"]["images"]
    assert named["digest"] == "sha256:a"


def test_more_samples_of_a_matrix_are_new_jobs_beside_those_that_are_done(
    launcher: Launcher,
) -> None:
    text = """
        jobs:
          - {matrix: {lr: {log: [1e-5, 1e-2]}}, sample: 2, run: 'echo {{lr}} >> ran'}
    """
    launcher.file("jobs.yaml", text)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    before = ran(launcher)
    launcher.file("jobs.yaml", text.replace("sample: 2", "sample: 5"))
    result = launcher("resume")
    assert result.status == 0, result.err
    assert "2 done, 0 again, 3 new" in result.err
    assert len(before) == 2
    assert len(ran(launcher)) == 5
    assert set(before) < set(ran(launcher))


def test_a_name_that_stands_for_another_file_by_now_is_told_at_the_end(
    launcher: Launcher,
) -> None:
    jobs = 'jobs: [{name: "j{{index}}", foreach: in/*, gpus: 0, run: "cat {{path}}"}]'
    launcher.file("jobs.yaml", jobs)
    for name in ("b", "c"):
        launcher.file(f"in/{name}", name)
    first = launcher("run", "jobs.yaml", "--simulate", "1")
    assert first.status == 0
    assert "under another definition" not in first.err
    launcher.file("in/a", "a")
    ended = launcher("resume")
    assert ended.status == 0
    told = "2 jobs succeeded under another definition than the job file has now (j0, j1)"
    assert f"{told}: gpulaunch resume --changed" in ended.err
    assert told in launcher("status").out
    assert told in (launcher.run / "report.html").read_text()
    assert launcher("resume", "--changed").status == 0
    assert told not in launcher("status").out
