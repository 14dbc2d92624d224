"""Completion in bash, zsh and fish, by click: what may stand in the place of RUN, JOB, FIELD.

Commands name these functions as `shell_complete=`. They look at files, ask no live run and no
driver, and start nothing. What they need is imported in them: every command imports this module.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
    shell_complete,
)

if TYPE_CHECKING:  # click before 8.4 has one kind of item
    from gpulaunch.journal.rundir import RunDir

    Found: TypeAlias = list[CompletionItem[str]]
    Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], Found]

ASKED = "_GPULAUNCH_COMPLETE"
ANSWER_TIMEOUT = 2.0
"""Seconds after which a person is not kept waiting for an answer: a run may lie on a disk that
does not answer."""
MAX_VALUES = 2000
"""Values at most: a shell lays more of them out for seconds."""
CARDS = Path("/proc/driver/nvidia/gpus")
JOB_FILES = (".yaml", ".yml", ".txt")
"""Endings of job files and of lists of commands."""
SETTLED = ("failed", "cancelled", "skipped")


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script with which bash, zsh or fish completes commands, runs, jobs and files.

    \b
    gpulaunch completion bash > ~/.local/share/bash-completion/completions/gpulaunch
    gpulaunch completion zsh > ~/.zfunc/_gpulaunch
    gpulaunch completion fish > ~/.config/fish/completions/gpulaunch.fish

    For zsh, ~/.zfunc has to be named before compinit, in ~/.zshrc: fpath+=~/.zfunc. Without the
    package bash-completion, ~/.bashrc reads it: source <(gpulaunch completion bash)
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(click.Group(), {}, "gpulaunch", ASKED).source(), nl=False)


def answer(cli: click.Group, asked: str) -> int:
    """Print what may stand at the cursor, or nothing; return 0. SIGALRM ends one that hangs."""
    # No handler: a disk that does not answer lets go of a process that dies, and of no other.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, ANSWER_TIMEOUT)
    for kind in (_Bash, _Zsh, _Fish):
        add_completion_class(kind)
    with suppress(Exception, SystemExit):
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        shell_complete(cli, {}, "gpulaunch", ASKED, asked)
        sys.stdout.flush()
    return 0


# ── What click leaves to do for each shell ──────────────────────────────────────────────────────


class _Bounded(ShellComplete):
    """Leaves out what no shell can show, and the values beyond a number that it shows quickly."""

    def get_completions(self, args: list[str], incomplete: str) -> Found:
        found = [
            item
            for item in super().get_completions(args, incomplete)
            if str(item.value).isprintable()
        ]
        return found if len(found) <= MAX_VALUES else _beginnings(found)


class _WithOption(_Bounded):
    """Answers `--engine=sl` with the whole word, which is what these shells replace."""

    def get_completions(self, args: list[str], incomplete: str) -> Found:
        found = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if equals and option.startswith("--"):
            for item in found:
                item.value = f"{option}={item.value}"
        return found


class _Zsh(_WithOption, ZshComplete):
    pass


class _Fish(_WithOption, FishComplete):
    pass


class _Bash(_Bounded, BashComplete):
    """bash breaks words at `=`, and takes values as they have to be typed."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in args:
            if words and (word == "=" or words[-1].endswith("=")):
                words[-1] += word
            else:
                words.append(word)
        if words and words[-1].startswith("--") and words[-1].endswith("="):
            words[-1] = words[-1][:-1]
        return words, incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        if item.type != "plain":
            return super().format_completion(item)
        typed = os.environ["COMP_WORDS"].split("\n")[int(os.environ["COMP_CWORD"]) :]
        quote = typed[0][:1] if typed else ""
        if quote == "'":
            value = item.value.replace("'", "'\\''")
        elif quote == '"':
            # Nothing but other quotes keeps `!` from being the history's.
            value = re.sub(r'["\\$`]', r"\\\g<0>", item.value).replace("!", "\"'!'\"")
        else:
            value = re.sub(r"[^\w@%+,./:=-]", r"\\\g<0>", item.value)
        return f"plain,{value}".replace("\\", "\\\\")  # click's script reads without -r


