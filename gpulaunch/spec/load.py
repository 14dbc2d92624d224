"""A job file's text to a Plan: the file's own keys, each entry in turn, names, needs.

Goes on after every mistake that leaves the rest readable, and raises them all together.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gpulaunch.core.model import Job
from gpulaunch.core.selection import ALL, Selection, parse_selection
from gpulaunch.spec import convert as c
from gpulaunch.spec import tree
from gpulaunch.spec.expand import Context, Draft, Entry
from gpulaunch.spec.fields import DEFAULT_FIELDS, FIELDS, LATER, Defaults
from gpulaunch.spec.fields import Entry as EntryFields
from gpulaunch.spec.mistakes import Bad, Gather, Mistakes
from gpulaunch.spec.needs import Index, Names, Resolver, find_cycle, spell_cycle
from gpulaunch.spec.places import Places
from gpulaunch.spec.plan import Plan
from gpulaunch.spec.source import Source, decode, read_bytes
from gpulaunch.spec.suggest import did_you_mean, shorten
from gpulaunch.spec.tree import Node, Plain
from gpulaunch.spec.tree import Path as Steps
from gpulaunch.spec.values import found

TOP = ("name", "gpus", "per_gpu", "limits", "defaults", "jobs")
_ENVIRONMENTS = ("python", "venv", "conda")


def load(path: Path, *, environ: Mapping[str, str]) -> Plan:
    """The plan that a job file makes.

    Raises JobFileError with every mistake, UsageError where there is no such file to read.
    `environ` is the caller's environment (HOME, PATH, where conda is).
    """
    data = read_bytes(path, "a job file (YAML text)")
    with _collecting_nothing():
        return _plan(data, str(path), path.absolute().parent, environ, path)


def load_text(data: bytes, *, name: str, base: Path, environ: Mapping[str, str]) -> Plan:
    """As `load`, for text that is at hand; `name` is how messages call it.

    `base` is the directory where relative paths and globs start.
    """
    with _collecting_nothing():
        return _plan(data, name, base.absolute(), environ, None)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """No cyclic garbage collection meanwhile.

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


def _plan(
    data: bytes, name: str, base: Path, environ: Mapping[str, str], path: Path | None
) -> Plan:
    source = Source(name, base, data, decode(data, name))
    root, early = tree.parse(source)
    mistakes = Mistakes(source, root)
    for at, message in early:
        mistakes.add_at(at, message)
    if not isinstance(root.value, dict):
        mistakes.add((), "expected a mapping with jobs:, found " + found(root.plain()))
        mistakes.raise_if_any()
    top = _Top(root, mistakes)
    top.read(Path(name).stem)
    context = Context(Places(base, environ), mistakes, top.limits, top.per_gpu)
    drafts = _Drafts(context)
    drafts.expand(root, top.defaults)
    jobs = _resolve(drafts, mistakes)
    mistakes.raise_if_any()
    return Plan(
        name=top.name,
        selection=top.selection,
        selection_given="gpus" in root.value if isinstance(root.value, dict) else False,
        per_gpu=top.per_gpu,
        limits=top.limits,
        jobs=tuple(jobs),
        source=source,
        path=path,
    )


# ── the file's own keys ─────────────────────────────────────────────────────────────────────────


class _Top:
    def __init__(self, root: Node, mistakes: Mistakes) -> None:
        assert isinstance(root.value, dict)
        self.nodes = root.value
        self.mistakes = mistakes
        self.name = ""
        self.selection: Selection = ALL
        self.per_gpu = 1
        self.limits: dict[str, int] = {}
        self.defaults: dict[str, Any] = {}

    def read(self, stem: str) -> None:
        for key in self.nodes:
            if key in LATER:
                self.mistakes.add((key,), "this version cannot do that yet", key=True)
            elif key not in TOP:
                self.mistakes.add((key,), c.unknown_key(key, TOP), key=True)
        self.name = self._one("name", c.run_name, None) or c.clean_name(stem) or "jobs"
        self.selection = self._one("gpus", _selection, ALL)
        self.per_gpu = self._one("per_gpu", c.integer(1, "how many jobs share a card: 1, 2 ..."), 1)
        self.limits = self._one("limits", _limits, {})
        self._read_defaults()

    def _one(self, key: str, convert: c.Convert, default: Any) -> Any:
        node = self.nodes.get(key)
        if node is None or node.value is None:
            return default
        try:
            return convert(node.plain())
        except Bad as bad:
            self.mistakes.add_bad((key,), bad)
        except ValueError as error:
            self.mistakes.add((key,), str(error))
        return default

    def _read_defaults(self) -> None:
        node = self.nodes.get("defaults")
        if node is None or node.value is None:
            return
        if not isinstance(node.value, dict):
            self.mistakes.add(("defaults",), "expected fields like {timeout: 2h}")
            return
        plain, _ = _split(node)
        for key in [key for key in plain if key in FIELDS and key not in DEFAULT_FIELDS]:
            self.mistakes.add(("defaults", key), "a job's own; it cannot be a default", key=True)
            del plain[key]
        self.defaults, _ = _validate(Defaults, plain, ("defaults",), self.mistakes)


