"""`reload`, `add` and `set`: the list of a run that lives, changed from another terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.launcher import UNTIL_GO, Launcher
from tests.helpers import wait_until

LIST = f"""
    jobs:
      - {{name: long, run: '{UNTIL_GO}'}}
      - {{name: a, run: echo one, gpus: 1}}
      - {{name: b, run: echo two, needs: [a]}}
      - {{name: c, run: echo three}}
      - {{name: done, run: echo done, gpus: 0}}
"""


@contextmanager
def alive(launcher: Launcher, text: str = LIST, *options: str) -> Iterator[None]:
    """A run of this list on one card, while `long` runs there; let go of at the end."""
    launcher.file("jobs.yaml", text)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", *options) as process:
        launcher.wait_for("attempt_started")
        yield
        launcher.file("go", "")
        process.communicate(timeout=60)


def settled(launcher: Launcher, job: str, state: str = "succeeded") -> None:
    wait_until(lambda: launcher.states().get(job) == state, 60, f"{job} {state}")


# ── reload ──────────────────────────────────────────────────────────────────────────────────────


def edited(text: str = LIST) -> str:
    """One job new, one otherwise, one gone; the running one and the finished one otherwise."""
    text = text.replace("echo one, gpus: 1", "echo another, priority: 9")
    text = text.replace("      - {name: c, run: echo three}\n", "")
    text = text.replace("echo done", "echo finished").replace("long, run", "long, timeout: 1h, run")
    return text + "      - {name: new, run: cat a.txt, needs: [b]}\n"


def test_a_reload_says_what_it_changes_and_does_just_that(launcher: Launcher) -> None:
    with alive(launcher):
        settled(launcher, "done")
        launcher.file("jobs.yaml", edited())
        launcher.file("a.txt", "text")
        result = launcher("reload")
        assert result.status == 0, result.err
        assert "1 job new: new" in result.err
        assert "1 job changed: a" in result.err
        assert "1 job withdrawn: c" in result.err
        assert "running, and changed from their next attempt on: long" in result.err
        assert "over, and defined otherwise now: done" in result.err
        jobs = launcher.jobs()
        assert jobs["c"]["state"] == "cancelled"
        assert jobs["c"]["reason"] == "no longer in the job file, not run"
    assert launcher.status()["run"]["state"] == "succeeded"
    assert launcher.log("a") == "another\n"
    assert launcher.log("new") == "text"
    assert launcher.log("done") == "done\n"
    assert len(launcher.jobs()["done"]["attempts"]) == 1
    assert (launcher.run / "jobs.2.yaml").read_bytes() == (launcher.path / "jobs.yaml").read_bytes()


def test_a_dry_reload_says_the_same_and_changes_nothing(launcher: Launcher) -> None:
    with alive(launcher):
        settled(launcher, "done")
        launcher.file("jobs.yaml", edited())
        result = launcher("reload", "--dry-run")
        assert "1 job new: new" in result.err
        assert "1 job withdrawn: c" in result.err
        assert "nothing was changed" in result.err
        assert "new" not in launcher.states()
        assert not (launcher.run / "jobs.2.yaml").exists()


def test_a_reload_without_a_change_says_so(launcher: Launcher) -> None:
    with alive(launcher):
        result = launcher("reload")
        assert (result.status, result.err) == (0, "gpulaunch: nothing has changed\n")


def test_a_file_with_mistakes_changes_nothing_and_all_of_them_are_told(launcher: Launcher) -> None:
    with alive(launcher):
        launcher.file("jobs.yaml", edited().replace("priority: 9", "priority: x, neds: [b]"))
        result = launcher("reload")
        assert result.status == 2
        assert "jobs.yaml:4:" in result.err
        assert "'x'" in result.err
        assert "neds" in result.err
        assert "nothing was changed: the run goes on as it was" in result.err
        launcher.file("jobs.yaml", edited().replace("cat a.txt", "cat a.txt, gpus: 3"))
        assert "needs 3 cards, the run has 1" in launcher("reload").err
        assert launcher.states().keys() == {"long", "a", "b", "c", "done"}


SLOW = """
    import os, sys, time
    if "run" in sys.orig_argv:
        from gpulaunch.run import job_list as rereading
        load = rereading.load
        def slowly(*given):
            plan = load(*given)
            if not os.path.exists("read"):
                open("read", "w").close()
                while not os.path.exists("take"):
                    time.sleep(0.01)
            return plan
        rereading.load = slowly
