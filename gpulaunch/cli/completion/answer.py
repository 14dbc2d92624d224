"""Answers a shell that completes a command line."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete

from gpulaunch.cli.completion.typed import TypedLine, read_line, spelt
from gpulaunch.cli.completion.values import OPEN, asked_of_shell, values_for
from gpulaunch.cli.options import OfStr

ASKED = "_GPULAUNCH_COMPLETE"
ANSWER_TIMEOUT = 2.0
"""Seconds after which a person is not kept waiting for an answer: a run may lie on a disk that
does not answer."""
_UNPRINTABLE = re.compile(r"[\0-\x1f\x7f\ud800-\udfff]")


class _Values(OfStr):
    """Completes what may stand in the place of a parameter; converts nothing."""

    name = "value"

    def __init__(self, path: str, parameter: str, known: click.ParamType[Any]) -> None:
        self.path = path
        self.parameter = parameter
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        found = values_for(self.path, self.parameter, ctx, incomplete)
        return self.known.shell_complete(ctx, param, incomplete) if found is None else found


class _Completer(ShellComplete):
    name = "gpulaunch"
    source_template = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        return sys.argv[1:-1], sys.argv[-1]


def answer(cli: click.Group, environ: Mapping[str, str]) -> int:
    """Print what may stand at the cursor, or nothing; return 0. SIGALRM ends one that hangs."""
    # No handler: a disk that does not answer lets go of a process that dies, and of no other.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, ANSWER_TIMEOUT)
    with suppress(Exception, SystemExit):
        lines = list(_lines(cli, environ))
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    return 0


def _lines(cli: click.Group, environ: Mapping[str, str]) -> Iterator[str]:
    line = TypedLine(sys.argv[1:-1], sys.argv[-1] if sys.argv[1:] else "")
    shell = environ[ASKED]
    if shell == "bash":
        line = read_line(environ["_GPULAUNCH_LINE"], environ["_GPULAUNCH_BREAKS"])
    elif shell == "fish":
        line.current = read_line(f"gpulaunch {line.current}", "").current
    option = line.current.partition("=")[0] + "=" if _is_valued_option(line.current) else ""
    for item in _items(cli, line.words, line.current):
        if item.type in ("file", "dir", "commands"):
            yield item.type[0]
            continue
        if _UNPRINTABLE.search(item.value):
            continue
        value: str | None = item.value
        if shell == "bash":
            value = spelt(option + item.value, line)
        elif shell == "fish":
            value = option + item.value
        if value:
            yield "\t".join(filter(None, (_kind(item), value, _said(item, shell))))


def _is_valued_option(word: str) -> bool:
    return word.startswith("--") and "=" in word


def _kind(item: CompletionItem[str]) -> str:
    return "n" if item.type == OPEN else "p"


def _said(item: CompletionItem[str], shell: str) -> str:
    told = (item.help or "").partition("\n")[0]
    return "" if shell == "bash" else _UNPRINTABLE.sub(" ", told)


def _items(cli: click.Group, words: Sequence[str], current: str) -> list[CompletionItem[str]]:
    """Return what click knows of the place, and of values what `values` knows."""
    command: click.Command | None = cli
    context = click.Context(cli)
    path: list[str] = []
    for word in words:
        if not isinstance(command, click.Group):
            break
        if (found := command.get_command(context, word)) is not None:
            command = found
            path.append(word)
    for parameter in command.params if command is not None else ():
        parameter.type = _Values(" ".join(path), parameter.name or "", parameter.type)
    found_items = _Completer(cli, {}, "gpulaunch", ASKED).get_completions(list(words), current)
    return asked_of_shell(found_items)
