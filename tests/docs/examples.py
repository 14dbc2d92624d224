"""The examples of help texts: the lines of verbatim paragraphs that call gpulaunch."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator

import click

_COMMENT = re.compile(r" {3,}.*")
_CALL = re.compile(r"(?:^|[|&;] *)gpulaunch ")
_ENDS = frozenset({"|", "&&", "||", ";", "&"})


def commands_of(root: click.Group) -> Iterator[click.Context]:
    """Every command, the groups as well, with its context."""
    yield from _below(click.Context(root, info_name="gpulaunch"))


def _below(context: click.Context) -> Iterator[click.Context]:
    yield context
    group = context.command
    for name in group.list_commands(context) if isinstance(group, click.Group) else ():
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        assert command is not None
        yield from _below(click.Context(command, info_name=name, parent=context))


def examples_of(context: click.Context) -> list[list[str]]:
    """The words of each call of gpulaunch in a command's help text."""
    paragraphs = inspect.cleandoc(context.command.help or "").split("\n\n")
    return [words for paragraph in paragraphs for words in examples_in(paragraph)]


def examples_in(paragraph: str) -> list[list[str]]:
    """The words of each call of gpulaunch in a paragraph; none in one that is no verbatim one.

    What stands behind three spaces is a comment.
    """
    if not paragraph.startswith("\b"):
        return []
    lines = [line for line in paragraph.splitlines()[1:] if _CALL.search(line)]
    return [call for line in lines for call in _calls(line)]


def _calls(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(_COMMENT.sub("", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in _ENDS:
            words.append(word)
            continue
        if words[:1] == ["gpulaunch"]:
            redirected = words.index(">") if ">" in words else len(words)
            yield words[1:redirected]
        words = []
