"""Options that a command does not have: ours for what other tools call so, and no wrong guess."""

from __future__ import annotations

import re
from pkgutil import resolve_name

import click
import pytest

from gpulaunch.cli import COMMANDS, habits
from gpulaunch.cli.habits import ALL, MEANT, instead_before_a_command
from gpulaunch.cli.options import instead_of_option
from tests.cli.launcher import Launcher

OF_SBATCH = {"--partition", "--mem"}
OF_PROGRAMS = {"--version", "--gpus"}


def context(name: str) -> click.Context:
    command: click.Command = resolve_name(f"gpulaunch.cli.{COMMANDS[name][0]}")
    return click.Context(command, info_name=name)


def options(name: str) -> set[str]:
    found = context(name).command.params
    return {word for param in found for word in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize(
    ("command", "option", "ours"),
    [
        ("run", "--workers", "--per-gpu N"),
        ("run", "--jobs", "--gpus N is how many cards"),
        ("run", "-j", "--gpus N is how many cards"),
        ("run", "--parallel", "--per-gpu N"),
        ("run", "--resume", "--continue goes on"),
        ("run", "--joblog", "joblog.tsv"),
        ("run", "--bar", "gpulaunch top"),
        ("run", "--array", "foreach:"),
        ("run", "--gres", "gpus: in the job file"),
        ("run", "--time", "timeout: in the job file"),
        ("run", "--partition", "--slurm --partition=gpu"),
        ("run", "--devices", "--gpus 0,2 is which"),
        ("run", "--follow", "gpulaunch logs -f"),
        ("run", "-n", "--dry-run"),
        ("run", "--force", "--new"),
        ("run", "--env-file", "env_file: is a field of a job"),
        ("run", "--timeout", "--default timeout=2h"),
        ("run", "--outputs", "or --default outputs=VALUE for all of them"),
        ("run", "--arg-file", "gpulaunch run commands.txt"),
        ("map", "-j", "--per-gpu N"),
        ("map", "--resume", "gpulaunch resume goes on"),
        ("map", "--colsep", "csv"),
        ("retry", "--only", "gpulaunch retry 'fold-*'"),
        ("exec", "-j", "gpulaunch map"),
        ("exec", "--timeout", "timeout 2h CMD"),
        ("logs", "--tail", "-n N"),
        ("status", "--follow", "gpulaunch top"),
        ("cancel", "-9", "SIGKILL"),
        ("wait", "--timeout", "timeout 1h gpulaunch wait"),
        ("check", "--dry-run", "check starts nothing"),
        ("gpus", "-l", "watch gpulaunch gpus"),
        ("doctor", "--verbose", "there is nothing more to say"),
    ],
)
def test_an_option_of_another_tool_gets_ours(command: str, option: str, ours: str) -> None:
    assert ours in instead_of_option(option, context(command))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--frobnicate", "--checkpoint", "--bucket", "-Z"])
def test_of_an_option_that_nothing_is_known_of_nothing_is_guessed(
    command: str, option: str
) -> None:
    said = instead_of_option(option, context(command))
    assert said == f"; gpulaunch {command} -h lists its options"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_slip_of_the_fingers_is_known(command: str) -> None:
    for option in options(command):
        if option.startswith("--") and len(option) > 6:
            slip = option[:-2] + option[-1] + option[-2]
            if slip != option:
                said = habits.instead_of_option(slip, command, options(command), ())
                assert f"did you mean {option}" in said, slip


def test_the_beginning_of_one_option_alone_is_known() -> None:
    assert "did you mean --simulate?" in instead_of_option("--simul", context("run"))
    assert "lists its options" in instead_of_option("--no-", context("run"))


def test_every_text_names_options_that_there_are() -> None:
    for commands, meant in MEANT.items():
        for command in COMMANDS if commands == ALL else commands.split():
            own = options(command)
            for text in meant.values():
                named = {name for name in re.findall(r"gpulaunch (\w+)", text) if name in COMMANDS}
                there = own.union(OF_SBATCH, OF_PROGRAMS, *(options(name) for name in named))
                assert set(re.findall(r"(?<!\w)--[a-z][a-z-]+", text)) <= there | {"--json"}, text


def test_no_text_stands_for_an_option_that_all_its_commands_have() -> None:
    for commands, meant in MEANT.items():
        names = list(COMMANDS) if commands == ALL else commands.split()
        shared = set[str].intersection(*(options(name) for name in names))
        assert not shared & {word for words in meant for word in words.split()}


def test_an_option_before_the_command_is_told_where_it_stands(launcher: Launcher) -> None:
    assert "gpulaunch --version" in instead_before_a_command("-V")
    result = launcher("--gpus", "2", "run", "jobs.yaml")
    assert result.status == 2
    assert "there is no option --gpus: options stand behind a command" in result.err


def test_a_wrong_option_of_exec_never_becomes_its_command(launcher: Launcher) -> None:
    for argv in (["-j", "4", "--", "true"], ["--wiat", "3", "--", "true"], ["-j4", "true"]):
        result = launcher("exec", "--simulate", "1", *argv)
        assert result.status == 125, result.err
        assert "there is no option " in result.err
    assert "did you mean --wait?" in launcher("exec", "--wiat", "3", "--", "true").err
    assert launcher("exec", "--simulate", "1", "--", "-j").status == 127


def test_a_wrong_option_of_map_never_becomes_its_command(launcher: Launcher) -> None:
    result = launcher("map", "--retires", "3", "--simulate", "1", "true", ":::", "a")
    assert (result.status, "did you mean --retries?" in result.err) == (2, True)
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_no_command_at_all_is_a_mistake_that_shows_them(launcher: Launcher) -> None:
    result = launcher()
    assert (result.status, result.out) == (2, "")
    assert "Usage: gpulaunch" in result.err
    assert "  resume " in result.err
