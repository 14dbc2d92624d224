"""Makes a Plan of a job file's text: the file's own keys, each entry in turn, names, needs.

Goes on after every mistake that leaves the rest readable, and raises them all together. Reads the
defaults of a command line as well.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.jobfile import command_list, tree
from gpulaunch.jobfile.containers import SharedContainers
from gpulaunch.jobfile.drafts import ExpansionContext
from gpulaunch.jobfile.entries import Drafts, merged, resolved
from gpulaunch.jobfile.fields import DEFAULTS, FIELDS
from gpulaunch.jobfile.file_keys import FileKeys, Surroundings
from gpulaunch.jobfile.mistakes import Mistakes, as_field_error
from gpulaunch.jobfile.paths import Places
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.source import ForeachSource, JobFileText, decode, read_bytes
from gpulaunch.jobfile.suggest import did_you_mean_key
from gpulaunch.jobfile.tree import Plain
from gpulaunch.jobfile.values import found

_NULLS = frozenset({"null", "~"})


def typed_defaults(words: Iterable[str]) -> dict[str, Any]:
    """Return the fields of `--default FIELD=VALUE`, converted; of one named twice, the last.

    Jobs have them that do not say otherwise.
    A value that begins with [ or { is YAML, any other is text as typed. Raises UsageError with
    every mistake.
    """
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for word in words:
        field, equals, typed = word.partition("=")
        try:
            if any("\udc80" <= character <= "\udcff" for character in word):
                raise ValueError("expected UTF-8")
            if not equals or field not in DEFAULTS:
                raise ValueError(_why_not(field, equals))
            found[field] = DEFAULTS[field].convert(_plain(field, typed))
        except JobFileError as error:
            wrong += [one.message for one in error.found]
        except ValueError as error:
            wrong += [one.message for one in as_field_error(error).each()]
        wrong = [
            one if one.startswith("--default ") else f"--default {word}: {one}" for one in wrong
        ]
    if wrong:
        raise UsageError("\n".join(wrong))
    return found


def _why_not(field: str, equals: str) -> str:
    if field in FIELDS and field not in DEFAULTS:
        return "a job's own; it cannot be a default"
    if not equals:
        return "expected FIELD=VALUE, as in --default timeout=2h"
    near = did_you_mean_key(field, tuple(DEFAULTS))
    return f"there is no such field{near or '; gpulaunch schema defaults'}"


def _plain(field: str, typed: str) -> Plain:
    if typed in _NULLS:
        raise ValueError("null gives nothing: leave the option out")
    if not typed.startswith(("[", "{")) or typed.startswith("{{"):
        return typed
    return tree.plain_value(field, typed)


def load(path: Path, around: Surroundings) -> Plan:
    """Read a job file, or a list of commands, and return its plan.

    Raises JobFileError with every mistake, UsageError where there is no such file to read,
    NoCardsError where jobs are to be made for each card, and there is none.
    """
    data = read_bytes(path, "a job file (YAML text), or a list of commands")
    return load_text(data, around, name=str(path), base=path.absolute().parent, path=path)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Turn cyclic garbage collection off during the block.

    100,000 jobs are millions of objects that all stay; looking through them again and again for
    cycles, of which there are none, took half of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_collecting_nothing()
def load_text(
    data: bytes,
    around: Surroundings,
    *,
    name: str,
    base: Path,
    path: Path | None = None,
    as_list: bool | None = None,
) -> Plan:
    """Return the plan of a text, as `load`; `name` is how messages call it.

    `base` is the directory where relative paths and globs start. `path`: the file that has the
    text. `as_list`: whether it is a list of commands; None: as its name and its text say.
    """
    typed = typed_defaults(around.defaults)
    source = _source(data, name, base, as_list, path, around)
    base = source.base
    root, early = command_list.parse(source)
    mistakes = Mistakes(source, root, {word.partition("=")[0]: word for word in around.defaults})
    for at, message in early:
        mistakes.add_at(at, message)
    if not isinstance(root.value, dict):
        what = "; a list of commands has another ending than .yaml" * isinstance(root.value, str)
        mistakes.add((), f"expected a mapping with jobs:, found {found(root.plain())}{what}")
        mistakes.raise_if_any()
    top = FileKeys(root, mistakes)
    top.read(Path(name).stem)
    shared = top.per_gpu if around.per_gpu is None else around.per_gpu
    limits = {**top.limits, **around.beside.limits}
    places = Places(base, around.environ)
    since = time.time() if around.now is None else around.now
    containers = SharedContainers(places.find)
    cards = partial(around.cards, top.selection) if around.cards else None
    context = ExpansionContext(
        places, containers, mistakes, limits, shared, around.following, now=since, cards=cards
    )
    drafts = Drafts(context, top.wrong_defaults)
    drafts.expand(root, merged(top.defaults, typed))
    jobs, held = resolved(drafts, mistakes, around.beside)
    if around.look is not None:
        around.look(mistakes, drafts.startable())
    mistakes.raise_if_any()
    if context.lacking is not None:
        raise context.lacking
    return Plan(
        name=top.name,
        selection=top.selection,
        per_gpu=shared,
        limits=limits,
        jobs=tuple(jobs),
        notify=top.notify,
        source=source,
        path=path,
        sources=(_itself(path, base),) if source.is_list and path else tuple(context.sources),
        held=held,
        free_below=top.free_below,
        typed=mistakes.typed,
    )


def _source(
    data: bytes,
    name: str,
    base: Path,
    as_list: bool | None,
    path: Path | None,
    around: Surroundings,
) -> JobFileText:
    """Return the text, and whether it is a list; of one that grows, the lines that are whole."""
    is_list = command_list.is_list(name, data) if as_list is None else as_list
    if is_list:
        base = around.cwd or (Path.cwd() if path else base)
        following = around.following
        if path and following and not following.counting.whole(str(path.absolute()), len(data)):
            data = command_list.complete(data)
    base = base.absolute()
    base = base.resolve() if ".." in base.parts else base  # without `..`, but with its links
    return JobFileText(name, base, data, decode(data, name), is_list=is_list)


def _itself(path: Path, base: Path) -> ForeachSource:
    """Return a list of commands as what its jobs come from."""
    return ForeachSource(str(path.absolute()), str(base), file=True)