def _selection(value: Plain) -> Selection:
    if isinstance(value, list):
        return parse_selection(list(c.texts(value)))
    return parse_selection(c.scalar(value, "all, a number of cards, or a list like [0, 2]"))


def _limits(value: Plain) -> dict[str, int]:
    if not isinstance(value, dict):
        raise Bad(f"expected names with numbers like {{msa_server: 1}}, found {found(value)}")
    gather = Gather()
    count = c.integer(1, "how many at once: 1, 2 ...")
    limits = {key: gather.take((key,), count, item) for key, item in value.items()}
    gather.done()
    return limits


# ── entries ─────────────────────────────────────────────────────────────────────────────────────


def _split(node: Node) -> tuple[dict[str, Plain], set[str]]:
    """An entry's fields, and those that are null: as if not given, not even by `defaults`."""
    assert isinstance(node.value, dict)
    plain: dict[str, Plain] = {}
    nulls = set()
    for key, child in node.value.items():
        if child.value is None and key in FIELDS and key != "run":
            nulls.add(key)
        else:
            plain[key] = child.plain()
    return plain, nulls


def _validate(
    model: type[BaseModel], plain: dict[str, Plain], where: Steps, mistakes: Mistakes
) -> tuple[dict[str, Any], bool]:
    """The fields that are right, converted; True if all are. Each mistake is added."""
    try:
        entry = model.model_validate(plain)
    except ValidationError as error:
        wrong = set()
        for detail in error.errors(include_url=False, include_input=False):
            wrong.add(_explain(detail, where, mistakes))
        kept = {key: value for key, value in plain.items() if key not in wrong}
        # A required field that is missing must not hide what else is wrong with the entry.
        entry = model.model_validate({"run": ":", **kept} if model is EntryFields else kept)
        return {key: getattr(entry, key) for key in kept}, False
    return {key: getattr(entry, key) for key in plain}, True


def _explain(detail: Any, where: Steps, mistakes: Mistakes) -> str:
    """One of pydantic's errors as ours; the field it is about."""
    field = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        if field in LATER:
            mistakes.add((*where, field), "this version cannot do that yet", key=True)
        else:
            known = DEFAULT_FIELDS if where == ("defaults",) else FIELDS
            message = f"unknown key{did_you_mean(field, known)}"
            mistakes.add((*where, field), message, key=True)
    elif detail["type"] == "missing":
        mistakes.add(where, f"{field}: is missing: the command to run")
    else:
        error = detail["ctx"]["error"]
        bad = error if isinstance(error, Bad) else Bad(str(error))
        mistakes.add_bad((*where, field), bad)
    return field


