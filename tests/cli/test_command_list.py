"""`run commands.txt` and `run -`: a command a line, and going on with what became of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.launcher import UNTIL_GO, Launcher
from tests.cli.terminal import terminal
from tests.helpers import wait_until

CARDS = ("--simulate", "1")


def said(launcher: Launcher) -> dict[str, str]:
    """What each succeeded job printed, by the words of its name."""
    return {
        name.rpartition("-")[0]: launcher.log(name)
        for name, state in launcher.states().items()
        if state == "succeeded"
    }


def states(launcher: Launcher) -> dict[str, str]:
    return {name.rpartition("-")[0]: state for name, state in launcher.states().items()}


def attempts(launcher: Launcher) -> dict[str, int]:
    jobs = launcher.jobs().items()
    return {name.rpartition("-")[0]: len(job["attempts"]) for name, job in jobs}


@contextmanager
def alive(launcher: Launcher, *options: str) -> Iterator[None]:
    """A run of commands.txt, whose first line waits for the test's end."""
    with launcher.begun("run", "commands.txt", *CARDS, *options) as process:
        launcher.wait_for("attempt_started")
        yield
        launcher.file("go", "")
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_each_line_is_a_job_on_a_card_of_its_own(launcher: Launcher) -> None:
    launcher.file(
        "commands.txt", "# all of it\n\necho a | tr a b\necho $CUDA_VISIBLE_DEVICES > x\n"
    )
    result = launcher("run", "commands.txt", *CARDS)
    assert result.status == 0, result.err
    assert said(launcher) == {"echo-a-tr-a-b": "b\n", "echo-CUDA_VISIBLE_DEVICES-x": ""}
    assert (launcher.path / "x").read_text().strip()
    assert launcher.run.name.startswith("commands-")


@pytest.mark.parametrize("text", ["echo a\necho b\n", "jobs: [{run: echo a}, {run: echo b}]"])
def test_standard_input_is_a_list_or_a_job_file(launcher: Launcher, text: str) -> None:
    result = launcher("run", "-", *CARDS, stdin=text)
    assert result.status == 0, result.err
    assert sorted(launcher.log(name) for name in launcher.jobs()) == ["a\n", "b\n"]
    assert launcher.run.name.startswith("stdin-")


def test_resume_runs_what_has_not_succeeded_and_the_lines_that_are_new(launcher: Launcher) -> None:
    launcher.file("commands.txt", "echo a\n[ -e there ]\necho c\n")
    assert launcher("run", "commands.txt", *CARDS).status == 1
    launcher.file("there", "")
    launcher.file("commands.txt", "# more\necho new\necho a\n[ -e there ]\n")
    result = launcher("resume")
    assert result.status == 0, result.err
    assert "1 done, 1 again, 1 new, 1 no longer in the file" in result.err
    assert attempts(launcher) == {"echo-new": 1, "echo-a": 1, "e-there": 2, "echo-c": 1}
    read = [launcher.run / "jobs.txt", launcher.run / "jobs.2.txt"]
    assert read[0].read_text() == "echo a\n[ -e there ]\necho c\n"
    assert read[1].read_bytes() == (launcher.path / "commands.txt").read_bytes()


def test_a_list_from_standard_input_goes_on_by_the_runs_own_copy(launcher: Launcher) -> None:
    assert launcher("run", "-", *CARDS, stdin="echo a\n[ -e there ]\n").status == 1
    assert (launcher.run / "jobs.txt").read_text() == "echo a\n[ -e there ]\n"
    launcher.file("there", "")
    (launcher.path / "elsewhere").mkdir()
    away = Launcher(launcher.path / "elsewhere", launcher.environ)
    assert away("retry", launcher.run).status == 0
    assert attempts(launcher) == {"echo-a": 1, "e-there": 2}


def test_commands_start_where_the_run_was_begun_whoever_goes_on_with_it(
    launcher: Launcher,
) -> None:
    launcher.file("lists/commands.txt", "test -e mark && test -e there\n")
    launcher.file("mark", "")
    assert launcher("run", "lists/commands.txt", *CARDS).status == 1
    launcher.file("there", "")
    away = Launcher(launcher.path / "lists", launcher.environ)
    assert away("resume", "--recorded", "--dry-run", launcher.run).status == 0
    assert away("resume", launcher.run).status == 0
    (launcher.path / "mark").unlink()
    launcher.file("lists/commands.txt", "test -e mark && test -e here\n")
    assert away("resume", launcher.run).status == 1
    launcher.file("mark", "")
    launcher.file("here", "")
    assert away("resume", "--recorded", launcher.run).status == 0


