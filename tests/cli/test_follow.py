"""`run --follow`: a folder into which files come while the run lives, until `finish`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpulaunch.run import edit
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.cli.test_live_list import SLOW
from tests.helpers import wait_until

LIST = """
    jobs:
      - {name: 'f-{{stem}}', foreach: 'in/*.fa', run: 'cat {{path}}', gpus: 0}
      - {name: all, after: ['f-*'], run: echo all, gpus: 0}
"""


@pytest.fixture
def folder(launcher: Launcher) -> Path:
    (launcher.path / "in").mkdir()
    (launcher.path / "apart").mkdir()
    return launcher.path / "in"


def comes(folder: Path, name: str, text: str = "text\n") -> None:
    """A file comes whole, by rename."""
    apart = folder.parent / "apart" / name
    apart.write_text(text)
    apart.rename(folder / name)


def settled(launcher: Launcher, *jobs: str, state: str = "succeeded") -> None:
    def they_are() -> bool:
        found = launcher.states() if launcher.events() else {}
        return all(found.get(job) == state for job in jobs)

    wait_until(they_are, 60, f"{jobs} {state}")


def begun(launcher: Launcher) -> None:
    """Wait for the run's journal: `latest` points to a run once it has an attempt."""
    runs = launcher.path / "gpulaunch-runs"
    wait_until(lambda: list(runs.glob("jobs-*/events.jsonl")), 60, "a journal")


@contextmanager
def following(launcher: Launcher, text: str = LIST, settle: str = "0.1") -> Iterator[None]:
    """A run that follows the folder; at the end it is told to finish, and does."""
    launcher.file("jobs.yaml", text)
    words = ("run", "jobs.yaml", "--follow", "--settle", settle, "--simulate", "1")
    with launcher.begun(*words) as process:
        begun(launcher)
        yield
        assert launcher("finish").status == 0
        assert process.wait(60) == 0


def test_files_that_come_are_jobs_and_what_waits_for_all_comes_with_finish(
    launcher: Launcher, folder: Path
) -> None:
    (folder / "there.fa").write_text("there\n")
    with following(launcher):
        settled(launcher, "f-there")
        comes(folder, "moved.fa")
        settled(launcher, "f-moved")
        (folder / "copied.fa").write_text("copied\n")
        settled(launcher, "f-copied")
        assert "all" not in launcher.states()
        assert launcher.status()["run"]["state"] == "running"
        assert "follows its inputs until gpulaunch finish" in launcher("status").out
    order = [event["job"] for event in launcher.events("attempt_launched")]
    assert order == ["f-there", "f-moved", "f-copied", "all"]
    assert launcher.log("f-copied") == "copied\n"


def test_five_hundred_files_come_by_rename_and_by_copy_and_some_go_again(
    launcher: Launcher, folder: Path
) -> None:
    text = LIST.replace("run: 'cat {{path}}'", "run: [cat, '{{path}}'], needs: [gate]")
    text += f"      - {{name: gate, run: '{UNTIL_GO}', gpus: 0}}\n"
    with following(launcher, text):
        launcher.wait_for("attempt_started")
        for number in range(500):
            if number % 2:
                comes(folder, f"{number}.fa", f"{number}\n")
            else:
                (folder / f"{number}.fa").write_text(f"{number}\n")
        settled(launcher, *(f"f-{number}" for number in range(500)), state="waiting")
        for number in range(0, 500, 5):
            (folder / f"{number}.fa").unlink()
        settled(launcher, *(f"f-{number}" for number in range(0, 500, 5)), state="cancelled")
        launcher.file("go", "")
    states = launcher.states()
    kept = [number for number in range(500) if number % 5]
    assert {states[f"f-{number}"] for number in kept} == {"succeeded"}
    assert [launcher.log(f"f-{number}") for number in kept] == [f"{number}\n" for number in kept]
    assert {len(job["attempts"]) for job in launcher.jobs().values()} == {0, 1}
    assert launcher.status()["run"]["state"] == "succeeded"


def test_appended_lines_are_jobs_and_an_unfinished_one_is_not_yet(launcher: Launcher) -> None:
    launcher.file("list.txt", "one\ntw")
    text = "jobs: [{name: 'l-{{item}}', foreach: {lines: list.txt}, run: 'true', gpus: 0}]"
    launcher.file("jobs.yaml", text)
    with launcher.begun("run", "jobs.yaml", "--follow", "--settle", "1h", "--simulate", "1"):
        settled(launcher, "l-one")
        assert launcher.states().keys() == {"l-one"}
        with open(launcher.path / "list.txt", "a") as file:
            file.write("o\nthree\n")
        settled(launcher, "l-two", "l-three")
        assert launcher.states().keys() == {"l-one", "l-two", "l-three"}


def test_a_reload_takes_other_folders_up(launcher: Launcher, folder: Path) -> None:
    with following(launcher):
        comes(folder, "a.fa")
        settled(launcher, "f-a")
        launcher.file("more/b.fa", "b")
        launcher.file("jobs.yaml", LIST.replace("'in/*.fa'", "['in/*.fa', 'more/*.fa']"))
        assert launcher("reload").status == 0
        settled(launcher, "f-b")
        launcher.file("more/c.fa", "c")
        settled(launcher, "f-c")