def _beginnings(found: Found) -> Found:
    """Return how values begin, each up to the character behind what all of them share."""
    values = [item.value for item in found]
    apart = zip(min(values), max(values), strict=False)  # what these two share, all do
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], apart)) + 1
    return [CompletionItem(begun) for begun in dict.fromkeys(value[:end] for value in values)]


def _matching(typed: str, values: Iterable[tuple[str, str]]) -> Found:
    return [CompletionItem(value, help=text) for value, text in values if value.startswith(typed)]


# ── Runs ────────────────────────────────────────────────────────────────────────────────────────


def runs(context: click.Context, _: click.Parameter, typed: str) -> Found:
    """Complete RUN: the runs here, newest first; else a directory or a job file."""
    from gpulaunch.journal.rundir import QUEUE, queue_dir

    names = [run.path.name for run in _runs_here()]
    names += [QUEUE] if queue_dir().holds_run else []
    return _matching(typed, ((name, "") for name in names)) or files(context, _, typed)


def _runs_here() -> Sequence[RunDir]:
    from gpulaunch.journal.find import here

    near = here(Path.cwd())
    return near.runs if near else ()


def _chosen_run(context: click.Context) -> RunDir | None:
    """Return the run that is named already; else the newest one here, else the queue."""
    from gpulaunch.journal.find import find_or_queue
    from gpulaunch.journal.rundir import queue_dir

    named = context.params.get("run") or context.params.get("named")
    if named:
        return find_or_queue(str(named), Path.cwd())
    queue = queue_dir()
    return next(iter(_runs_here()), queue if queue.holds_run else None)


# ── Jobs ────────────────────────────────────────────────────────────────────────────────────────


def jobs(*states: str) -> Complete:
    """Return what completes JOB, with its state; only jobs in these states, if any are named."""

    def complete(context: click.Context, _: click.Parameter, typed: str) -> Found:
        given = [context.params.get(name) or () for name in ("words", "jobs")]
        taken = set(chain.from_iterable(words for words in given if isinstance(words, tuple)))
        return _jobs_of(_chosen_run(context), typed, states, taken)

    return complete


def jobs_or_runs(*states: str) -> Complete:
    def complete(context: click.Context, parameter: click.Parameter, typed: str) -> Found:
        of_run = jobs(*states)(context, parameter, typed)
        others = runs(context, parameter, typed)
        return [*of_run, *(one for one in others if not of_run or one.type == "plain")]

    return complete


def jobs_of_queue(context: click.Context, _: click.Parameter, typed: str) -> Found:
    from gpulaunch.journal.rundir import queue_dir

    return _jobs_of(queue_dir(), typed)


def jobs_of_file(context: click.Context, _: click.Parameter, typed: str) -> Found:
    """Complete jobs of the newest run of the job file that is named, else of a run."""
    from gpulaunch.journal.find import newest_of

    file = context.params.get("jobs")
    run = newest_of(Path(str(file)), Path.cwd()) if file else _chosen_run(context)
    return _jobs_of(run, typed)


def _jobs_of(
    run: RunDir | None, typed: str, states: Sequence[str] = (), taken: Iterable[str] = ()
) -> Found:
    from gpulaunch.journal.read import states_of

    known: Mapping[str, str] = {}
    with suppress(OSError):  # which is no reason to keep silent about runs
        known = states_of(run) if run is not None else {}
    pairs = known.items()
    return _matching(typed, (p for p in pairs if p[0] not in taken and p[1] in (states or [p[1]])))


def settings(context: click.Context, parameter: click.Parameter, typed: str) -> Found:
    """Complete jobs that wait and, behind one, fields with their `=`."""
    from gpulaunch.jobfile.settings import SETTABLE

    found = jobs("waiting")(context, parameter, typed)
    fields_too = SETTABLE if context.params.get("words") else ()
    return [*found, *_matching(typed, ((f"{name}=", "") for name in fields_too))]


