"""Which run a command means: here, above, elsewhere, by a job file; and what it never reaches."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpulaunch.cli import COMMANDS, cli
from gpulaunch.cli.habits import HABITS, instead_of_command
from gpulaunch.journal.rundir import RunDir
from tests.cli.launcher import COMMAND, Launcher
from tests.helpers import wait_until

LONG = "jobs: [{name: long, run: exec sleep 1000, grace: 0}]"
QUICK = "jobs: [{name: quick, run: 'true'}]"

BY_PLACE = ["resume", "retry", "status", "wait", "report", "top"]
TAKE_A_RUN = [
    ("resume", "{}"),
    ("retry", "{}"),
    ("status", "{}"),
    ("wait", "{}"),
    ("report", "{}"),
    ("logs", "-r", "{}"),
    ("cancel", "--all", "-r", "{}"),
    ("drain", "-r", "{}"),
]


def at(launcher: Launcher, name: str) -> Launcher:
    """The command in a directory below."""
    (launcher.path / name).mkdir(parents=True, exist_ok=True)
    return Launcher(launcher.path / name, launcher.environ)


def begun(launcher: Launcher) -> None:
    launcher.wait_for("attempt_started")


@pytest.mark.parametrize(
    "words", [("cancel", "--all"), ("cancel", "long"), ("drain",), ("drain", "--now")]
)
@pytest.mark.parametrize("ended", [False, True])
def test_what_ends_something_never_reaches_another_directory_s_run(
    launcher: Launcher, words: tuple[str, ...], ended: bool
) -> None:
    mine, other = at(launcher, "mine"), at(launcher, "other")
    other.file("jobs.yaml", LONG)
    if ended:
        mine.file("jobs.yaml", QUICK)
        assert mine("run", "jobs.yaml", "--simulate", "1").status == 0
    with other.begun("run", "jobs.yaml", "--simulate", "1"):
        begun(other)
        refused = mine(*words)
        assert refused.status == 2
        assert str(other.run) in refused.err
        assert refused.err.count("\n") == 1
        assert other.states()["long"] == "running"
        assert mine(*words, "-r", other.run).status == 0


def test_what_is_advised_of_a_live_run_does_it_from_anywhere(launcher: Launcher) -> None:
    mine, other = at(launcher, "mine"), at(launcher, "other")
    other.file("jobs.yaml", LONG)
    with other.begun("run", "jobs.yaml", "--simulate", "1"):
        begun(other)
        refused = mine("resume", other.run)
        assert refused.status == 5
        follow, end = re.findall(r"gpulaunch ([^,\n]+)", refused.err)
        follow = follow.split(" ")
        assert follow[0] == "wait"
        assert mine("status", *follow[1:]).status == 0
        assert mine(*end.split()).status == 0


@pytest.mark.parametrize("word", ["jobs.yaml", "long", "jobs"])
def test_retry_without_a_run_here_names_those_elsewhere_and_leaves_them(
    launcher: Launcher, word: str
) -> None:
    mine, other = at(launcher, "mine"), at(launcher, "other")
    for one in (mine, other):
        one.file("jobs.yaml", LONG)
    with other.begun("run", "jobs.yaml", "--simulate", "1"):
        begun(other)
        refused = mine("retry", word)
        assert (refused.status, str(other.run) in refused.err) == (2, True), refused.err
        assert "status --all" not in refused.err


def test_a_run_of_a_parent_is_reached_from_below_and_named(launcher: Launcher) -> None:
    below = at(launcher, "a/b")
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1"):
        begun(launcher)
        shown = below("status")
        assert (shown.status, str(launcher.run) in shown.err) == (0, True)
        assert below("cancel", "--all").status == 0


def test_a_run_in_a_directory_of_its_own_is_reached_where_it_was_begun(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "--run-dir", "its/own") as process:
        wait_until(lambda: bool(launcher.events("attempt_started", launcher.path / "its/own")))
        assert "its/own" in launcher("status").out
        assert at(launcher, "its")("cancel", "--all").status == 0
        assert process.wait(60) == 1


def test_a_live_run_of_the_file_in_another_directory_is_named_and_holds_nothing_up(
    launcher: Launcher,
) -> None:
    mine, other = at(launcher, "mine"), at(launcher, "other")
    file = launcher.file("jobs.yaml", "jobs: [{name: j, run: '[ $PWD_AT = mine ] || sleep 1000'}]")
    other.environ, mine.environ = (
        {**launcher.environ, "PWD_AT": name} for name in ("other", "mine")
    )
    with other.begun("run", file, "--simulate", "1"):
        begun(other)
        done = mine("run", file, "--simulate", "1")
        assert done.status == 0, done.err
        assert f"a run of this file is alive already: {other.run}; another one starts" in done.err
        assert "alive already" not in mine("run", file, "--simulate", "1", "--new").err
    assert "alive already" not in mine("run", file, "--simulate", "1").err


def test_of_two_live_runs_here_one_has_to_be_named(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1"):
        begun(launcher)
        first = launcher.run
        with launcher.begun("run", "--new", "jobs.yaml", "--simulate", "1"):
            wait_until(lambda: launcher.run != first)
            begun(launcher)
            refused = launcher("cancel", "--all")
            assert refused.status == 2
            assert "2 runs are alive here" in refused.err
            assert str(first) in refused.err
            assert launcher("cancel", "-r", first, "--all").status == 0
            assert launcher("cancel", "-r", launcher.run, "--all").status == 0


@pytest.mark.parametrize("words", TAKE_A_RUN)
def test_a_job_file_is_its_newest_run_wherever_a_run_is_asked_for(
    launcher: Launcher, words: tuple[str, ...]
) -> None:
    launcher.file("jobs.yaml", QUICK)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    again = launcher(*(word.format("jobs.yaml") for word in words))
    assert "Traceback" not in again.err
    over = words[0] in ("cancel", "drain")
    assert again.status == (2 if over else 0), again.err
    assert not over or f"{launcher.run} is not alive" in again.err


@pytest.mark.parametrize("words", TAKE_A_RUN)
def test_what_is_no_run_is_one_line_wherever_a_run_is_asked_for(
    launcher: Launcher, words: tuple[str, ...]
) -> None:
    launcher.file("notes.txt", "no job file")
    for typed in ("notes.txt", "x" * 5000, "notes.txt/events.jsonl"):
        refused = launcher(*(word.format(typed) for word in words))
        assert refused.status == 2
        assert refused.err.count("\n") == 1
        assert "Traceback" not in refused.err


def test_a_directory_given_for_a_job_file_is_one_line(launcher: Launcher) -> None:
    for words in (("run",), ("check",)):
        refused = launcher(*words, ".")
        assert refused.status == 2
        assert refused.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", ["status", "run jobs.yaml", "retry", "cancel --all", "ps", "map -- true ::: 1", "logs"]
)
def test_a_deleted_working_directory_is_said(tmp_path: Path, words: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", f'cd "$0" && rmdir "$0" && exec "$@" {words}', gone, *COMMAND],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    if words == "ps":
        assert done.returncode == 0
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert "the working directory was deleted" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_run_is_looked_at_from_a_deleted_working_directory(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", QUICK)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    gone = at(launcher, "gone")
    script = 'mkdir -p "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    for words in (("status",), ("logs", "-r"), ("report",), ("wait",)):
        done = subprocess.run(
            ["sh", "-c", script, gone.path, *COMMAND, *words, str(launcher.run)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr


# ── Runs in which nothing was started ───────────────────────────────────────────────────────────


def test_a_wait_that_ran_out_blocks_no_later_run(launcher: Launcher) -> None:
    launcher.environ["GPULAUNCH_SIM_POOL"] = f"pool-{launcher.path}"
    holder = at(launcher, "holder")
    holder.file("long.yaml", LONG)
    launcher.file("jobs.yaml", QUICK)
    words = ("run", "jobs.yaml", "--simulate", "1", "--wait", "0.2s")
    with holder.begun("run", "long.yaml", "--simulate", "1"):
        begun(holder)
        for _ in range(2):
            refused = launcher(*words)
            assert refused.status == 3
            assert "nothing was started" in refused.err
        assert not (launcher.path / "gpulaunch-runs" / "latest").is_symlink()
        none = launcher("status")
        assert none.status == 2
        assert "nothing was started in" in none.err
    assert launcher(*words).status == 0
    assert launcher.states()["quick"] == "succeeded"
    assert launcher("status").status == 0


def test_a_run_that_was_stopped_before_its_first_start_blocks_no_later_one(
    launcher: Launcher,
) -> None:
    launcher.environ["GPULAUNCH_SIM_POOL"] = f"pool-{launcher.path}"
    holder = at(launcher, "holder")
    holder.file("long.yaml", LONG)
    launcher.file("jobs.yaml", QUICK)
    runs = launcher.path / "gpulaunch-runs"
    with holder.begun("run", "long.yaml", "--simulate", "1"):
        begun(holder)
        with launcher.begun("run", "jobs.yaml", "--simulate", "1") as waiting:
            events = wait_until(lambda: list(runs.glob("*/events.jsonl")))
            launcher.wait_for("job_added", run=events[0].parent)
            seen = launcher("status")
            assert (seen.status, str(events[0].parent.name) in seen.out) == (0, True)
            refused = launcher("run", "jobs.yaml", "--simulate", "1")
            assert refused.status == 5, "it is alive"
            assert refused.err.startswith("gpulaunch: a run of this file is alive")
            assert "start afresh: gpulaunch run --new jobs.yaml --simulate 1\n" in refused.err
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(60) == 130
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("run", "jobs.yaml"),
        ("run", "jobs.yaml", "--detach"),
        ("run", "jobs.yaml", "--continue"),
        ("map", "true", ":::", "quick"),
    ],
    ids=["run", "detach", "continue", "map"],
)
def test_a_run_takes_the_directory_of_one_in_which_nothing_was_started(
    launcher: Launcher, words: tuple[str, ...]
) -> None:
    launcher.environ["GPULAUNCH_SIM_POOL"] = f"pool-{launcher.path}"
    holder = at(launcher, "holder")
    holder.file("long.yaml", LONG)
    launcher.file("jobs.yaml", "jobs: [{name: other, run: 'true'}]")
    kept = launcher.file("D/kept.txt", "the user's")
    waits, where = ("--simulate", "1", "--wait", "0.2s"), launcher.path / "D"
    with holder.begun("run", "long.yaml", "--simulate", "1"):
        begun(holder)
        for _ in range(2):
            assert launcher("run", "jobs.yaml", *waits, "--run-dir", "D").status == 3
        assert launcher("resume", "D", "--wait", "0.2s").status == 3
    launcher.file("jobs.yaml", QUICK)
    done = launcher(words[0], "--simulate", "1", "--run-dir", "D", *words[1:])
    assert done.status == 0, done.err
    assert launcher("wait", "D").status == 0
    assert launcher.states(where) == {"quick": "succeeded"}
    assert "quick" in RunDir(where).newest_jobs_file().read_text()
    assert kept.exists()
    taken = launcher(words[0], "--simulate", "1", "--run-dir", "D", *words[1:])
    assert taken.status == (0 if "--continue" in words else 2), taken.err


def test_a_run_that_waits_for_its_first_card_keeps_its_directory(launcher: Launcher) -> None:
    launcher.environ["GPULAUNCH_SIM_POOL"] = f"pool-{launcher.path}"
    holder = at(launcher, "holder")
    holder.file("long.yaml", LONG)
    launcher.file("jobs.yaml", QUICK)
    words = ("run", "jobs.yaml", "--simulate", "1", "--run-dir", "D")
    with holder.begun("run", "long.yaml", "--simulate", "1"):
        begun(holder)
        with launcher.begun(*words):
            launcher.wait_for("job_added", run=launcher.path / "D")
            refused = launcher(*words)
            assert (refused.status, "already holds a run" in refused.err) == (2, True)
            assert launcher.events("job_added", run=launcher.path / "D")


# ── Which cards ─────────────────────────────────────────────────────────────────────────────────


def test_a_number_of_cards_to_drain_is_how_many_idle_ones_first(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", "--simulate", "3"):
        begun(launcher)
        done = launcher("drain", "--gpus", "2")
        assert done.status == 0, done.err
        assert "2 of 3 simulated cards, any, simulated GPUs 1, 2, of " in done.err
        done = launcher("drain", "--gpus", "0")
        assert (done.status, done.err.count("card 0 is `0,`")) == (2, 1)
        assert launcher("drain", "--gpus", "2").status == 2, "one alone is left"
        assert "GPU 1" in launcher("drain", "--gpus", "1", "--off").err
        assert "GPU 2" in launcher("drain", "--gpus", "2,", "--off").err
        gpus = [one["gpu"] for one in launcher.events("gpu_drained")]
        assert gpus == ["SIM-1", "SIM-2", "SIM-1", "SIM-2"]


# ── Words of other tools ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("kill", "gpulaunch cancel"),
        ("stop", "gpulaunch cancel"),
        ("submit", "gpulaunch run"),
        ("list", "gpulaunch status"),
        ("ls", "gpulaunch ps"),
        ("gqueue", "gpulaunch status"),
        ("rerun", "gpulaunch retry"),
        ("pause", "gpulaunch drain"),
        ("rm", "gpulaunch clean"),
        ("prune", "gpulaunch clean --runs"),
        ("start", "gpulaunch run"),
        ("STOP", "gpulaunch cancel"),
        ("runn", "did you mean 'run'?"),
        ("rnu", "did you mean 'run'?"),
        ("tpo", "did you mean 'top'?"),
        ("qwertz", "gpulaunch -h"),
    ],
)
def test_a_word_of_another_tool_is_answered_with_ours(word: str, ours: str) -> None:
    done = CliRunner().invoke(cli, [word])
    assert done.exit_code == 2
    assert ours in done.output


@pytest.mark.parametrize("word", ["close", "login", "timeit", "sweepstakes"])
def test_of_a_word_that_is_near_to_no_command_nothing_is_guessed(word: str) -> None:
    assert instead_of_command(word, list(COMMANDS)) == "; `gpulaunch -h` lists them"


def test_every_habit_leads_to_commands_that_there_are() -> None:
    assert not HABITS.keys() & COMMANDS.keys(), "a command needs no line of its own"
    named = {word for text in HABITS.values() for word in re.findall(r"gpulaunch ([a-z]+)", text)}
    assert named - {"works"} <= COMMANDS.keys()


@pytest.mark.parametrize("command", [name for name in BY_PLACE if name != "top"])
def test_a_run_is_named_by_its_place_or_by_r_with_every_command(
    launcher: Launcher, command: str
) -> None:
    launcher.file("jobs.yaml", QUICK)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    by_place, by_option = launcher(command, "jobs.yaml"), launcher(command, "-r", "jobs.yaml")
    assert (by_option.status, by_option.out) == (0, by_place.out)


@pytest.mark.parametrize("command", ["resume", "wait", "report", "top"])
def test_two_names_for_one_run_are_refused(launcher: Launcher, command: str) -> None:
    refused = launcher(command, "one", "-r", "other")
    assert refused.status == 2
    assert "two runs are named, 'one' and (-r) 'other'" in refused.err


@pytest.mark.parametrize("command", BY_PLACE)
def test_the_help_of_every_command_with_a_run_has_r(command: str) -> None:
    assert "-r, --run RUN" in CliRunner().invoke(cli, [command, "--help"]).output
