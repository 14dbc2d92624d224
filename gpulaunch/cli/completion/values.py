"""What may stand in the place of a parameter: runs, jobs, cards, fields, files.

PLACES has every parameter that takes neither a word of a list of its own nor a path: a test holds
that none is forgotten. Looks at files; asks no live run and no driver, and starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click
from click.shell_completion import CompletionItem

from gpulaunch.journal.finding import find_or_queue, here, newest_of
from gpulaunch.journal.glance import archived_names, states_of
from gpulaunch.journal.rundir import RunDir, queue_dir

OPEN = "open"
"""The type of a value behind which more is typed."""
MAX_VALUES = 2000
"""Values at most: a shell lays more of them out for seconds."""
CARDS = Path("/proc/driver/nvidia/gpus")
JOB_FILES = (".yaml", ".yml", ".txt")
"""Endings of job files and of lists of commands."""

if TYPE_CHECKING:  # click before 8.4 has one kind of item
    Found: TypeAlias = list[CompletionItem[str]]
    Values: TypeAlias = Callable[[click.Context, str], Found]

_RUN_NAMES = ("run", "named")
_SETTLED = frozenset({"failed", "cancelled", "skipped"})


def values_for(path: str, parameter: str, context: click.Context, typed: str) -> Found | None:
    """Return what may stand there; None where click knows."""
    values = PLACES.get((path, parameter)) or PLACES.get(("", parameter))
    return None if values is None else values(context, typed)


def asked_of_shell(found: Found) -> Found:
    """Return the values; where there are some, no files and commands beside them.

    Of too many, what they begin with: a shell takes what all that it is told share for certain.
    """
    plain = [item for item in found if item.type in ("plain", OPEN)]
    return plain or found if len(plain) <= MAX_VALUES else _beginnings(plain)[:MAX_VALUES]


def _beginnings(found: Found) -> Found:
    """Return how the values begin, each up to the character behind what all of them share."""
    values = [item.value for item in found]
    apart = zip(min(values), max(values), strict=False)  # what these two share, all do
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], apart)) + 1
    begun = dict.fromkeys(value[:end] for value in values)
    return [CompletionItem(value, type=OPEN) for value in begun]


def _matching(typed: str, values: Iterator[tuple[str, str]]) -> Found:
    return [CompletionItem(v, help=told) for v, told in values if v.startswith(typed)]


def _files(context: click.Context, typed: str) -> Found:
    return [CompletionItem(typed, type="file")]


def _directories(context: click.Context, typed: str) -> Found:
    return [CompletionItem(typed, type="dir")]


def _nothing(context: click.Context, typed: str) -> Found:
    return []


def _command(context: click.Context, typed: str) -> Found:
    """Return that a program may stand there, and behind it files."""
    begun = any(context.params.get(name) for name in ("argv", "words"))
    if begun or "/" in typed:
        return _files(context, typed)
    return [CompletionItem(typed, type="commands")]


# ── runs ────────────────────────────────────────────────────────────────────────────────────────


def _here() -> Sequence[RunDir]:
    near = here(Path.cwd())
    return near.runs if near else ()


def _runs(context: click.Context, typed: str) -> Found:
    """Return the runs here, newest first; else a directory or a job file."""
    queue = queue_dir()
    names = [run.path.name for run in _here()]
    names += [queue.path.name] if queue.holds_run else []
    return [*_matching(typed, ((name, "") for name in names)), *_files(context, typed)]


def _chosen(context: click.Context) -> RunDir | None:
    """Return the run that is named already; else the newest one here, else the queue."""
    named = next((context.params[n] for n in _RUN_NAMES if context.params.get(n)), None)
    if named is not None:
        return find_or_queue(str(named), Path.cwd())
    if runs := _here():
        return runs[0]
    queue = queue_dir()
    return queue if queue.holds_run else None


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────


def _jobs_of(run: RunDir | None, typed: str, states: frozenset[str], taken: Sequence[str]) -> Found:
    if run is None:
        return []
    try:
        known = states_of(run)
    except OSError:
        return []  # which is no reason to keep silent about runs
    pairs = (
        (name, state)
        for name, state in known.items()
        if name not in taken and (not states or state in states)
    )
    found = _matching(typed, pairs)
    if not found and not states:
        found = _matching(typed, ((name, "over") for name in archived_names(run)))
    return found


def _jobs(*states: str) -> Values:
    def values(context: click.Context, typed: str) -> Found:
        given = [context.params.get(name) or () for name in ("words", "jobs")]
        taken = [word for words in given if isinstance(words, tuple | list) for word in words]
        return _jobs_of(_chosen(context), typed, frozenset(states), taken)

    return values


def _jobs_or_runs(*states: str) -> Values:
    def values(context: click.Context, typed: str) -> Found:
        return [*_jobs(*states)(context, typed), *_runs(context, typed)]

    return values


def _jobs_of_queue(context: click.Context, typed: str) -> Found:
    return _jobs_of(queue_dir(), typed, frozenset(), ())


def _jobs_of_file(context: click.Context, typed: str) -> Found:
    file = context.params.get("jobs")
    run = newest_of(Path(str(file)), Path.cwd()) if file else _chosen(context)
    return _jobs_of(run, typed, frozenset(), ())


def _settings(context: click.Context, typed: str) -> Found:
    """Return jobs that wait and, behind one, fields with their `=`."""
    from gpulaunch.jobfile.settings import SETTABLE

    fields = [CompletionItem(f"{f}=", type=OPEN) for f in SETTABLE if f"{f}=".startswith(typed)]
    jobs = _jobs("waiting")(context, typed)
    return [*jobs, *fields] if context.params.get("words") else jobs


# ── files, cards, fields ────────────────────────────────────────────────────────────────────────


def _job_files(context: click.Context, typed: str) -> Found:
    """Return job files and directories; any file, where there is neither."""
    directory, name = os.path.split(typed)
    if typed.startswith("~") or "{{" in typed:
        return _files(context, typed)
    found: Found = []
    with os.scandir(directory or ".") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not entry.name.startswith(name) or entry.name.startswith(".") > name.startswith("."):
                continue
            path = os.path.join(directory, entry.name)
            if entry.name.endswith(JOB_FILES) and entry.is_file():
                found.append(CompletionItem(path))
            elif entry.is_dir():
                found.append(CompletionItem(f"{path}/", type=OPEN))
    return found or _files(context, typed)


def _cards() -> Iterator[Mapping[str, str]]:
    """Yield what the driver's own files say of each card: `Model`, `GPU UUID`."""
    for file in sorted(CARDS.glob("*/information")):
        lines = file.read_text(errors="replace").splitlines()
        pairs = (line.partition(":") for line in lines)
        yield {key.strip(): text.strip() for key, _, text in pairs}


