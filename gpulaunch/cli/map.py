"""Runs a job list that a command line makes instead of a file.

`gpulaunch map` makes one job per item; `gpulaunch each` puts one command on every card of the pool.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.cli import completion
from gpulaunch.cli.options import (
    as_options,
    command_words,
    container_options,
    default,
    engine_options,
    kind_options,
    pool_options,
    refuse_mounts_alone,
    refuse_option_as_command,
    run_dir,
    run_options,
    run_options_of,
)
from gpulaunch.jobfile.globs import natural


def container_entry(image: str | None, mounts: Sequence[str]) -> dict[str, Any]:
    """Return the entry's `container`, if there is to be one. Raises UsageError."""
    if image is None:
        refuse_mounts_alone(mounts)
        return {}
    return {"container": {"image": image, "mounts": list(mounts)}}


def run_made(tree: Mapping[str, Any], command: str, options: Mapping[str, Any]) -> int:
    """Run the list that `tree` spells, as `command` does; return the exit status.

    `options`: click's parsed values, by name. Raises UsageError with each mistake by its option.
    """
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.jobfile.load import load_text
    from gpulaunch.journal.find import working_directory
    from gpulaunch.run.preflight import surroundings_at_start
    from gpulaunch.run.start import start

    asked, terminal = run_options_of(options), Terminal(options)
    try:
        around, base = surroundings_at_start(asked), working_directory()
        plan = load_text(_yaml(tree), around, name=command, base=base, as_list=False)
    except JobFileError as error:  # there is no file: its lines and columns mean nothing
        raise UsageError(as_options(error, command)) from None
    return start(plan, None, asked, terminal, options["run_dir"]).status


def _yaml(tree: Mapping[str, Any]) -> bytes:
    import yaml

    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True).encode()


# ── Map ───────────────────────────────────────────────────────────────────────────────────────────

SEPARATOR = ":::"
OURS = {
    "{}": "{{path}}",
    "{.}": "{{dir}}/{{stem}}",
    "{/}": "{{name}}",
    "{//}": "{{dir}}",
    "{/.}": "{{stem}}",
    "{#}": "{{index}}, which starts at 0",
    "{%}": "{{gpu_index}}, the card's number",
    "{1}": "{{path}}",
}
"""Our names for GNU Parallel's replacement strings."""
_PARALLEL = re.compile(r"(?<![{$\\])\{(?:|\.|/|//|/\.|#|%)\}(?!\})|(?<![^\s=\"'/,:])\{1\}(?!\})")


