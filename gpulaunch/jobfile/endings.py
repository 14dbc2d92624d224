"""Finds what the exit status of a script says nothing of: work that goes on, and failures.

Only what is certain from the text is told. Where a script has a trap, or is not understood to its
end, nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from msgspec import Struct

from gpulaunch.jobfile.shell import ScriptPart, ShellCommand, Word, outline, parts_in, understood

# fmt: off
AT_ONCE = frozenset({
    "", "echo", "printf", "disown", "true", ":", "exit", "return", "date", "export", "set", "jobs",
    "done", "fi", "esac", "}",
})
"""Commands that wait for nothing and succeed; the empty one is an assignment."""

_TIDIES = frozenset({
    *AT_ONCE, "rm", "rmdir", "mkdir", "mv", "cp", "ln", "touch", "chmod", "kill", "pkill",
    "killall", "grep", "test", "[", "[[", "cd", "source", ".", "module", "ml", "ulimit", "unset",
    "wait", "cat", "ls", "sync", "which", "command", "type", "hash", "pushd", "popd", "let", "for",
    "while", "until", "if", "then", "else", "elif", "do", "case", "in", "select", "function", "{",
    "((", "nvidia-smi", "hostname", "pwd", "conda", "mamba", "micromamba", "pip", "git", "sleep",
    "shopt", "umask", "read", "local", "declare", "typeset", "readonly", "eval", "head", "tail",
    "df", "free", "env", "false", "sed", "awk", "tee", "ps", "pgrep", "mountpoint", "umount",
})
"""Commands that are hardly a job's work: whether they fail is not told."""

_PASSES_ON = frozenset({"tee", "cat", "tail", "head", "ts", "sed", "awk", "grep", "sort", "less"})
"""Ends of a pipeline that succeed whatever wrote into it."""

_BECOME_THEIR_LAST_COMMAND = frozenset({"bash", "zsh"})
"""Shells that execute the last command of a script in their own process."""

_FORKS = frozenset({"timeout", "time", "sudo", "xargs", "unbuffer"})
"""Programs that start a process for their command, so that a setsid there waits."""


# fmt: on
_ASKS = ("$?", "${?", "PIPESTATUS", "pipestatus")
"""What a script that asks for a status itself has."""


class Ending(Struct, frozen=True):
    """A command whose end, or whose failure, a script's status does not tell.

    `word` is its name; `why` it is so, and `mend`, what to write instead.
    """

    word: Word
    why: str
    mend: str


def left_running(script: str, dialect: str) -> Ending | None:
    """Return the command that still runs when the script ends; None if that is not certain."""
    if "&" not in script and "setsid" not in script:
        return None
    parts = list(parts_in(script, dialect))
    found = _in_background(parts, script) or _apart(parts, outline(script, dialect), dialect)
    if found is None or _has_trap(parts) or not understood(script, dialect):
        return None
    return found


def _in_background(parts: Sequence[ScriptPart], script: str) -> Ending | None:
    last = max((n for n, one in enumerate(parts) if one.end == "&"), default=-1)
    if last < 0 or parts[last].expanded or not _is_over(parts[last + 1 :]):
        return None
    named = [one.command.name for one in parts[: last + 1] if one.command.name]
    if not named or "`" in script[named[-1].end :]:
        return None  # a command in backticks may wait
    return Ending(
        named[-1],
        "the last command runs in the background (&), so that the job is over at once and gpulaunch"
        " kills the command",
        "leave the & out: jobs run side by side on as many cards as are free",
    )


def _apart(parts: Sequence[ScriptPart], code: str, dialect: str) -> Ending | None:
    """Return the last command if setsid starts it and does not wait for it.

    `code`: the outline of the script. setsid starts a process of its own only with --fork, or if
    setsid leads a process group, as it does where the shell becomes setsid.
    """
    at = max((n for n, one in enumerate(parts) if one.command.program), default=-1)
    name = parts[at].command.name if at >= 0 else None
    if name is None or parts[at].expanded:
        return None
    words = [one.text for one in (*parts[at].command.before, name)]
    if not starts_apart(words):
        return None
    plain = (
        dialect in _BECOME_THEIR_LAST_COMMAND
        and parts[at].end in ("", "\n", ";")
        and (at == 0 or parts[at - 1].end not in ("|", "|&"))
        and not {"<", ">"} & set(code[name.end :])
    )
    forks = any(one == "--fork" or _is_flag(one, "f") for one in words)
    return Ending(name, *APART) if plain or words[0] == "exec" or forks else None


APART = (
    "setsid does not wait for the command that it starts, so that the job is over at once and"
    " gpulaunch kills the command",
    "leave setsid out, or write setsid --wait",
)
"""Why a command that setsid starts is no job, and what to write."""


