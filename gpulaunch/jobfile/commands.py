"""What is known of commands by their names: builtins, prefixes, daemons, and who sets the mask.

A daemon only gets a request to start something, which is then no descendant of the job and does not
end with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpulaunch.containers.options import DAEMONS

# fmt: off
PREFIXES = frozenset({
    "exec", "nohup", "setsid", "nice", "ionice", "env", "command", "stdbuf", "time", "sudo",
    "timeout", "numactl", "taskset", "chrt", "xargs", "unbuffer",
})
"""Programs that start the one that their arguments name."""
BUILTINS = frozenset({
    "!", ".", ":", "[", "[[", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd",
    "command", "compgen", "complete", "compopt", "continue", "coproc", "declare", "dirs", "disown",
    "do", "done", "echo", "elif", "else", "enable", "esac", "eval", "exec", "exit", "export",
    "false", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help", "history", "if", "in",
    "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read",
    "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend",
    "test", "then", "time", "times", "trap", "true", "type", "typeset", "ulimit", "umask",
    "unalias", "unset", "until", "wait", "while", "{", "}", "((",
})
# fmt: on
"""The words that bash runs itself: builtins and keywords."""
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


def use_container(image: str) -> str:
    """Return what to write in place of a command that starts a container, in words."""
    return f"write container: {image or 'IMAGE'} and run: COMMAND in the job file"


def sets_mask(typed: str) -> bool:
    name, equals, value = typed.partition("=")
    if name not in _MASKS or not equals:
        return False
    bare = value.strip("'\"")
    return not (_HARMLESS.fullmatch(bare) or MASK in bare or "GPULAUNCH_" in bare)


def daemon_of(program: str, arguments: Sequence[str]) -> tuple[str, str]:
    """Return the kind of daemon that a command asks to start processes, which are then not the
    job's, and how the command is called; ("", "") where they are its own.
    """
    if program in DAEMONS:
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
