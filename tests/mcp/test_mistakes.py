"""Whatever a client asks for wrongly is one clear answer, and the server lives on."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.mcp.arguments import MAX_TEXT, StatusArguments, WhyArguments, keep_text, understood
from tests.cli.launcher import Launcher
from tests.mcp.client import Talk, talk

BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n"
    for old, new in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=False)
)
MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("no-such-tool", {}, "there is no tool 'no-such-tool': there are check, run,"),
    ("check", {}, "expected job_file (a path) or text (the YAML itself): neither was given"),
    ("check", {"job_file": "jobs.yaml", "text": "jobs: []"}, "both were given"),
    ("check", {"job_file": "nowhere.yaml"}, "nowhere.yaml"),
    ("check", {"job_file": "."}, "directory"),
    ("check", {"job_file": "a\0b"}, "job_file: there is a NUL character in it"),
    ("check", {"job_file": "x" * 4097}, "job_file: Expected `str` of length <= 4096"),
    ("check", {"job_file": "binary"}, "binary"),
    ("check", {"text": BOMB}, "jobs-"),
    ("check", {"text": "[" * 50_000}, "jobs-"),
    ("check", {"text": "#" * (MAX_TEXT + 1)}, "text: Expected `str` of length <= 1048576"),
    ("check", {"job_file": "jobs.yaml", "simulate": 65}, "simulate: Expected `int` <= 64"),
    ("check", {"job_file": "jobs.yaml", "simulate": 10**40}, "simulate: "),
    ("check", {"job_file": "jobs.yaml", "gpus": "--help", "simulate": 2}, "--gpus"),
    ("check", {"job_file": "jobs.yaml", "engine": "cloud"}, "engine: Invalid enum value 'cloud'"),
    ("check", {"job_file": "jobs.yaml", "cwd": "elsewhere"}, "cwd: there is no directory "),
    (
        "run",
        {"job_file": "jobs.yaml", "simulate": "2"},
        "simulate: Expected `int | null`, got `str`",
    ),
    (
        "run",
        {"job_file": "jobs.yaml", "simulat": 2},
        "there is no argument 'simulat': did you mean",
    ),
    ("run", {"job_file": "jobs.yaml", "simulate": 2, "only": ["--help"]}, "--only --help: no job"),
    ("run", {"job_file": "jobs.yaml", "simulate": 2, "gpus": "--help"}, "--gpus"),
    ("run", {"job_file": "--help", "simulate": 2}, "--help"),
    ("run", {"job_file": "jobs.yaml", "new": True, "go_on": True}, "choose one"),
    ("add", {}, "expected one of command, job_file and text, found 0 of them"),
    ("add", {"command": ""}, "command: it is empty"),
    ("add", {"command": []}, "command: it is empty"),
    ("add", {"command": "true"}, "is alive"),
    ("add", {"text": "jobs: []", "gpus": 1}, "gpus is for a command"),
    ("status", {"run": "nothing-of-that-name"}, "nothing-of-that-name"),
    ("status", {"run": "done", "jobs": ["--all"]}, "no job of jobs is called --all"),
    ("status", {"wait": 1e9}, "wait: Expected `float` <= 55.0"),
    ("status", {"states": ["lost"]}, "states[0]: Invalid enum value 'lost'"),
    ("why", {}, "Object missing required field `job`"),
    ("why", {"run": "done", "job": "nobody"}, "no job of jobs is called nobody"),
    ("logs", {"run": "done", "attempt": 9}, "there is no log of attempt 9"),
    ("logs", {"run": "done", "failed": True}, "nothing failed"),
    ("retry", {"run": "done", "jobs": ["--help"]}, "no job of jobs is called --help"),
    ("cancel", {}, "name the jobs to cancel, or say all: true"),
    ("cancel", {"all": True, "jobs": ["a"]}, "name the jobs to cancel, or say all: true"),
    ("cancel", {"all": True}, "is alive"),
    ("gpus", {"card": 1}, "there is no argument 'card': it has none"),
]


def test_every_sort_of_wrong_call_is_told_what_is_wrong(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    (launcher.path / "binary").write_bytes(bytes(range(256)))
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--run-dir", "done").status == 0
    before = sorted(launcher.path.iterdir())

    async def conversation(to: Talk) -> None:
        for tool, arguments, said in MISTAKES:
            told = await to.refused(tool, **arguments)
            assert said in told, (tool, arguments, told)
            assert len(told) < 20_000
        assert (await to.tell("status", run="done"))["run"]["state"] == "succeeded"

    talk(launcher, conversation)
    assert sorted(launcher.path.iterdir()) == before


def test_a_bug_is_an_answer_too_and_its_traceback_is_not(launcher: Launcher) -> None:
    launcher.environ["PYTHONPATH"] = str(launcher.path)
    launcher.file(
        "sitecustomize.py",
        "import gpulaunch.run.settings as cards\n"
        "def broken(*_): raise ZeroDivisionError('by zero')\n"
        "cards.cards_here = broken\n",
    )

    async def conversation(to: Talk) -> None:
        told = await to.refused("gpus")
        assert told == "an error in gpulaunch itself (ZeroDivisionError): by zero"
        assert "neither was given" in await to.refused("check")

    talk(launcher, conversation)


def test_a_run_on_a_machine_without_cards_is_refused_with_what_to_do(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    launcher.environ["CUDA_VISIBLE_DEVICES"] = ""

    async def conversation(to: Talk) -> None:
        assert "--simulate" in await to.refused("run", job_file="jobs.yaml")

    talk(launcher, conversation)
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_a_text_that_cannot_be_written_as_a_whole_leaves_no_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(UsageError, match="File too large"):
            keep_text(tmp_path / "jobs.yaml", b"x" * 11)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [({"job": 3}, "job: Expected `str`, got `int`"), ({"job": "a", "jab": 1}, "did you mean job?")],
)
def test_arguments_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        understood(WhyArguments, given)
    assert said in str(refused.value)


def test_arguments_that_fit_are_taken() -> None:
    asked = understood(StatusArguments, {"states": ["failed"], "wait": 3})
    assert (asked.states, asked.wait, asked.limit) == (["failed"], 3, 50)


def test_a_client_that_says_nothing_is_told_nothing(launcher: Launcher) -> None:
    done = launcher("mcp", stdin="")
    assert (done.status, done.out, done.err) == (0, "", "")