def starts_apart(words: Sequence[str]) -> bool:
    """Return True if a command begins with setsid, and does not wait for what that starts."""
    if "setsid" not in words[:3] or _FORKS & {*words[: words.index("setsid")]}:
        return False
    options = takewhile(lambda one: one.startswith("-"), words[words.index("setsid") + 1 :])
    return not any(one == "--wait" or (one[1:2] != "-" and "w" in one) for one in options)


def _has_trap(parts: Sequence[ScriptPart]) -> bool:
    return any(one.command.program == "trap" for one in parts)


def _is_over(rest: Sequence[ScriptPart]) -> bool:
    return all(one.command.program in AT_ONCE for one in rest)


def hidden(script: str, dialect: str, errexit: bool, pipefail: bool) -> Iterator[Ending]:
    """Yield the commands of a script whose failure its status hides.

    `errexit`, `pipefail`: whether the shell is started with these options.
    """
    parts = list(parts_in(script, dialect))
    options = {
        word.text for one in parts if one.command.program == "set" for word in one.command.arguments
    }
    sets = "errexit" in options or any(_is_flag(one, "e") for one in options)
    errexit = sets or (errexit and "+e" not in options)
    pipefail = pipefail or "pipefail" in options
    told = list(_by_wait(parts))
    if not any(name in script for name in _ASKS):
        told += [*_at_the_end(parts, errexit), *_in_pipeline(parts, pipefail)]
    if told and not _has_trap(parts) and understood(script, dialect):
        yield from told


def _is_flag(option: str, letter: str) -> bool:
    return option[:1] == "-" and option[:2] != "--" and letter in option


def _by_wait(parts: Sequence[ScriptPart]) -> Iterator[Ending]:
    """Yield a `wait` without arguments, if nothing else asks for what it waited for."""
    programs = {one.command.program for one in parts}
    waits = [one.command for one in parts if one.command.program == "wait"]
    if not waits or any(one.arguments for one in waits) or programs & {"kill", "pkill", "jobs"}:
        return
    first = next(n for n, one in enumerate(parts) if one.command.program == "wait")
    before = parts[:first]
    if not any(one.end == "&" for one in before) or not any(_works(p.command) for p in before):
        return
    assert waits[0].name is not None
    yield Ending(
        waits[0].name,
        "wait without arguments succeeds even if a command that it waited for has failed, so that"
        " the job would succeed too",
        "make a job of each command, or keep the number of each process and wait for each of them:"
        " a & one=$!; b & two=$!; wait $one && wait $two",
    )


def _at_the_end(parts: Sequence[ScriptPart], errexit: bool) -> Iterator[Ending]:
    """Yield the last command that does a job's work, if a command after it sets the status."""
    work = max((n for n, one in enumerate(parts) if _works(one.command)), default=-1)
    if work < 0 or parts[work].expanded or parts[work].end in ("&", "|", "|&"):
        return
    rest = parts[work + 1 :]
    if not _is_over(rest) or any(one.command.program in ("fi", "esac", "}") for one in rest):
        return
    after = [one.command for one in rest if one.command.program not in ("", "done")]
    if not after or any(_sets_status(one) for one in after[1:]) or _passes_on(after[0]):
        return
    name = parts[work].command.name
    assert name is not None
    program = parts[work].command.program
    if "||" in (parts[work].end, *(one.end for one in rest[:-1])):
        if any(_works(one.command) and one.end not in ("&&", "||") for one in parts[:work]):
            return  # the work is done; this command may fail
        why = f"the job succeeds even if {program} fails, because of the || after it"
        yield Ending(name, why, "leave the || and what follows it out, or end it with exit 1")
    elif not errexit and parts[work].end != "&&":
        why = (
            f"the job succeeds even if {program} fails, because the script goes on to"
            f" {after[0].program} and ends with its status"
        )
        yield Ending(name, why, "write set -e at the beginning of the script")


def _sets_status(command: ShellCommand) -> bool:
    """Return True for `exit 1` and `exit $status`."""
    ends = command.program in ("exit", "return")
    return ends and bool(command.arguments) and command.arguments[0].text != "0"


def _passes_on(command: ShellCommand) -> bool:
    """Return True for what ends a script with the status of the command before it, or with one."""
    bare = command.program in ("exit", "return") and not command.arguments
    return bare or _sets_status(command)


def _works(command: ShellCommand) -> bool:
    return bool(command.name) and command.program not in _TIDIES


def _in_pipeline(parts: Sequence[ScriptPart], pipefail: bool) -> Iterator[Ending]:
    """Yield the command whose output the last pipeline passes on, without pipefail."""
    end = max((n for n, one in enumerate(parts) if one.command.program in _PASSES_ON), default=0)
    first = end - 1
    if pipefail or first < 0 or parts[first].end not in ("|", "|&"):
        return
    command = parts[first].command
    if not _works(command) or parts[first].expanded or not _is_over(parts[end + 1 :]):
        return
    assert command.name is not None
    last = parts[end].command.program
    why = f"the job succeeds even if {command.program} fails, because {last} ends the pipeline"
    yield Ending(command.name, why, "write set -o pipefail at the beginning of the script")