def test_a_file_that_is_wrong_for_a_while_changes_nothing_and_is_read_again(
    launcher: Launcher, folder: Path
) -> None:
    with following(launcher):
        comes(folder, "a.fa")
        settled(launcher, "f-a")
        launcher.file("jobs.yaml", LIST.replace("gpus", "gups"))
        comes(folder, "b.fa")
        noted = launcher.wait_for("noted")
        assert "gups" in noted[0]["text"]
        assert "nothing was changed" in noted[0]["text"]
        launcher.file("jobs.yaml", LIST)
        comes(folder, "c.fa")
        settled(launcher, "f-b", "f-c")


def test_a_run_that_follows_goes_on_so_after_a_kill(launcher: Launcher, folder: Path) -> None:
    launcher.file("jobs.yaml", LIST)
    words = ("--follow", "--settle", "0.1", "--simulate", "1")
    with launcher.begun("run", "jobs.yaml", *words) as process:
        begun(launcher)
        comes(folder, "a.fa")
        settled(launcher, "f-a")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    comes(folder, "b.fa")
    with launcher.begun("resume") as process:
        settled(launcher, "f-b")
        comes(folder, "c.fa")
        settled(launcher, "f-c")
        assert launcher("finish").status == 0
        assert process.wait(60) == 0
    assert set(launcher.states().values()) == {"succeeded"}
    assert {len(job["attempts"]) for job in launcher.jobs().values()} == {1}


def test_a_run_that_is_cancelled_follows_no_more(launcher: Launcher, folder: Path) -> None:
    launcher.file("jobs.yaml", LIST)
    words = ("run", "jobs.yaml", "--follow", "--settle", "0.1", "--simulate", "1")
    with launcher.begun(*words) as process:
        begun(launcher)
        comes(folder, "a.fa")
        settled(launcher, "f-a")
        done = launcher("cancel", "--all")
        assert done.status == 0, done.err
        assert process.wait(60) == 0
    assert launcher.events("run_closed")


def test_what_cannot_be_followed_or_finished_is_told(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    result = launcher("run", "jobs.yaml", "--follow", "--simulate", "1")
    assert result.status == 2
    assert "jobs.yaml:1:7: jobs: nothing to follow" in result.err
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}', gpus: 0}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        result = launcher("finish")
        assert result.status == 2
        assert "ends by itself once its jobs have" in result.err
        launcher.file("go", "")
        process.communicate(timeout=60)


def test_what_is_read_for_the_inputs_comes_behind_no_newer_list(
    launcher: Launcher, folder: Path
) -> None:
    launcher.environ["PYTHONPATH"] = str(launcher.path)
    launcher.file("sitecustomize.py", SLOW)
    (folder / "there.fa").write_text("there\n")
    gate = f"{{name: gate, run: '{UNTIL_GO}', gpus: 0}}"
    with following(launcher, f"{LIST}      - {gate}\n"):
        wait_until((launcher.path / "read").exists)
        newest = "{name: newest, needs: [gate], run: echo newest}"
        launcher.file("jobs.yaml", f"{LIST}      - {gate}\n      - {newest}\n")
        assert "1 job new: newest" in launcher("reload").err
        launcher.file("take", "")
        comes(folder, "later.fa")
        settled(launcher, "f-later")
        launcher.file("go", "")
    ends = [event for event in launcher.events("job_settled") if event["job"] == "newest"]
    assert [event["state"] for event in ends] == ["succeeded"]


def test_what_came_just_before_the_finish_is_run(launcher: Launcher, folder: Path) -> None:
    (folder / "there.fa").write_text("there\n")
    launcher.file("jobs.yaml", LIST.partition("      - {name: all")[0])
    words = ("run", "jobs.yaml", "--follow", "--settle", "0.1", "--simulate", "1")
    with launcher.begun(*words) as process:
        begun(launcher)
        settled(launcher, "f-there")
        comes(folder, "one.fa")
        launcher.wait_for("job_settled", 2)
        comes(folder, "two.fa")
        edit.finish(launcher.run)  # here, as a command of its own may be too slow to show it
        assert process.wait(60) == 0
    assert launcher.states() == dict.fromkeys(("f-there", "f-one", "f-two"), "succeeded")


def test_what_was_half_written_at_the_finish_and_goes_holds_nothing_up(
    launcher: Launcher, folder: Path
) -> None:
    (folder / "there.fa").write_text("there\n")
    os.utime(folder / "there.fa", (0, 0))
    launcher.file("jobs.yaml", LIST)
    words = ("run", "jobs.yaml", "--follow", "--settle", "600", "--simulate", "1")
    with launcher.begun(*words) as process:
        begun(launcher)
        settled(launcher, "f-there")
        (folder / "half.fa").write_text("ha")
        assert launcher("finish").status == 0
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        (folder / "half.fa").unlink()
        assert process.wait(60) == 0
    assert launcher.states() == {"f-there": "succeeded", "all": "succeeded"}