@dataclass
class _Drafts:
    """All entries expanded: drafts in order, each name once. `complete`: all names are known."""

    context: Context

    def __post_init__(self) -> None:
        self.drafts: list[Draft] = []
        self.names: dict[str, Draft] = {}
        self.firsts: dict[int, str] = {}
        self.complete = True

    def expand(self, root: Node, defaults: dict[str, Any]) -> None:
        assert isinstance(root.value, dict)
        mistakes = self.context.mistakes
        jobs = root.value.get("jobs")
        if jobs is None:
            mistakes.add((), "jobs: is missing: a list of jobs, each with run:")
        elif not isinstance(jobs.value, list) or not jobs.value:
            mistakes.add(("jobs",), "expected a list of jobs, each with run:")
        else:
            for group, node in enumerate(jobs.value):
                self._entry(group, node, defaults)

    def _entry(self, group: int, node: Node, defaults: dict[str, Any]) -> None:
        where: Steps = ("jobs", group)
        mistakes = self.context.mistakes
        if not isinstance(node.value, dict):
            what = found(node.plain())
            mistakes.add(where, f"expected a job like {{name: a, run: ./a.sh}}, found {what}")
            self.complete = False
            return
        plain, nulls = _split(node)
        own, fine = _validate(EntryFields, plain, where, mistakes)
        if any(key in plain and key not in own for key in ("name", "foreach", "matrix", "batch")):
            self.complete = False
            return
        if sum(key in own for key in _ENVIRONMENTS) > 1:
            mistakes.add(where, "python:, venv: and conda: exclude each other; keep one")
            fine = False
        fields = _merged(defaults, own, nulls)

        def lead(field: str) -> Steps:
            return (*where, field) if field in own or field not in defaults else ("defaults", field)

        self._add(Entry(self.context, group, fields, lead, broken=not fine))

    def _add(self, entry: Entry) -> None:
        for draft in entry.drafts():
            first = self.names.setdefault(draft.name, draft)
            if first is not draft:
                self._twice(entry, first, draft)
                continue
            self.drafts.append(draft)
            if entry.fields.get("first"):
                self.firsts.setdefault(entry.group, draft.name)
        self.complete = self.complete and entry.complete

    def _twice(self, entry: Entry, first: Draft, second: Draft) -> None:
        mistakes = self.context.mistakes
        line = tree.place(mistakes.root.find(("jobs", first.group)))[0] + 1
        item = f" for {shorten(second.where)}" if second.where else ""
        taken = f"jobs[{first.group}] in line {line}"
        taken += f" for {shorten(first.where)}" if first.where else ""
        mistakes.add(
            entry.where("name"),
            f"the name {second.name}{item} is taken already, by {taken}; put what tells them"
            " apart into name:",
        )


def _merged(defaults: dict[str, Any], own: dict[str, Any], nulls: set[str]) -> dict[str, Any]:
    """Defaults below, the entry's own above; `env` key by key; one Python environment."""
    if not defaults:
        return own
    fields = {key: value for key, value in defaults.items() if key not in nulls}
    if any(key in own for key in _ENVIRONMENTS):
        for key in _ENVIRONMENTS:
            fields.pop(key, None)
    env = {**fields.get("env", {}), **own.get("env", {})}
    fields.update(own)
    if env:
        fields["env"] = env
    return fields


# ── needs ───────────────────────────────────────────────────────────────────────────────────────


def _resolve(drafts: _Drafts, mistakes: Mistakes) -> list[Job]:
    """The jobs, with the names they wait for. Looked up only where every name is known."""
    if not drafts.complete:
        return []
    resolver = Resolver(Index(drafts.names))
    waits: dict[str, tuple[Names, Names]] = {}
    jobs: list[Job] = []
    shared: dict[str, Names] = {name: (name,) for name in drafts.firsts.values()}
    for draft in drafts.drafts:
        needs = _names(resolver, draft, "needs", mistakes)
        after = _names(resolver, draft, "after", mistakes)
        first = drafts.firsts.get(draft.group)
        if first is not None and first != draft.name and first not in after:
            after = resolver.intern((*after, first)) if after else shared[first]
        waits[draft.name] = (needs, after)
        if draft.job is not None:
            job = replace(draft.job, needs=needs, after=after) if needs or after else draft.job
            jobs.append(job)
    cycle = find_cycle(waits)
    if cycle is not None:
        draft = drafts.names[cycle[0]]
        field = "needs" if any(cycle[1] in names for names in waits[cycle[0]][:1]) else "after"
        mistakes.add(("jobs", draft.group, field), f"a cycle: {spell_cycle(cycle)}")
    return jobs


def _names(resolver: Resolver, draft: Draft, field: str, mistakes: Mistakes) -> Names:
    patterns = draft.needs if field == "needs" else draft.after
    if not patterns:
        return ()
    try:
        return resolver.names(draft.name, patterns)
    except LookupError as error:
        mistakes.add(("jobs", draft.group, field), str(error.args[0]))
        return ()