"""
"""What the run reads first, it has only once the test writes the file `take`."""


def test_what_was_read_before_the_file_was_edited_comes_behind_no_newer_list(
    launcher: Launcher,
) -> None:
    launcher.environ["PYTHONPATH"] = str(launcher.path)
    launcher.file("sitecustomize.py", SLOW)
    with alive(launcher):
        launcher.file("jobs.yaml", edited())
        with launcher.begun("reload") as slow:
            wait_until((launcher.path / "read").exists)
            launcher.file("jobs.yaml", LIST + "      - {name: newest, run: echo newest}\n")
            assert "1 job new: newest" in launcher("reload").err
            launcher.file("take", "")
            said = slow.communicate(timeout=60)[1]
        assert (slow.returncode, said) == (0, "gpulaunch: nothing has changed\n")
    states = launcher.states()
    assert (states["newest"], states["c"]) == ("succeeded", "succeeded")
    assert "new" not in states


def test_what_was_withdrawn_comes_back_with_the_file(launcher: Launcher) -> None:
    with alive(launcher):
        launcher.file("jobs.yaml", LIST.replace("      - {name: c, run: echo three}\n", ""))
        assert launcher("reload").status == 0
        settled(launcher, "c", "cancelled")
        launcher.file("jobs.yaml", LIST)
        assert "1 job new: c" in launcher("reload").err
        settled(launcher, "c", "waiting")
    assert launcher.states()["c"] == "succeeded"


def test_a_running_job_that_is_gone_ends_as_it_does_and_is_not_tried_again(
    launcher: Launcher,
) -> None:
    text = LIST.replace(f"'{UNTIL_GO}'", f"'{UNTIL_GO}; exit 3', retries: 5")
    with alive(launcher, text):
        launcher.file("jobs.yaml", "jobs: [{name: only, run: echo it}]")
        result = launcher("reload")
        assert "no longer in the file, and left as they are" in result.err
    jobs = launcher.jobs()
    assert [len(jobs["long"]["attempts"]), jobs["long"]["state"]] == [1, "cancelled"]
    assert jobs["only"]["state"] == "succeeded"
    assert launcher.status()["run"]["state"] == "succeeded"


def test_a_job_that_runs_is_as_the_file_has_it_from_its_next_attempt_on(
    launcher: Launcher,
) -> None:
    text = LIST.replace(f"'{UNTIL_GO}'", f"'{UNTIL_GO}; exit 3', retries: 1")
    with alive(launcher, text):
        launcher.file("jobs.yaml", text.replace(f"{UNTIL_GO}; exit 3", "echo mended"))
        assert launcher("reload").status == 0
    assert launcher.log("long", 2) == "mended\n"
    assert launcher.states()["long"] == "succeeded"


def test_keys_of_the_whole_file_wait_for_the_next_resume(launcher: Launcher) -> None:
    with alive(launcher):
        launcher.file(
            "jobs.yaml",
            LIST.replace("    jobs:", "    limits: {x: 1}\n    free_below: 2GB\n    jobs:"),
        )
        result = launcher("reload")
        for key in ("limits", "free_below"):
            told = f"{key}: changed in the job file; the run has it so from its next resume"
            assert told in result.err


def test_reload_and_resume_make_the_same_of_an_edited_file(
    launcher: Launcher, tmp_path: Path
) -> None:
    other = Launcher(tmp_path / "other", launcher.environ)
    other.file("jobs.yaml", LIST)
    other.file("a.txt", "text")
    with other.begun("run", "jobs.yaml", "--simulate", "1") as process:
        other.wait_for("attempt_started")
        settled(other, "done")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    other.file("jobs.yaml", edited())
    other.file("go", "")
    assert other("resume").status == 0
    with alive(launcher):
        settled(launcher, "done")
        launcher.file("a.txt", "text")
        launcher.file("jobs.yaml", edited())
        assert launcher("reload").status == 0
    here, there = launcher.jobs(), other.jobs()
    assert here.keys() == there.keys()
    for name in here.keys() - {"c"}:
        assert here[name]["state"] == there[name]["state"] == "succeeded"
        number = here[name]["attempts"][-1]["number"], there[name]["attempts"][-1]["number"]
        assert launcher.log(name, number[0]) == other.log(name, number[1])
    assert launcher.status()["run"]["counts"] == other.status()["run"]["counts"]


# ── add ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_added_command_has_the_callers_directory_and_environment(launcher: Launcher) -> None:
    with alive(launcher):
        below = Launcher(launcher.path, launcher.environ | {"MINE": "se\ncret"})
        below.path = launcher.path / "below"
        below.path.mkdir()
        result = below("add", "-g", "0", "--", "sh", "-c", 'printf "$PWD $MINE"')
        assert (result.status, result.out) == (0, "printf-1\n")
        settled(launcher, "printf-1")
        assert launcher.log("printf-1") == f"{below.path} se\ncret"
        assert below("add", "--wait", "-g", "0", "exit 7").status == 7
    for path in launcher.run.rglob("*"):
        if path.is_file() and path.parent.name != "logs":
            assert b"se\\ncret" not in path.read_bytes(), path
            assert b"se\ncret" not in path.read_bytes(), path


def test_what_was_answered_is_in_the_journal_by_then(launcher: Launcher) -> None:
    with alive(launcher):
        result = launcher("add", "--name", "x", "--needs", "a", "--priority", "3", "--", "true")
        assert result.out == "x\n"
        assert [event["job"] for event in launcher.events("job_added")][-1] == "x"
        assert len(launcher.events("jobs_given")) == 1
        assert "needs a" in launcher.jobs()["x"]["reason"]


def test_added_jobs_may_need_jobs_of_the_run_and_name_them_by_pattern(launcher: Launcher) -> None:
    with alive(launcher):
        launcher("add", "--name", "one", "--", "true")
        result = launcher("add", "--name", "all", "--after", "*", "-g", "0", "--", "true")
        assert result.status == 0, result.err
    order = [event["job"] for event in launcher.events("attempt_launched")]
    assert order[-1] == "all"


def test_what_cannot_be_added_is_told_and_nothing_is(launcher: Launcher) -> None:
    with alive(launcher):
        for words, told in (
            (["--name", "a", "--", "true"], "a is a job of this run already"),
            (["--needs", "nobody", "--", "true"], "--needs: there is no job nobody"),
            (["--timeout", "5q", "--", "true"], "--timeout: expected a duration"),
            (["-g", "4", "--", "true"], "needs 4 cards, the run has 1"),
            (["--", "no-such-program", "1"], "there is no program no-such-program in PATH"),
            (["--uses", "msa", "--", "true"], "--uses: no limit is called msa"),
            (["--gpus", "1", "--", "true"], "-g"),
            (["--env", "X", "--", "true"], "--env X: expected NAME=VALUE"),
            (["missing.yaml"], "missing.yaml"),
        ):
            result = launcher("add", *words)
            assert result.status == 2, words
            assert told in result.err, result.err
            assert "Traceback" not in result.err
        assert launcher.events("jobs_given") == []


def test_a_file_of_jobs_is_added_whole_or_not_at_all(launcher: Launcher) -> None:
    with alive(launcher):
        launcher.file("in/x.txt", "x")
        launcher.file("in/y.txt", "y")
        more = """
            jobs:
              - {name: '{{stem}}', foreach: 'in/*.txt', run: 'cat {{path}}', gpus: 0}
              - {name: both, needs: [x, y, done], run: echo both, gpus: 0}
        """
        launcher.file("more.yaml", more.replace("gpus: 0}", "gpus: 0, wrong: 1}"))
        result = launcher("add", "more.yaml")
        assert result.status == 2
        assert result.err.count("wrong") >= 2
        assert launcher.events("jobs_given") == []
        launcher.file("more.yaml", more)
        assert launcher("add", "more.yaml").out == "x\ny\nboth\n"
        settled(launcher, "both")
        assert launcher.log("y") == "y"
        assert launcher("reload").err == "gpulaunch: nothing has changed\n"
        assert launcher.states()["both"] == "succeeded"


def test_followed_the_log_is_shown_and_the_status_is_the_jobs(launcher: Launcher) -> None:
    with alive(launcher):
        result = launcher("add", "--follow", "-g", "0", "--", "sh", "-c", "echo seen; kill -9 $$")
        assert result.out == "seen\n"
        assert result.status == 128 + signal.SIGKILL


def test_a_resume_runs_what_was_added_and_not_begun(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIST)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        adder = Launcher(launcher.path, launcher.environ | {"MINE": "first"})
        adder("add", "--name", "ran", "-g", "0", "--", "printenv", "MINE")
        settled(launcher, "ran")
        adder("add", "--name", "waits", "--", "sh", "-c", "echo ${MINE-nothing}")
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    launcher.file("go", "")
    result = launcher("resume")
    assert result.status == 0, result.err
    assert "with this shell's environment, as theirs is not kept: waits" in result.err
    assert launcher.log("ran") == "first\n"
    assert launcher.log("waits") == "nothing\n"
    assert len(launcher.jobs()["ran"]["attempts"]) == 1
    assert "nothing to do" in launcher("resume").err or launcher("resume").status == 0


def test_twenty_adders_at_once_have_twenty_jobs(launcher: Launcher) -> None:
    with alive(launcher):
        adders = [launcher.begun("add", "-g", "0", "--", "true") for _ in range(20)]
        begun = [adder.__enter__() for adder in adders]
        names = [process.communicate(timeout=60)[0] for process in begun]
        for adder in adders:
            adder.__exit__(None, None, None)
        assert sorted(names) == sorted(f"true-{number}\n" for number in range(1, 21))
    assert set(launcher.states().values()) == {"succeeded"}


def test_nothing_is_added_to_a_run_that_stops_or_is_over(launcher: Launcher) -> None:
    text = "jobs: [{name: a, run: \"trap '' TERM; echo up; sleep 600\", grace: 600}]"
    launcher.file("jobs.yaml", text)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        wait_until(lambda: launcher.log("a"))
        process.send_signal(signal.SIGTERM)
        launcher.wait_for("stop_asked")
        result = launcher("add", "--", "true")
        assert (result.status, "is stopping" in result.err) == (2, True)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    result = launcher("add", "--", "true")
    assert result.status == 2
    assert launcher.events("jobs_given") == []


# ── set ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_set_holds_over_the_file_until_it_is_taken_back(launcher: Launcher) -> None:
    with alive(launcher):
        assert "set for a, c" in launcher("set", "[ac]", "priority=7", "timeout=2h").err
        launcher.file("jobs.yaml", LIST.replace("echo three", "echo 3, priority: 1"))
        assert "1 job changed: c" in launcher("reload").err
        assert launcher("set", "b", "priority=9").status == 0
        assert launcher("set", "c", "priority=").status == 0
        assert launcher("set", "b", "needs=none").status == 0
    order = [event["job"] for event in launcher.events("attempt_launched")]
    assert order[-3:] == ["b", "a", "c"]


def test_what_is_set_is_so_after_a_crash_too(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIST)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        assert launcher("set", "c", "priority=5").status == 0
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    launcher.file("go", "")
    assert launcher("resume").status == 0
    order = [event["job"] for event in launcher.events("attempt_launched")]
    assert order.index("c") < order.index("a")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("a", "timeout=5q"), "timeout=5q: expected a duration"),
        (("a", "colour=red"), "colour"),
        (("a", "run=true"), "run cannot be set"),
        (("a", "needs=b"), "a cycle"),
        (("a", "gpus=9"), "needs 9 cards, the run has 1"),
        (("a", "memory=900TB"), "memory: reserves 838190.3 GiB of the host's memory"),
        (("long", "priority=1"), "does not wait (running)"),
        (("nobody", "priority=1"), "no job of jobs is called nobody"),
        (("a",), "set takes jobs and fields"),
        (("priority=1",), "set takes jobs and fields"),
    ],
)
def test_what_cannot_be_set_is_told(launcher: Launcher, words: tuple[str, ...], told: str) -> None:
    with alive(launcher):
        result = launcher("set", *words)
        assert result.status == 2
        assert told in result.err
        assert launcher.events("job_set") == []


def test_a_worker_serves_jobs_of_one_environment_alone(launcher: Launcher) -> None:
    launcher.file("made.py", "import os\ndef act(item): print(os.getpid(), os.environ['MINE'])\n")
    with alive(launcher):
        for name in ("one", "two", "three"):
            job = f"{{name: {name}, worker: 'made.py:act', gpus: 0}}"
            launcher.file("more.yaml", f"jobs: [{job}]")
            adder = Launcher(launcher.path, launcher.environ | {"MINE": name.replace("ee", "")})
            result = adder("add", "more.yaml")
            assert result.status == 0, result.err
    said = [launcher.log(name).split() for name in ("one", "two", "three")]
    assert [mine for _, mine in said] == ["one", "two", "thr"]
    assert len({pid for pid, _ in said}) == 3