def _gpus(context: click.Context, typed: str) -> Found:
    """Return `all`, how many, or which: UUIDs, separated by commas."""
    before, comma, _ = typed.rpartition(",")
    cards = list(_cards())
    counts = [("all", ""), *((str(n), "how many, any") for n in range(1, len(cards) + 1))]
    which = [(card["GPU UUID"], card.get("Model", "")) for card in cards if "GPU UUID" in card]
    found = [(f"{before}{comma}{uuid}", model) for uuid, model in which if uuid not in before]
    return _matching(typed, iter(found if comma else counts + found))


def _models(context: click.Context, typed: str) -> Found:
    models = dict.fromkeys(card["Model"] for card in _cards() if "Model" in card)
    return _matching(typed, ((model, "") for model in models))


def _fields(context: click.Context, typed: str) -> Found:
    if context.params.get("of_config"):
        from gpulaunch.config.keys import KEYS

        return _matching(typed, ((key, "") for key in KEYS))
    from gpulaunch.jobfile.schema import DESCRIPTIONS, OF_FILE, OF_JOB

    names = dict.fromkeys((*OF_JOB, *OF_FILE))
    return _matching(typed, ((name, DESCRIPTIONS.get(name, "")) for name in names))


def _defaults(context: click.Context, typed: str) -> Found:
    """Return the fields that `--default` takes, with their `=`."""
    from gpulaunch.jobfile.fields import DEFAULT_FIELDS

    named = (f"{name}=" for name in DEFAULT_FIELDS)
    return [CompletionItem(name, type=OPEN) for name in named if name.startswith(typed)]


def _classes(context: click.Context, typed: str) -> Found:
    """Return failure classes, separated by commas."""
    from gpulaunch.core.classes import POLICIES

    before, comma, _ = typed.rpartition(",")
    names = (f"{before}{comma}{name}" for name in sorted(POLICIES))
    return _matching(typed, ((name, "") for name in names))


PLACES: Mapping[tuple[str, str], Values] = {
    **dict.fromkeys([("", "run"), ("", "named"), ("", "runs")], _runs),
    ("", "default"): _defaults,
    ("each", "on"): _classes,
    ("", "gpus"): _gpus,
    ("", "card"): _models,
    ("", "container"): _files,
    ("", "mount"): _files,
    **dict.fromkeys([("", "cwd"), ("", "run_dir")], _directories),
    **{(name, "jobs"): _job_files for name in ("run", "check")},
    ("run", "more"): _files,
    **dict.fromkeys([("exec", "argv"), ("hold", "argv"), ("map", "words")], _command),
    ("each", "words"): _command,
    ("add", "words"): _command,
    ("add", "gpus"): _nothing,
    **dict.fromkeys([("add", "needs"), ("add", "after")], _jobs()),
    ("exec", "job"): _jobs(),
    ("run", "only"): _jobs_of_file,
    ("resume", "only"): _jobs(),
    ("retry", "words"): _jobs_or_runs(*_SETTLED),
    ("set", "words"): _settings,
    ("cancel", "jobs"): _jobs("waiting", "running"),
    ("logs", "jobs"): _jobs("running", "succeeded", *_SETTLED),
    ("status", "what"): _jobs_or_runs(),
    ("queue status", "job"): _jobs_of_queue,
    ("schema", "field"): _fields,
}
"""By the command's words, empty for any, and the parameter's name."""