def test_continue_begins_a_list_and_then_goes_on_with_it(launcher: Launcher) -> None:
    launcher.file("commands.txt", "echo a\nfalse\n")
    assert launcher("run", "--continue", "commands.txt", *CARDS).status == 1
    launcher.file("commands.txt", "echo b\necho a\ntrue\n")
    assert launcher("run", "--continue", "commands.txt").status == 0
    assert attempts(launcher) == {"echo-a": 1, "false": 1, "echo-b": 1, "true": 1}
    assert len(list((launcher.path / "gpulaunch-runs").glob("commands-*"))) == 1


def test_a_killed_run_of_a_list_goes_on(launcher: Launcher) -> None:
    launcher.file("commands.txt", f"echo a\n{UNTIL_GO}\necho b\n")
    with launcher.begun("run", "commands.txt", *CARDS) as process:
        launcher.wait_for("attempt_started", 2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    launcher.file("go", "")
    refused = launcher("run", "commands.txt", *CARDS)
    assert (refused.status, "gpulaunch resume" in refused.err) == (5, True)
    assert launcher("resume").status == 0
    assert sorted(attempts(launcher).values()) == [1, 1, 2]


def test_defaults_are_kept_with_the_run_and_can_be_overridden_one_by_one(
    launcher: Launcher,
) -> None:
    launcher.file("commands.txt", 'echo "$A $B"; exit 3\n')
    words = ("--default", "env={A: 1, B: 2}", "--default", "retries=1", "--default", "timeout=1h")
    assert launcher("run", "commands.txt", *CARDS, *words).status == 1
    (job,) = launcher.jobs().values()
    assert [one["exit_code"] for one in job["attempts"]] == [3, 3]
    assert launcher.log(job["name"]) == "1 2\n"
    again = launcher("resume", "--default", "env={A: 5}")
    assert "as before: --default retries=1 --default timeout=1h" in again.err
    (job,) = launcher.jobs().values()
    assert len(job["attempts"]) == 4
    assert launcher.log(job["name"], 3) == "5 \n"


def test_a_wrong_default_is_told_before_anything_starts(launcher: Launcher) -> None:
    launcher.file("commands.txt", "echo a\n")
    for command in ("run", "check"):
        result = launcher(command, "commands.txt", *CARDS, "--default", "tmeout=2h")
        line = "--default tmeout=2h: there is no such field; did you mean timeout?"
        assert (result.status, result.err) == (2, f"gpulaunch: {line}\n")
    assert not (launcher.path / "gpulaunch-runs").exists()


# ── while it lives ──────────────────────────────────────────────────────────────────────────────


def test_an_edited_list_is_reloaded(launcher: Launcher) -> None:
    launcher.file("commands.txt", f"{UNTIL_GO}\necho a\necho b\n")
    with alive(launcher):
        launcher.file("commands.txt", f"echo new\n{UNTIL_GO}\necho a\n")
        result = launcher("reload")
        assert result.status == 0, result.err
        assert "1 job new: echo-new" in result.err
        assert "1 job withdrawn: echo-b" in result.err
        launcher.file("commands.txt", "echo a &\n")
        result = launcher("reload")
        assert "commands.txt:1:1: the last command runs in the background (&)" in result.err
        assert "nothing was changed: the run goes on as it was" in result.err
    assert (launcher.run / "jobs.2.txt").exists()
    found = states(launcher)
    assert (found["echo-new"], found["echo-a"]) == ("succeeded", "succeeded")
    assert found["echo-b"] == "cancelled"


def test_lines_that_are_appended_to_a_followed_list_are_jobs(launcher: Launcher) -> None:
    file = launcher.file("commands.txt", "echo a\n")
    words = ("run", "commands.txt", "--follow", "--settle", "0.1", *CARDS)
    with launcher.begun(*words) as process:
        launcher.wait_for("job_settled")
        with file.open("a") as more:
            more.write("echo b\necho c")
            more.flush()
            launcher.wait_for("job_settled", 3)
            more.write("\\\n d\n")
        wait_until(lambda: states(launcher).get("echo-c-d") == "succeeded", 60, "echo c d")
        assert launcher("finish").status == 0
        assert process.wait(60) == 0
    assert states(launcher) == dict.fromkeys(
        ("echo-a", "echo-b", "echo-c", "echo-c-d"), "succeeded"
    )


def test_a_list_is_added_to_a_live_run_from_a_file_or_standard_input(launcher: Launcher) -> None:
    launcher.file("commands.txt", f"{UNTIL_GO}\n")
    launcher.file("more/list.txt", "pwd\n")
    with alive(launcher):
        added = launcher("add", "more/list.txt")
        assert (added.status, added.out.rpartition("-")[0]) == (0, "pwd")
        added = launcher("add", "-", stdin="echo x\necho y\n")
        assert [line.rpartition("-")[0] for line in added.out.split()] == ["echo-x", "echo-y"]
        assert "is a job of this run already" in launcher("add", "more/list.txt").err
        wrong = launcher("add", "-", stdin="echo z &\n")
        assert wrong.status == 2
        assert "stdin:1:1: the last command runs in the background (&)" in wrong.err
    assert said(launcher)["pwd"] == f"{launcher.path}\n"
    assert said(launcher)["echo-y"] == "y\n"


# ── looked at ───────────────────────────────────────────────────────────────────────────────────


def test_check_and_a_dry_run_show_the_plan_and_start_nothing(launcher: Launcher) -> None:
    launcher.file("commands.txt", "echo a\necho b\n")
    for words in (("check", "commands.txt"), ("run", "--dry-run", "commands.txt")):
        result = launcher(*words, *CARDS)
        assert result.status == 0, result.err
        assert "commands  2 jobs" in result.out
        assert "$ echo b" in result.out
    assert "$ echo c" in launcher("check", "-", *CARDS, stdin="echo c").out
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_programs_that_are_nowhere_are_mistakes(launcher: Launcher) -> None:
    launcher.file("notes.txt", "Remember the milk\n")
    result = launcher("run", "notes.txt", *CARDS)
    assert result.status == 2
    assert "notes.txt:1:1: there is no program Remember in PATH" in result.err
    launcher.file("commands.txt", "echo a\npython3 gone.py\n")
    assert "commands.txt:2:9: " in launcher("check", "commands.txt", *CARDS).err
    ok = launcher("check", "-", *CARDS, stdin="Remember the milk # gpulaunch: ok\n")
    assert ok.status == 0, ok.err


def test_a_default_that_no_card_can_give_is_told_by_its_option(
    launcher: Launcher,
) -> None:
    launcher.file("commands.txt", "# one\necho a\n")
    result = launcher("run", "commands.txt", *CARDS, "--default", "gpus=2")
    assert "--default gpus=2: needs 2 cards, the run has 1 (job echo-a-" in result.err


# ── standard input as it may be ─────────────────────────────────────────────────────────────────


def test_standard_input_that_is_a_terminal_is_one_clear_line(launcher: Launcher) -> None:
    with terminal(launcher, "run", "-", *CARDS) as screen:
        assert screen.ended() == 2
        assert "-: standard input is a terminal; pipe a list into it" in screen.text


def test_empty_and_closed_standard_input_are_one_clear_line(launcher: Launcher) -> None:
    line = "gpulaunch: stdin:1:1: no commands: a list has one in each line that is no comment\n"
    assert launcher("run", "-", *CARDS).err == line
    closed = Launcher(
        launcher.path, launcher.environ, ["sh", "-c", 'exec "$@" <&-', "sh", *launcher.command]
    )
    result = closed("run", "-", *CARDS)
    assert (result.status, result.err) == (2, line)


def test_standard_input_without_an_end_is_refused(launcher: Launcher) -> None:
    endless = Launcher(
        launcher.path, launcher.environ, ["sh", "-c", 'yes | "$@"', "sh", *launcher.command]
    )
    result = endless("run", "-", *CARDS)
    assert result.err == "gpulaunch: stdin: more than 67,108,864 bytes, which a list may have\n"
    assert result.status == 2


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--continue", "--continue finds a file's last run"),
        ("--follow", "--follow looks at a file"),
    ],
)
def test_what_needs_a_file_is_refused_for_standard_input(
    launcher: Launcher, option: str, why: str
) -> None:
    result = launcher("run", "-", option, *CARDS, stdin="echo a\n")
    assert (result.status, why in result.err) == (2, True)
