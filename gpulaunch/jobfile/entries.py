"""Expands all entries, checks that each name is unique, and resolves what jobs wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.core.model import Job
from gpulaunch.jobfile import tree
from gpulaunch.jobfile.drafts import MAX_JOBS, Draft, ExpansionContext
from gpulaunch.jobfile.expand import EntryExpansion
from gpulaunch.jobfile.fields import JOB, engines_merged
from gpulaunch.jobfile.file_keys import Beside, split, validate
from gpulaunch.jobfile.mistakes import FieldError, Mistakes
from gpulaunch.jobfile.needs import (
    Index,
    Joined,
    Names,
    NameShape,
    Pattern,
    Resolver,
    find_cycles,
    shape_of,
    spell_cycle,
)
from gpulaunch.jobfile.suggest import shorten
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import YamlNode
from gpulaunch.jobfile.values import found, is_end, same_addresses, spell_end, with_ends

_CYCLES = 20
_ENVIRONMENTS = ("python", "venv", "conda")
_EXPANDING = frozenset({"name", "foreach", "matrix", "sample", "batch", "ladder"})


class Drafts(Struct):
    """All entries expanded: drafts in order, each name once.

    `bare`: what is known of entries whose items are not; `shapes`: of the names of jobs that are
    not known, those they may have; `growing`: of entries whose items come as the run goes on.
    `wrong_defaults`: fields of `defaults:` that could not be read.
    """

    context: ExpansionContext
    wrong_defaults: frozenset[str] = frozenset()
    drafts: list[Draft] = field(default_factory=list)
    names: dict[str, Draft] = field(default_factory=dict)
    firsts: dict[int, str] = field(default_factory=dict)
    bare: list[Draft] = field(default_factory=list)
    shapes: list[NameShape] = field(default_factory=list)
    growing: list[NameShape] = field(default_factory=list)

    def startable(self) -> list[Job]:
        """Return the jobs that wait for no other job, as far as it is known what they run."""
        return [
            draft.job
            for draft in (*self.drafts, *self.bare)
            if draft.job is not None and draft.sound and not (draft.needs or draft.after)
        ]

    def expand(self, root: YamlNode, defaults: dict[str, Any]) -> None:
        """Expand every entry; mistakes are added."""
        assert isinstance(root.value, dict)
        mistakes = self.context.mistakes
        jobs = root.value.get("jobs")
        if jobs is None:
            mistakes.add((), "jobs: is missing: a list of jobs, each with run:")
        elif mistakes.source.is_list and not jobs.value:
            if not (self.context.following or mistakes.count):
                mistakes.add((), "no commands: a list has one in each line that is no comment")
        elif not isinstance(jobs.value, list) or not jobs.value:
            mistakes.add(("jobs",), "expected a list of jobs, each with run:")
        elif len(jobs.value) > MAX_JOBS:
            mistakes.add(("jobs",), f"more than {MAX_JOBS:,} jobs; run them in parts")
        else:
            for group, node in enumerate(jobs.value):
                self._entry(group, node, defaults)

    def _entry(self, group: int, node: YamlNode, defaults: dict[str, Any]) -> None:
        where: Steps = ("jobs", group)
        mistakes = self.context.mistakes
        if not isinstance(node.value, dict):
            what = found(node.plain())
            mistakes.add(where, f"expected a job like {{name: a, run: ./a.sh}}, found {what}")
            self.shapes.append(shape_of(None, False, group))
            return
        plain, nulls = split(node)
        own, fine = validate(JOB, plain, where, mistakes)
        wrong = frozenset(plain) - frozenset(own)
        if not _says_what_runs(plain, where, mistakes):
            fine = False
        if sum(key in own for key in _ENVIRONMENTS) > 1:
            mistakes.add(where, "python:, venv: and conda: exclude each other; keep one")
            fine, wrong = False, wrong | {"python"}
        fields = merged(defaults, own, nulls)

        def lead(field: str) -> Steps:
            return (*where, field) if field in own or field not in defaults else ("defaults", field)

        wrong |= self.wrong_defaults - frozenset(own) - nulls
        entry = EntryExpansion(self.context, group, fields, lead, broken=not fine, wrong=wrong)
        if wrong.isdisjoint(_EXPANDING):
            self._add(entry)
        else:
            self.bare.append(entry.bare())
            entry.complete = False
        if entry.complete and not entry.grows:
            return
        expands = not {"foreach", "matrix"}.isdisjoint(plain)
        shapes = self.growing if entry.complete else self.shapes
        shapes.append(shape_of(plain.get("name"), expands, group))

    def _add(self, entry: EntryExpansion) -> None:
        made = False
        for draft in entry.drafts():
            made = True
            first = self.names.setdefault(draft.name, draft)
            if first is not draft:
                self._twice(entry, first, draft)
                continue
            self.drafts.append(draft)
            if entry.fields.get("first"):
                self.firsts.setdefault(entry.group, draft.name)
        if entry.broken and not made:
            self.bare.append(entry.bare())

    def _twice(self, entry: EntryExpansion, first: Draft, second: Draft) -> None:
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


def _says_what_runs(plain: dict[str, Any], where: Steps, mistakes: Mistakes) -> bool:
    """Tell whether the entry has either a command or a worker; adds a mistake if not."""
    if "run" not in plain and "worker" not in plain:
        mistakes.add(where, "run: is missing: the command to run")
    elif "run" in plain and "worker" in plain:
        mistakes.add((*where, "worker"), "run: and worker: exclude each other; keep one", key=True)
    elif "worker" in plain and "service" in plain:
        text = "a service runs beside the jobs, a worker takes one after the other; keep one"
        mistakes.add((*where, "worker"), text, key=True)
    else:
        return True
    return False


ENDS_BY_ITSELF = ("timeout", "idle_timeout", "gpu_idle", "outputs")
"""Fields for jobs that end by themselves: as defaults they hold for no service."""


def merged(
    defaults: dict[str, Any], own: dict[str, Any], nulls: Collection[str] = ()
) -> dict[str, Any]:
    """Return defaults and an entry's own fields, which win; merges `env`, `engine` key by key.

    Of the defaults, a service has no limits and no results of jobs that end by themselves.
    """
    if not defaults:
        return own
    dropped = {*nulls, *(ENDS_BY_ITSELF if "service" in own else ())}
    fields = {key: value for key, value in defaults.items() if key not in dropped}
    if any(key in own for key in _ENVIRONMENTS):
        for key in _ENVIRONMENTS:
            fields.pop(key, None)
    env = {**fields.get("env", {}), **own.get("env", {})}
    engine = engines_merged(fields.get("engine", {}), own.get("engine", {}))
    fields.update(own)
    if "engine" in fields:
        fields["engine"] = engine
    if env:
        fields["env"] = env
    return fields


# ── needs ────────────────────────────────────────────────────────────────────────────────────────


def resolved(drafts: Drafts, mistakes: Mistakes, beside: Beside) -> tuple[list[Job], Names]:
    """Return the jobs with the names they wait for, which may be those of unknown jobs.

    Where sources are followed, also the names of jobs that are left out for now. None of those
    `beside` waits for these.
    """
    others = beside.names
    index = Index(Joined(drafts.names, others) if others else drafts.names)
    resolver = Resolver(index, [*drafts.shapes, *drafts.growing])
    waits: dict[str, tuple[Names, Names]] = {}
    jobs: list[Job] = []
    shared: dict[str, Names] = {name: (name,) for name in drafts.firsts.values()}
    for draft in drafts.drafts:
        needs, after = _waits(resolver, draft, mistakes)
        first = drafts.firsts.get(draft.group)
        if first is not None and first != draft.name and first not in after:
            after = resolver.intern((*after, first)) if after else shared[first]
        waits[draft.name] = (needs, after)
        if draft.job is not None:
            job = replace(draft.job, needs=needs, after=after) if needs or after else draft.job
            jobs.append(job)
    for draft in drafts.bare:
        _waits(resolver, draft, mistakes)
    services = [draft.name for draft in drafts.drafts if draft.serves]
    for name, first_name, variable in same_addresses(services):
        mistakes.add(
            ("jobs", drafts.names[name].group, "name"),
            f"the address of the service {name} would be {variable}, as that of {first_name};"
            " rename one of them",
        )
    _find_cycles(drafts, waits, frozenset(services), mistakes)
    if not drafts.growing:
        return jobs, ()
    held = _held(drafts, waits, resolver)
    return [job for job in jobs if job.name not in held], tuple(held)


def _held(
    drafts: Drafts, waits: Mapping[str, tuple[Names, Names]], resolver: Resolver
) -> dict[str, None]:
    """Return the jobs that wait for jobs still to come: for all of a kind, or for one not there.

    Also those that wait for such a job.
    """
    following = drafts.context.following
    more = following is not None and following.more
    held: dict[str, None] = {}
    for draft in drafts.drafts:
        gathers = more and any(
            shape.may_be(one) for one in draft.gathers for shape in drafts.growing
        )
        if gathers or not all(map(resolver.index.match, _singles(draft))):
            held[draft.name] = None
    if not held:
        return held
    followers: dict[str, list[str]] = {}
    for name, (needs, after) in waits.items():
        for other in (*needs, *after):
            followers.setdefault(other, []).append(name)
    todo = list(held)
    while todo:
        for name in followers.get(todo.pop(), ()):
            if name not in held:
                held[name] = None
                todo.append(name)
    return held


def _singles(draft: Draft) -> Iterator[Pattern]:
    """Yield what the job waits for besides all jobs of a kind: without it, it cannot start."""
    return (one for one in (*draft.needs, *draft.after) if one not in draft.gathers)


def _find_cycles(
    drafts: Drafts,
    waits: Mapping[str, tuple[Names, Names]],
    services: frozenset[str],
    mistakes: Mistakes,
) -> None:
    graph = with_ends(waits, services) if services else waits
    for cycle in islice(find_cycles(graph), _CYCLES):
        start = next((i for i, name in enumerate(cycle) if not is_end(name)), None)
        if start is None:
            continue  # services that need each other: reported as a cycle of their starts
        cycle = [*cycle[start:-1], *cycle[:start], cycle[start]]
        job, following = cycle[0], cycle[1]
        field = "needs" if following in waits[job][0] else "after"
        ends = any(map(is_end, cycle))
        note = "; a service ends when all that need it have ended" if ends else ""
        shown = spell_cycle([spell_end(name) for name in cycle])
        mistakes.add(("jobs", drafts.names[job].group, field), f"a cycle: {shown}{note}")


def _waits(resolver: Resolver, draft: Draft, mistakes: Mistakes) -> tuple[Names, Names]:
    """Return the names of what a job needs, and of what it comes after."""
    found: list[Names] = []
    for key, patterns in (("needs", draft.needs), ("after", draft.after)):
        try:
            found.append(resolver.names(draft.name, patterns) if patterns else ())
        except FieldError as bad:
            mistakes.add_bad(("jobs", draft.group, key), bad)
            found.append(resolver.matching(draft.name, patterns))
    return found[0], found[1]
