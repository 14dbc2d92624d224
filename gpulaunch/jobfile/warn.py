"""Warns of commands for which gpulaunch cannot keep its promises; never refuses them.

Two things: programs that only ask a daemon to start something, which is then no descendant of the
job and does not end with it; and commands that set the cards' mask themselves. What else a job's
commands and scripts do with cards, and who is told, is the lint's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpulaunch.jobfile.commands import ShellCommand, Word

MASK = "CUDA_VISIBLE_DEVICES"
_MASKS = frozenset({MASK, f"APPTAINERENV_{MASK}", f"SINGULARITYENV_{MASK}"})
_HARMLESS = re.compile(r"-1|NoDevFiles|(\{\{[ \t]*(gpu_index|gpu_uuid)[ \t]*\}\},?)*")
SETTERS = frozenset({"export", "declare", "typeset", "readonly", "local"})
"""Builtins whose arguments are assignments."""
_STARTS = frozenset({"run", "exec", "start", "restart", "up"})
_GROUPS = frozenset({"compose", "container"})
# fmt: off
_TMUX = frozenset({
    "new", "new-session", "neww", "new-window", "splitw", "split-window", "send", "send-keys",
    "respawnp", "respawn-pane", "respawnw", "respawn-window", "run", "run-shell",
})
# fmt: on
_WORDS = {
    "slurm": "has Slurm start it, not this job: it does not end with the job, and runs on cards"
    " that Slurm chooses; run the program itself",
    "queue": "has another batch system start it, not this job: it does not end with the job, and"
    " runs on cards of its own; run the program itself",
    "terminal": "has its own server run it, not this job: the job ends at once while the work goes"
    " on outside; run the program itself",
    "later": "has a daemon start it later: it does not end with the job, nor have its cards",
    "systemd": "has systemd start it, not this job: it does not end with the job",
    "container": "has a daemon start it, not this job: it does not end with the job and does not"
    " see the job's cards alone; use apptainer or podman, or give it"
    " --gpus device=$GPULAUNCH_GPU_UUID and stop it yourself",
}
"""What each kind of daemon does, behind the name of the command that asks it."""


class CommandWarning(NamedTuple):
    """`word` is what to point at. `kind`: daemon, in which case there is a message, or mask."""

    kind: str
    word: Word
    message: str = ""


def of_command(command: ShellCommand, typed: Callable[[Word], str]) -> Iterator[CommandWarning]:
    """Yield the warnings of one command. `typed` is a word as in the text, with its quotes."""
    program = command.program
    kind, said = daemon_of(program, [word.text for word in command.arguments])
    if command.name and kind:
        yield CommandWarning("daemon", command.name, f"{said} {_WORDS[kind]}")
    for word in (*command.assignments, *(command.arguments if program in SETTERS else ())):
        if _sets_mask(typed(word)):
            yield CommandWarning("mask", word)
    for word in command.arguments if program == "unset" else ():
        if word.text == MASK:
            yield CommandWarning("mask", word)


def _sets_mask(typed: str) -> bool:
    name, equals, value = typed.partition("=")
    if name not in _MASKS or not equals:
        return False
    bare = value.strip("'\"")
    return not (_HARMLESS.fullmatch(bare) or MASK in bare or "GPULAUNCH_" in bare)


def daemon_of(program: str, arguments: Sequence[str]) -> tuple[str, str]:
    """Return the kind of daemon that a command asks to start processes, which are then not the
    job's, and how the command is called; ("", "") where they are its own.
    """
    if program in ("docker", "nerdctl", "docker-compose"):
        verb = _verb(arguments)
        return ("container", f"{program} {verb}") if verb else ("", "")
    asks = {
        "slurm": program in ("sbatch", "srun", "salloc"),
        "queue": program in ("qsub", "bsub"),
        "systemd": program == "systemd-run" and "--scope" not in arguments,
        "later": program == "batch" or (program in ("at", "tsp", "pueue") and bool(arguments)),
        "terminal": (program == "tmux" and not _TMUX.isdisjoint(arguments))
        or (program == "screen" and arguments[:1] not in ([], ["-ls"], ["-list"], ["-v"])),
    }
    kind = next((kind for kind, asked in asks.items() if asked), "")
    return kind, program if kind else ""


def _verb(arguments: Sequence[str]) -> str:
    """Return the subcommand that starts processes; empty for others, like `docker ps`.

    The value of an option may stand before it: `docker -H tcp://x run`.
    """
    words = [word for word in arguments if not word.startswith("-")]
    depth = 1 + bool(arguments and arguments[0].startswith("-"))
    depth += 2 * (not _GROUPS.isdisjoint(words[:depth]))
    return next((word for word in words[:depth] if word in _STARTS), "")
