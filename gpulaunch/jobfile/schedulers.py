"""Reads `engine:`, the settings of jobs for another engine than this machine, as typed.

    engine: {slurm: {partition: gpu, account: lab, qos: long, gres: a100, extra: [--mem=64G]}}
    options of sbatch:   -C a100 --mem 64G --exclusive ─▶ --constraint=a100 --mem=64G --exclusive

The same beside `jobs:`, in `defaults:` and in a job; what is nearer to the job wins, key by key.
It says nothing about which engine runs: that is `--engine`. Nor is it part of what would be run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from gpulaunch.base.errors import UsageError
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import keys, scalar
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.placeholders import compile_raw, names_in
from gpulaunch.jobfile.suggest import did_you_mean
from gpulaunch.jobfile.tree import Plain

# ── Options of sbatch ─────────────────────────────────────────────────────────────────────────────

_SHORT = """
A=account B=extra-node-info C=constraint D=chdir F=nodefile G=gpus H=hold J=job-name
L=licenses M=clusters N=nodes O=overcommit Q=quiet S=core-spec V=version W=wait a=array
b=begin c=cpus-per-task d=dependency e=error h=help i=input k=no-kill m=distribution
n=ntasks o=output p=partition q=qos s=oversubscribe t=time v=verbose w=nodelist x=exclude
"""
SHORT = dict(pair.split("=") for pair in _SHORT.split())
"""Short options of sbatch, 20.11 to 25.05 (its manual page)."""
_ALONE = frozenset("HOQVWhksv")
"""Short options that take no value."""
FLAGS = frozenset(
    {
        *("--contiguous", "--exclusive", "--external", "--hold", "--ignore-pbs", "--nice"),
        *("--no-kill", "--oom-kill-step", "--overcommit", "--oversubscribe", "--propagate"),
        *("--quiet", "--reboot", "--resv-ports", "--share", "--spread-job", "--stepmgr"),
        *("--use-min-nodes", "--verbose"),
    }
)
"""Options that may stand without a value. Any other would take the next word as its value."""

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
    "begin": "write not_before:",
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
_EXPECTED_OPTION = "expected an option of sbatch like --constraint=a100"


def split(text: str) -> list[str]:
    """Return a value's words, split as by a shell. Raises FieldError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise FieldError(
            f"{_EXPECTED_OPTION}, found {v.found(text)}: {str(error).lower()}"
        ) from None


def options(given: Sequence[str]) -> list[str]:
    """Return each option as one word, `--name` or `--name=value`; does not check values.

    A word that is left over would be taken for the batch script, so there is none. Which options
    there are, and what they may be set to, is for Slurm to say: it differs from version to version.
    Raises FieldError with every word that is no option, or that is gpulaunch's to give.
    """
    gather = ErrorCollector()
    found: list[str] = []
    for number, word, value in _with_values(given):
        found += gather.take((number,), partial(_made, value), word, [])
    gather.done()
    return found


def _with_values(given: Sequence[str]) -> Iterator[tuple[int, str, str | None]]:
    """Yield each option's place, its word, and the next word if that is its value."""
    numbered = iter(enumerate(given))
    for number, word in numbered:
        following = given[number + 1] if number + 1 < len(given) else "-"
        # A colon would begin the options of a second job.
        if _is_open(word) and not following.startswith("-") and following != ":":
            next(numbered)
            yield number, word, following
        else:
            yield number, word, None


def _is_open(word: str) -> bool:
    """Tell whether a value may follow as a word of its own."""
    if word.startswith("--"):
        return "=" not in word
    valued = [letter not in _ALONE for letter in word[1:]]
    return word.startswith("-") and True in valued and valued.index(True) == len(valued) - 1


def _made(value: str | None, word: str) -> list[str]:
    found = [_long(word)] if word.startswith("--") else _short(word)
    if value is not None:
        found[-1] += f"={value}"
    if "=" not in found[-1] and found[-1] not in FLAGS:  # it would take the next word
        raise FieldError(f"expected its value as well, {found[-1]}=..., found {v.found(word)}")
    return found


def _long(word: str) -> str:
    name = word.partition("=")[0]
    if not _OPTION.fullmatch(name):
        raise FieldError(f"{_EXPECTED_OPTION}, found {v.found(word)}")
    _refuse_ours(name[2:])
    return word


def _short(word: str) -> list[str]:
    """Return the long form of `-C`, `-Ca100`, or of several flags at once: `-Hk`."""
    if not word.startswith("-") or word == "-":
        raise FieldError(f"{_EXPECTED_OPTION}, found {v.found(word)}")
    found = []
    for at, letter in enumerate(word[1:], start=2):
        if letter not in SHORT:
            raise FieldError(
                f"{_EXPECTED_OPTION}, found {v.found(word)}: write -{letter} in its long form"
            )
        _refuse_ours(SHORT[letter])
        found.append(f"--{SHORT[letter]}")
        if letter not in _ALONE and word[at:]:
            found[-1] += f"={word[at:]}"
            break
    return found