@click.command(
    "map", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--name", default="map", help="The run's name (map).")
@click.option("-g", "cards", type=click.IntRange(0), default=1, metavar="N", help="Cards a job.")
@click.option("--per-gpu", type=click.IntRange(1), default=1, metavar="N", help="Jobs a card.")
@click.option("--gpu-memory", metavar="SIZE", help="Only cards with so much free: 16GB, or auto.")
@click.option("--share", is_flag=True, help="Jobs share cards, as their --gpu-memory (auto) fits.")
@click.option("--memory", metavar="SIZE", help="Host memory a job: 64GB.")
@click.option("--mps", is_flag=True, help="Jobs that share a card compute at once (CUDA's MPS).")
@click.option("--retries", type=click.IntRange(0), default=0, metavar="N")
@click.option("--timeout", metavar="TIME")
@click.option("--gpu-idle", metavar="TIME", help="End a job that holds a card unused for so long.")
@click.option("--literal", is_flag=True, help="Items are as they stand: * ? [ mean nothing.")
@run_dir
@click.option("--dry-run", is_flag=True, help="Print the plan, start nothing.")
@pool_options
@engine_options
@kind_options
@container_options
@default
@run_options
@command_words("words", "CMD ::: ITEM...")
def command(
    name: str,
    cards: int,
    per_gpu: int,
    gpu_memory: str | None,
    share: bool,
    memory: str | None,
    mps: bool,
    retries: int,
    timeout: str | None,
    gpu_idle: str | None,
    literal: bool,
    container: str | None,
    mount: tuple[str, ...],
    words: tuple[str, ...],
    **options: Any,
) -> int:
    """One job per item: CMD once for each ITEM, on whichever card is free.

    Items come from the line, from a quoted glob, or, without ":::", from standard input, one a
    line. {{path}} (or {{item}}, {{stem}}, ...) in CMD is the item; it is appended when absent.
    One word of CMD is a shell command, several are executed as they are.

    An item with * ? or [ that is no file is a glob, and has to match; with --literal it is itself.
    {}, where GNU Parallel puts the item, is refused, unless CMD has a placeholder of ours as well:
    then it is what it is.

    \b
    gpulaunch map python embed.py {{path}} --out {{out}} ::: texts/*.txt
    ls inputs/*.fasta | gpulaunch map 'wc -l < {{path}} > {{out}}/lines'
    """
    items = _items(words, literal)
    run = list(words[: words.index(SEPARATOR)] if SEPARATOR in words else words)
    refuse_option_as_command(run)
    _refuse_parallels(run)
    if not run:
        raise UsageError("no command: it stands before :::")
    typed = {"memory": memory, "timeout": timeout, "gpu_idle": gpu_idle, "gpu_memory": gpu_memory}
    typed |= {name: options[name] for name in ("card", "compute", "affinity")}
    job = {
        "gpus": str(cards),
        "retries": str(retries),
        **{name: value for name, value in typed.items() if value is not None},
        **({"share": "true"} if share else {}),
        **({"mps": "true"} if mps else {}),
        **container_entry(container, mount),
        **_job(run, items),
    }
    shared = {"per_gpu": str(per_gpu)} if per_gpu > 1 else {}
    return run_made({"name": name, **shared, "jobs": [job]}, "map", options)


def _refuse_parallels(run: Sequence[str]) -> None:
    """Raise UsageError for GNU Parallel's `{}` and its kin, if CMD has no placeholder of ours.

    With one, the author knows ours, and `{}` is literal (a regular expression, JSON).
    """
    if any("{{" in word for word in run):
        return
    found = next((match.group() for match in map(_PARALLEL.search, run) if match), None)
    if found is not None:
        raise UsageError(
            f"{found} is GNU Parallel's; here it is {OURS[found]} (also {{{{item}}}} {{{{path}}}}"
            " {{name}} {{stem}} {{ext}} {{dir}} {{index}} {{out}}); where CMD has one of these,"
            f" {found} stands for itself"
        )


def _items(words: Sequence[str], literal: bool) -> list[str]:
    if SEPARATOR in words:
        given = list(words[words.index(SEPARATOR) + 1 :])
        if SEPARATOR in given:
            raise UsageError("one ::: only: for every combination of items write a job file")
    elif sys.stdin.isatty():
        raise UsageError("no items: write them after :::, or pipe them in, one a line")
    else:
        given = [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    items = given if literal else [found for item in given for found in _expand(item)]
    if not items:
        raise UsageError("no items: nothing stands after :::, or standard input was empty")
    for item in items:
        if any("\udc80" <= character <= "\udcff" for character in item):
            raise UsageError(f"{item!a}: expected UTF-8; rename it, or use a job file's glob")
    return items


def _expand(item: str) -> list[str]:
    if os.path.lexists(item) or not glob.has_magic(item):
        return [item]
    found = sorted(glob.glob(item, recursive=True), key=natural)
    if not found:
        raise UsageError(f"{item} matches no file; map --literal takes items as they stand")
    return found


def _job(run: list[str], items: list[str]) -> dict[str, Any]:
    """Return the entry of the job file: `run`, `foreach` and a name that tells the jobs apart.

    Items are values: as such each is taken as it is, whatever characters are in it, and
    `{{path}}`, `{{stem}}` and so on are those of the path that it names.
    """
    if not any("{{" in word for word in run):
        run = [f"{run[0]} {{{{path}}}}"] if len(run) == 1 else [*run, "{{path}}"]
    if not all(os.path.lexists(item) for item in items):
        run = [word.replace("{{path}}", "{{item}}") for word in run]
    stems = [Path(item).stem[:100] for item in items]
    told_apart = len(set(stems)) == len(items) and all(stems)
    return {
        "name": "{{stem}}" if told_apart else "{{stem}}-{{index}}" if all(stems) else "{{index}}",
        "run": run[0] if len(run) == 1 else run,
        "foreach": {"values": items},
    }


# ── Each ──────────────────────────────────────────────────────────────────────────────────────────


@click.command(
    "each", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--name", default="each", help="The run's name (each).")
@click.option("--retries", type=click.IntRange(0), metavar="N", help="Restarts of a copy (0).")
@click.option(
    "--on",
    multiple=True,
    metavar="CLASS",
    shell_complete=completion.failure_classes,
    help="Restart after these alone: --on exit,gpu_lost.",
)
@click.option("--delay", metavar="TIME", help="How long to wait before a restart.")
@click.option("--timeout", metavar="TIME", help="The longest that a copy may run.")
@click.option("--gpu-memory", metavar="SIZE", help="Only once its card has so much free: 16GB.")
@click.option("--memory", metavar="SIZE", help="Host memory of a copy: 64GB.")
@run_dir
@click.option("--dry-run", is_flag=True, help="Print the plan, start nothing.")
@pool_options
@kind_options
@container_options
@default
@run_options
@command_words("words", "CMD...")
def each(
    name: str,
    retries: int | None,
    on: tuple[str, ...],
    delay: str | None,
    container: str | None,
    mount: tuple[str, ...],
    words: tuple[str, ...],
    **options: Any,
) -> int:
    """CMD once on every card, each copy seeing its own as cuda:0.

    For what takes its work from elsewhere, one process a card: agents of a sweep, workers of a
    study, a server on each card. A card that somebody else uses gets its copy once it is free.
    Copies are jobs card-0, card-1 ... of a run like any other: status, logs, cancel and resume
    work. {{item}} in CMD is the card's index, {{port}} a free port, {{out}} a directory.

    One word of CMD is a shell command, several are executed as they are. A copy that ends with
    status 0 has succeeded; others are restarted up to --retries times.

    \b
    gpulaunch each -- wandb agent LAB/PROJECT/SWEEP
    gpulaunch each --retries 5 --on exit,gpu_lost -- python worker.py --study folding
    gpulaunch each --gpus 0,2 -- vllm serve MODEL --port '800{{item}}'
    """
    run = list(words)
    refuse_option_as_command(run)
    given = ("timeout", "gpu_memory", "memory", "card", "compute", "affinity")
    typed = {field: options[field] for field in given if options[field] is not None}
    job = {
        "name": "card-{{item}}",
        "foreach": "cards",
        "run": run[0] if len(run) == 1 else run,
        **typed,
        **_restarts(retries, on, delay),
        **container_entry(container, mount),
    }
    return run_made({"name": name, "jobs": [job]}, "each", options)


def _restarts(times: int | None, on: tuple[str, ...], delay: str | None) -> dict[str, Any]:
    """Return the entry's `retries`, if restarts are asked for; once, where no number is given."""
    if times is None and not on and delay is None:
        return {}
    spec: dict[str, Any] = {"times": "1" if times is None else str(times)}
    if on:
        spec["on"] = [kind for some in on for kind in some.split(",")]
    if delay is not None:
        spec["delay"] = delay
    return {"retries": spec}
