"""Options of sbatch as people write them: each made one word, and none that gpulaunch itself gives.

    -C a100 --mem 64G --exclusive ─▶ --constraint=a100 --mem=64G --exclusive

A word that is left over would be taken for the batch script, so there is none. Which options there
are, and what they may be set to, is for Slurm to say: it differs from version to version.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from gpulaunch.errors import UsageError
from gpulaunch.spec import values as v
from gpulaunch.spec.mistakes import Bad, Gather

SHORT = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "Q": "quiet",
    "S": "core-spec",
    "V": "version",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "h": "help",
    "i": "input",
    "k": "no-kill",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}
"""Letters of sbatch, 20.11 to 25.05 (its manual page)."""
_ALONE = frozenset("HOQVWhksv")
"""Those that take no value."""

_CARDS = "gpus: says how many cards"
_ONE = "a job is one task on one node"
_LOGS = "a job's log is in the run directory"
_AGAIN = "write retries:"
_NO_JOB = "sbatch would submit nothing, or not come back"
_CLUSTER = "a run is one cluster's, that of this machine"
OURS = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), _CARDS),
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "ntasks-per-core"), _ONE),
    **dict.fromkeys(("ntasks-per-socket", "ntasks-per-gpu"), _ONE),
    **dict.fromkeys(("output", "error", "open-mode"), _LOGS),
    **dict.fromkeys(("time", "time-min"), "write timeout:"),
    **dict.fromkeys(("requeue", "no-requeue"), _AGAIN),
    **dict.fromkeys(("dependency", "kill-on-invalid-dep"), "write needs: or after:"),
    **dict.fromkeys(("export", "export-file", "get-user-env"), "write env:"),
    **dict.fromkeys(("test-only", "wait", "help", "usage", "version"), _NO_JOB),
    **dict.fromkeys(("clusters", "cluster-constraint"), _CLUSTER),
    "array": "lists go as arrays by themselves; --gpus N or limits: say how many at once",
    "chdir": "write cwd:",
    "cpus-per-task": "write cpus:",
    "input": "a job reads no standard input",
    "job-name": "it is how gpulaunch finds its jobs again",
    "parsable": "gpulaunch asks for it",
    "signal": "write grace:",
    "wrap": "write run:",
}
"""Options that a job file's own fields, or gpulaunch, decide, and what to do instead."""

_OPTION = re.compile(r"--[a-z][a-z0-9-]*")
_TRES = re.compile(r"(^|[,/:])gpu([:=,]|$)")
_EXPECTED = "expected an option of sbatch like --constraint=a100"


def split(text: str) -> list[str]:
    """Words, as a shell would have them. Raises Bad."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Bad(f"{_EXPECTED}, found {v.found(text)}: {str(error).lower()}") from None


def options(given: Sequence[str]) -> list[str]:
    """Each option as one word, `--name` or `--name=value`; no value is looked at.

    Raises Bad with every word that is none, or that is gpulaunch's to give.
    """
    gather = Gather()
    found: list[str] = []
    last: list[str] | None = None  # what the word before came to, if this one may be its value
    for number, word in enumerate(given):
        if word.startswith("-"):
            made: list[str] = gather.take((number,), _made, word, [])
            found += made
            last = None if "=" in (made[-1] if made else word) else made
        elif last is None or word == ":":  # where the options of a second job would begin
            gather.take((number,), _no_option, word)
        else:
            if last:
                found[-1] += f"={word}"
            last = None
    gather.done()
    return found


def _made(word: str) -> list[str]:
    return [_long(word)] if word.startswith("--") else list(_short(word))


def _no_option(word: str) -> None:
    raise Bad(f"{_EXPECTED}, found {v.found(word)}")


def _long(word: str) -> str:
    name = word.partition("=")[0]
    if not _OPTION.fullmatch(name):
        raise Bad(f"{_EXPECTED}, found {v.found(word)}")
    _refuse_ours(name[2:])
    return word


def _short(word: str) -> Iterator[str]:
    """`-C`, `-Ca100`, or several without a value at once: `-Hk`."""
    for at, letter in enumerate(word[1:], start=2):
        if letter not in SHORT:
            raise Bad(f"{_EXPECTED}, found {v.found(word)}: write -{letter} in its long form")
        _refuse_ours(SHORT[letter])
        if letter not in _ALONE:
            yield f"--{SHORT[letter]}" + (f"={word[at:]}" if word[at:] else "")
            return
        yield f"--{SHORT[letter]}"
    if word == "-":
        raise Bad(f"{_EXPECTED}, found {v.found(word)}")


def _refuse_ours(name: str) -> None:
    """Slurm takes any beginning of a name that only one option has, so `--arr` is `--array`."""
    ours = name if name in OURS else next((known for known in OURS if known.startswith(name)), "")
    if ours:
        raise Bad(f"--{ours} cannot be set here: {OURS[ours]}")


def from_line(given: Sequence[str]) -> list[str]:
    """What `--slurm` gave, once or more often. Raises UsageError."""
    found = []
    for text in given:
        try:
            words = options(split(text))
            for word in words:
                check(word)
        except Bad as bad:
            raise UsageError("\n".join(f"--slurm: {one.message}" for one in bad.each())) from None
        found += words
    return found


def check(option: str) -> None:
    """Raises Bad for a value that no word may have, or that asks for cards."""
    name, _, value = option.partition("=")
    if not option.isprintable():
        raise Bad(f"expected an option on one line, found {v.found(option)}")
    if name.startswith(("--gres", "--tres")) and _TRES.search(value):
        raise Bad(f"{name} cannot ask for cards: {_CARDS}, engine.slurm.gres of which type")