def _refuse_ours(name: str) -> None:
    """Raise FieldError for an option of ours; Slurm takes any unambiguous beginning (`--arr`)."""
    ours = name if name in OURS else next((known for known in OURS if known.startswith(name)), "")
    if ours:
        raise FieldError(f"--{ours} cannot be set here: {OURS[ours]}")


def from_line(given: Sequence[str]) -> list[str]:
    """Return the options of all `--slurm`. Raises UsageError."""
    found = []
    for text in given:
        try:
            words = options(split(text))
            for word in words:
                check(word)
        except FieldError as bad:
            raise UsageError("\n".join(f"--slurm: {one.message}" for one in bad.each())) from None
        found += words
    return found


def check(option: str) -> None:
    """Raise FieldError for a value that is not allowed, or that asks for cards."""
    name, _, value = option.partition("=")
    if not option.isprintable():
        raise FieldError(f"expected an option on one line, found {v.found(option)}")
    if name.startswith(("--gres", "--tres")) and _TRES.search(value):
        raise FieldError(f"{name} cannot ask for cards: {_CARDS}, engine.slurm.gres of which type")


# ── `engine:` ─────────────────────────────────────────────────────────────────────────────────────

ENGINES = ("slurm",)
NAMED = ("partition", "account", "qos")
"""Keys that are options of sbatch by the same name."""
KEYS = (*NAMED, "gres", "extra")

Settings: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Engine, key, words. A key without words cancels what is set further from the job."""

_EXPECTED = "{slurm: {partition: gpu, account: lab}}"
_TYPE = re.compile(r"(gpu:)?(?P<type>[A-Za-z][\w.-]*)", re.ASCII)


def typed(value: Plain) -> dict[str, dict[str, list[str]]]:
    """Return the settings with lists of words, placeholders unfilled. Raises FieldError."""
    if not isinstance(value, dict):
        raise FieldError(
            f"expected {_EXPECTED}, found {v.found(value)}; which engine runs the list is said"
            " with --engine"
        )
    gather = ErrorCollector()
    known = ", ".join(ENGINES)
    for name in value:
        if name not in ENGINES:
            message = f"unknown engine{did_you_mean(name, ENGINES)} (known: {known})"
            gather.bads.append(FieldError(message, (name,), key=True))
    found = {
        name: gather.take((name,), _settings, given, {})
        for name, given in value.items()
        if given is not None
    }
    gather.done()
    return found


def _settings(value: Plain) -> dict[str, list[str]]:
    if not isinstance(value, dict):
        raise FieldError(f"expected settings like {{partition: gpu}}, found {v.found(value)}")
    gather = ErrorCollector()
    keys(value, KEYS, gather)
    found = {
        key: gather.take((key,), _options if key == "extra" else _word, value[key], [])
        for key in KEYS
        if key in value
    }
    gather.done()
    return found


def _word(value: Plain) -> list[str]:
    return [] if value is None else [scalar(value)]


def _options(value: Plain) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        if names_in(compile_raw(value)):
            raise FieldError("with a placeholder, write options as a list: [--mem={{mem}}G]")
        return options(split(value))
    if not isinstance(value, list):
        raise FieldError(f"expected options like [--mem=64G], found {v.found(value)}")
    return options(converted(scalar, value))


def settled(value: Any) -> Settings:
    """Return `typed`'s settings, with placeholders filled, checked. Raises FieldError."""
    gather = ErrorCollector()
    found = {
        name: {
            key: gather.take((name, key), partial(_settle, key), words, ())
            for key, words in given.items()
        }
        for name, given in value.items()
    }
    gather.done()
    return found


def _settle(key: str, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(converted(partial(_checked, key), words))


def _checked(key: str, word: str) -> str:
    if key == "extra":
        check(word)
    elif key == "gres":
        return _type(word)
    elif not word.strip() or not word.isprintable():
        raise FieldError(f"expected its name, found {v.found(word)}")
    return word


def _type(word: str) -> str:
    """Return a type of card; accepts Slurm's own spelling, `gpu:a100`, too."""
    match = _TYPE.fullmatch(word)
    if match is None or word == "gpu":
        raise FieldError(
            f"expected a type of card like a100, found {v.found(word)}; how many is what gpus:"
            " says, and other resources go into extra: [--gres=...]"
        )
    return match["type"]


def fixed(value: Plain) -> Settings:
    """Return the file's own settings, where placeholders have no item. Raises FieldError."""
    given = typed(value)
    for name, settings in given.items():
        for key, words in settings.items():
            if any(names_in(compile_raw(word)) for word in words):
                raise FieldError(
                    "placeholders are filled in a job or in defaults:, not here", (name, key)
                )
    return settled(given)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return both settings, key by key of each engine; `above` wins."""
    names = dict.fromkeys((*below, *above))
    return {name: {**below.get(name, {}), **above.get(name, {})} for name in names}


def held(settings: Settings) -> Settings:
    """Return the settings that apply to a job: the keys with words."""
    kept = {
        name: {key: words for key, words in given.items() if words}
        for name, given in settings.items()
    }
    return {name: given for name, given in kept.items() if given}
