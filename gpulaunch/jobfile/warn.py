"""Warns of commands for which gpulaunch cannot keep its promises; never refuses them.

Two things: programs that only ask a daemon to start something, which is then no descendant of the
job and does not end with it; and commands that set the cards' mask themselves. What else a job's
commands and scripts do with cards, and who is told, is the lint's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpulaunch.jobfile.commands import ShellCommand, Word, commands_in, is_plain

MASK = "CUDA_VISIBLE_DEVICES"
_MASKS = frozenset({MASK, f"APPTAINERENV_{MASK}", f"SINGULARITYENV_{MASK}"})
_HARMLESS = re.compile(r"-1|NoDevFiles|(\{\{[ \t]*(gpu_index|gpu_uuid)[ \t]*\}\},?)*")
_SETTERS = frozenset({"export", "declare", "typeset", "readonly", "local"})
_STARTS = frozenset({"run", "exec", "start", "restart", "up"})
_GROUPS = frozenset({"compose", "container"})
_SLURM = (
    "{} has Slurm start it, not this job: it does not end with the job, and runs on cards that"
    " Slurm chooses; run the program itself"
)
_QUEUE = (
    "{} has another batch system start it, not this job: it does not end with the job, and runs"
    " on cards of its own; run the program itself"
)
_TERMINAL = (
    "{} has its own server run it, not this job: the job ends at once while the work goes on"
    " outside; run the program itself"
)
_LATER = "{} has a daemon start it later: it does not end with the job, nor have its cards"
# fmt: off
_TMUX = frozenset({
    "new", "new-session", "neww", "new-window", "splitw", "split-window", "send", "send-keys",
    "respawnp", "respawn-pane", "respawnw", "respawn-window", "run", "run-shell",
})
# fmt: on
_CONTAINER = (
    "{} has a daemon start it, not this job: it does not end with the job and does not see the"
    " job's cards alone; use apptainer or podman, or give it --gpus device=$GPULAUNCH_GPU_UUID"
    " and stop it yourself"
)


@dataclass(frozen=True, slots=True)
class CommandWarning:
    """`word` is what to point at, for one of two `kind`s."""

    kind: str
    word: Word
    message: str


def findings(script: str, kind: str) -> Iterator[CommandWarning]:
    """Yield warnings in the order of the script's commands."""
    for command in commands_in(script, kind):
        yield from of_command(command, lambda word: script[word.start : word.end])


def of_command(command: ShellCommand, typed: Callable[[Word], str]) -> Iterator[CommandWarning]:
    """Yield the warnings of one command. `typed` is a word as in the text, with its quotes."""
    program = command.program
    said = _daemon(program, [word.text for word in command.arguments])
    if command.name and said:
        yield CommandWarning("daemon", command.name, said)
    for word in (*command.assignments, *(command.arguments if program in _SETTERS else ())):
        if _sets_mask(typed(word)):
            yield CommandWarning(
                "mask",
                word,
                f"{MASK} is set here, over the job's own: it may name another job's card;"
                " leave it out, the job's first card is cuda:0 (gpus: says how many)",
            )
    if program == "unset":
        for word in command.arguments:
            if is_plain(word) and word.text == MASK:
                yield CommandWarning(
                    "mask", word, f"{MASK} is removed here: the job sees other jobs' cards"
                )


def _sets_mask(typed: str) -> bool:
    name, equals, value = typed.partition("=")
    if name not in _MASKS or not equals:
        return False
    bare = value.strip("'\"")
    return not (_HARMLESS.fullmatch(bare) or MASK in bare or "GPULAUNCH_" in bare)


def _daemon(program: str, arguments: list[str]) -> str:
    """Return why the processes that a command starts are not the job's; else ""."""
    if program in ("docker", "nerdctl", "docker-compose"):
        verb = _verb(arguments)
        return _CONTAINER.format(f"{program} {verb}") if verb else ""
    if program in ("sbatch", "srun", "salloc"):
        return _SLURM.format(program)
    if program in ("qsub", "bsub"):
        return _QUEUE.format(program)
    if program == "systemd-run" and "--scope" not in arguments:
        return "systemd-run has systemd start it, not this job: it does not end with the job"
    if program in ("at", "batch", "tsp", "pueue") and (arguments or program == "batch"):
        return _LATER.format(program)
    if program == "tmux" and not _TMUX.isdisjoint(arguments):
        return _TERMINAL.format("tmux")
    if program == "screen" and arguments and arguments[0] not in ("-ls", "-list", "-v"):
        return _TERMINAL.format("screen")
    return ""


def _verb(arguments: list[str]) -> str:
    """Return the subcommand that starts processes; empty for others, like `docker ps`.

    The value of an option may stand before it: `docker -H tcp://x run`.
    """
    words = [word for word in arguments if not word.startswith("-")]
    depth = 1 + bool(arguments and arguments[0].startswith("-"))
    depth += 2 * (not _GROUPS.isdisjoint(words[:depth]))
    return next((word for word in words[:depth] if word in _STARTS), "")