# ── Files, cards, fields ────────────────────────────────────────────────────────────────────────


def files(context: click.Context, _: click.Parameter, typed: str) -> Found:
    return [CompletionItem(typed, type="file")]


def directories(context: click.Context, _: click.Parameter, typed: str) -> Found:
    return [CompletionItem(typed, type="dir")]


def job_files(context: click.Context, _: click.Parameter, typed: str) -> Found:
    """Complete job files; any file, where there is none."""
    directory, name = os.path.split(typed)
    found: list[str] = []
    with suppress(OSError), os.scandir(directory or ".") as entries:
        found = sorted(
            os.path.join(directory, entry.name)
            for entry in entries
            if entry.name.startswith(name)
            and not (entry.name.startswith(".") and not name)
            and entry.name.endswith(JOB_FILES)
            and entry.is_file()
        )
    return [CompletionItem(path) for path in found] or files(context, _, typed)


def program(context: click.Context, parameter: click.Parameter, typed: str) -> Found:
    """Complete a program of the PATH, and behind it files."""
    begun = any(context.params.get(name) for name in ("argv", "words"))
    if begun or not typed or "/" in typed:
        return files(context, parameter, typed)
    found: set[str] = set()
    for directory in os.get_exec_path():
        with suppress(OSError), os.scandir(directory) as entries:
            found.update(
                entry.name
                for entry in entries
                if entry.name.startswith(typed) and os.access(entry.path, os.X_OK)
            )
    return [CompletionItem(name) for name in sorted(found)] or files(context, parameter, typed)


def _cards() -> Iterator[Mapping[str, str]]:
    """Yield what the driver's own files say of each card: `Model`, `GPU UUID`."""
    for file in sorted(CARDS.glob("*/information")):
        lines = file.read_text(errors="replace").splitlines()
        pairs = (line.partition(":") for line in lines)
        yield {key.strip(): text.strip() for key, _, text in pairs}


def gpus(context: click.Context, _: click.Parameter, typed: str) -> Found:
    """Complete `all`, how many, or which: UUIDs, separated by commas."""
    before, comma, _last = typed.rpartition(",")
    cards = list(_cards())
    counts = [("all", ""), *((str(n), "how many, any") for n in range(1, len(cards) + 1))]
    which = [(card["GPU UUID"], card.get("Model", "")) for card in cards if "GPU UUID" in card]
    found = [(f"{before}{comma}{uuid}", model) for uuid, model in which if uuid not in before]
    return _matching(typed, found if comma else counts + found)


def models(context: click.Context, _: click.Parameter, typed: str) -> Found:
    """Complete the names of cards."""
    found = dict.fromkeys(card["Model"] for card in _cards() if "Model" in card)
    return _matching(typed, ((model, "") for model in found))


def fields(context: click.Context, _: click.Parameter, typed: str) -> Found:
    """Complete a field of the job file, or with --config of the configuration."""
    if context.params.get("of_config"):
        from gpulaunch.jobfile.config_file import KEYS

        return _matching(typed, ((key, "") for key in KEYS))
    from gpulaunch.jobfile.schema import DESCRIPTIONS, OF_FILE, OF_JOB

    names = dict.fromkeys((*OF_JOB, *OF_FILE))
    return _matching(typed, ((name, DESCRIPTIONS.get(name, "")) for name in names))


def defaults(context: click.Context, _: click.Parameter, typed: str) -> Found:
    """Complete the fields that `--default` takes, with their `=`."""
    from gpulaunch.jobfile.fields import DEFAULT_FIELDS

    return _matching(typed, ((f"{name}=", "") for name in DEFAULT_FIELDS))


def failure_classes(context: click.Context, _: click.Parameter, typed: str) -> Found:
    """Complete failure classes, separated by commas."""
    from gpulaunch.core.retry import POLICIES

    before, comma, _last = typed.rpartition(",")
    return _matching(typed, ((f"{before}{comma}{name}", "") for name in sorted(POLICIES)))
