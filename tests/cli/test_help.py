"""`--help`: each command has an example, and none of them has rotted."""

from __future__ import annotations

from collections.abc import Sequence

import click
import pytest

from gpulaunch.cli import cli
from tests.docs.examples import commands_of, examples_in, examples_of

CONTEXTS = {context.command_path: context for context in commands_of(cli)}


def parsed(words: Sequence[str]) -> click.Context:
    """The context of the command that these words call, not run. Raises what click raises."""
    context, rest = click.Context(cli, info_name="gpulaunch"), list(words)
    while isinstance(context.command, click.Group) and rest:
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        if isinstance(command, click.Group) and rest:
            context = click.Context(command, info_name=name, parent=context)
        else:
            context = command.make_context(name, rest, parent=context)
            rest = []
    return context


@pytest.mark.parametrize("path", CONTEXTS)
def test_each_command_has_an_example_that_click_understands(path: str) -> None:
    called = [parsed(words).command_path for words in examples_of(CONTEXTS[path])]
    assert any(one == path or one.startswith(f"{path} ") for one in called), f"{path} -h: {called}"


def test_an_example_that_has_rotted_would_be_found() -> None:
    for wrong in (["run", "jobs.yaml", "--no-such-option"], ["runs"], ["check", "--to", "a.yaml"]):
        with pytest.raises(click.UsageError):
            parsed(wrong)
    assert parsed(["queue", "start", "--detach"]).command_path == "gpulaunch queue start"


def test_what_stands_around_a_call_is_none_of_its_words() -> None:
    text = (
        "\b\nls a*.fa | gpulaunch map 'x < y' > z   words\ngpulaunch wait && gpulaunch ps --json\n"
    )
    assert examples_in(text) == [["map", "x < y"], ["wait"], ["ps", "--json"]]
    assert examples_in("gpulaunch run") == []
