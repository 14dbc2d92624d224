"""A plan's findings: every entry's command, and the files behind it, each place once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain

from msgspec import Struct

from gpulaunch.core.model import Job
from gpulaunch.core.template import Text, shown
from gpulaunch.diagnose.lint import braces, wording
from gpulaunch.diagnose.lint import jobs as of_jobs
from gpulaunch.diagnose.lint.files import Files, ReadBudget
from gpulaunch.diagnose.lint.finding import Finding, Given, Placed, Suspect, heard, judged, silenced
from gpulaunch.diagnose.lint.follow import Follow
from gpulaunch.jobfile import Plan, tree
from gpulaunch.jobfile.mistakes import Mistakes
from gpulaunch.jobfile.placeholders import compile_raw, names_in
from gpulaunch.jobfile.tree import YamlNode
from gpulaunch.jobfile.unexpanded import not_expanded
from gpulaunch.jobfile.values import SHELLS, dialect

_OF_A_FILE = frozenset({"stem", "name", "path", "item"})
"""Placeholders by which a job's name tells its file."""


_FOR_A_SHELL = re.compile(r"[$`~&|;<>]|(?<!\{)\{[^{}]*(?:,|\.\.)")
_PASS_ON = frozenset({*SHELLS, "ssh", "eval", "parallel", "xargs", "srun", "tmux", "find", "expr"})
"""Programs whose arguments are for another shell, or mean something else by `;` and `|`."""


def _is_for_a_shell(run: Sequence[Text]) -> bool:
    return any(shown(text).rpartition("/")[2] in _PASS_ON for text in run)


class LintReport(Struct, frozen=True):
    """`note` says, in a line, what was not looked at; empty where everything was."""

    findings: tuple[Finding, ...] = ()
    note: str = ""


def report(
    plan: Plan,
    jobs: Sequence[Job] | None = None,
    budget: ReadBudget | None = None,
    by_uuid: Collection[str] = (),
) -> LintReport:
    """Return what in jobs' commands and scripts does not suit their cards; by default all jobs'.

    In the order of the files, the job file first; and what was left out because of the budget.
    `by_uuid`: as for `jobs.given`.
    """
    budget = budget or ReadBudget()
    looking = _PlanScan(plan, Files(os.getcwd(), budget), by_uuid)
    found = looking.all(plan.jobs if jobs is None else jobs)
    note = f"not every script was looked at: {budget.why}" if budget.why else ""
    return LintReport(tuple(found), note)


class _PlanScan:
    def __init__(self, plan: Plan, files: Files, by_uuid: Collection[str]) -> None:
        self.plan = plan
        self.files = files
        self.follow = Follow(files)
        mig = any(name.startswith("MIG-") for name in plan.selection.which or ())
        self.by_uuid = ("env", "strict") if mig else by_uuid
        self.comments = "gpulaunch:" in plan.source.text
        self.seen: set[object] = set()

    def all(self, jobs: Iterable[Job]) -> list[Finding]:
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            groups.setdefault(job.group, []).append(job)
        first: dict[tuple[bool, str, int, int, str], Finding] = {}
        for members in groups.values():
            if not self.files.budget.left():
                break
            for found, here in self._entry(members):
                place = (not here, found.path, found.line, found.column, found.rule)
                first.setdefault(place, found)
        return [first[place] for place in sorted(first)]

    def _entry(self, jobs: list[Job]) -> Iterator[tuple[Finding, bool]]:
        """Yield (finding, whether it is in the job file itself) of one entry's jobs."""
        run = partial(self._run_node, jobs[0].group)
        kinds = of_jobs.given(jobs, self.by_uuid)
        quiet = self.plan.source.line(tree.place(run().key_at)[0]) if self.comments else ""
        own = (self._environment, self._braces, self._name, self._unexpanded)
        for found in self._env_file(jobs[0], kinds):
            yield found, False
        for found in chain.from_iterable(look(jobs[0], kinds) for look in own):
            if not silenced(quiet, found.rule):
                yield found, True
        for job in of_jobs.variants(jobs, lambda: _text(run())):
            key = (of_jobs.alike(job), quiet, *kinds)
            if key in self.seen:
                continue
            self.seen.add(key)
            for found, here in self._of(job, kinds, run):
                if not silenced(quiet, found.rule):
                    yield found, here

    def _of(
        self, job: Job, kinds: Sequence[Given], run: Callable[[], YamlNode]
    ) -> Iterator[tuple[Finding, bool]]:
        scan = of_jobs.looked_at(job)
        starts = of_jobs.starts_of(job, scan)
        indices = frozenset[str]().union(*map(self.follow.indices, starts))
        if indices:
            scan = of_jobs.looked_at(job, indices)
        for one in scan.found:
            at = of_jobs.place_of_word(self._mistakes, run(), job, one.word, one.number)
            for found in self._at(at, one.suspect, kinds):
                yield found, True
        for start in starts:
            for kind in kinds:
                for found in self.follow.findings(start, kind):
                    yield found, False

    def _environment(self, job: Job, kinds: Sequence[Given]) -> Iterator[Finding]:
        """Yield a finding for a port in `env:` that is the same for all jobs of an entry.

        And for JAX's memory, all of which a job that shares its card must not take.
        """
        takes = job.env.get(wording.PREALLOCATE)
        if isinstance(takes, str) and takes.lower() in ("true", "1"):
            at = self.plan.root.find(("jobs", job.group, "env", wording.PREALLOCATE))
            said = f"{wording.PREALLOCATE}: {takes}"
            yield from self._at(at, wording.preallocates(said), kinds)
        port = job.env.get(wording.PORT)
        if not isinstance(port, str) or not port.isdigit() or port == "0":
            return
        at = self.plan.root.find(("jobs", job.group, "env", wording.PORT))
        yield from self._at(at, wording.port(f"{wording.PORT}: {port}"), kinds)

    def _braces(self, job: Job, kinds: Sequence[Given]) -> Iterator[Finding]:
        """Yield a finding for each `{path}` in an entry's command that is meant as `{{path}}`."""
        filled = job.run if isinstance(job.run, tuple) else (job.run,)
        if not any(braces.SINGLE.search(shown(text)) for text in filled):
            return
        run = self._run_node(job.group)
        parts = run.value if isinstance(run.value, list) else [run]
        texts = [node.value if isinstance(node.value, str) else "" for node in parts]
        names = braces.names_of(job, self._foreach(job.group))
        script, shell = of_jobs.script_in(texts) if parts is run.value else (0, dialect(job.shell))
        for number, (node, text) in enumerate(zip(parts, texts, strict=True)):
            kind = (shell or "") if number == script else ""
            for which, name in braces.single_in(text, kind, names):
                at = self._mistakes.inside(node.at, braces.SINGLE, which)
                yield from self._at(at, wording.single_brace(name), kinds)

    def _name(self, job: Job, kinds: Sequence[Given]) -> Iterator[Finding]:
        """Yield a finding for `name: fold-{{index}}` of jobs that a glob makes."""
        numbered = "{{index}}" in self.plan.source.text
        if not numbered or job.batch or self._foreach(job.group) != "":
            return
        name = tree.node_at(self.plan.root, ("jobs", job.group, "name"))
        if name is None or not isinstance(name.value, str):
            return
        inserted = set(names_in(compile_raw(name.value)))
        if "index" in inserted and inserted.isdisjoint(_OF_A_FILE):
            yield from self._at(name.at, wording.index_name(), kinds)

    def _unexpanded(self, job: Job, kinds: Sequence[Given]) -> Iterator[Finding]:
        """Yield a finding for each text with what only a shell would expand."""
        container = job.container
        texts = [shown(text) for text in (*job.outputs, *job.env.values()) if text is not None]
        texts += job.params.values()
        arguments = job.run if isinstance(job.run, tuple) and job.worker is None else ()
        listed = bool(arguments) and not _is_for_a_shell(arguments)
        texts += map(shown, arguments) if listed else ()
        texts += container.args if container is not None else ()
        if not any(_FOR_A_SHELL.search(text) for text in texts):
            return
        fields = ("env", "outputs", "foreach", "matrix", "container", *(("run",) * listed))
        for field in fields:
            steps: tuple[str | int, ...] = ("jobs", job.group, field)
            node = tree.node_at(self.plan.root, steps)
            node = node or tree.node_at(self.plan.root, ("defaults", field))
            for key, leaf in _leaves(node) if node is not None else ():
                if found := not_expanded(str(leaf.value), field, key):
                    yield from self._at(leaf.at, Suspect("not-expanded", *found), kinds)

    def _env_file(self, job: Job, kinds: Sequence[Given]) -> Iterator[Finding]:
        """Yield a finding for each `PATH=/x:$PATH` of the job's `env_file`."""
        text = self.files.text(job.env_file) if job.env_file is not None else None
        if text is None or job.env_file is None:
            return
        lines = text.split("\n")
        placed = []
        for number, line in enumerate(lines):
            name, _, value = line.removeprefix("export ").partition("=")
            found = not_expanded(value.strip('"'), "env", name.strip())
            if found and value[:1] != "'" and not line.lstrip().startswith("#"):
                suspect = Suspect("not-expanded", *found)
                placed.append(Placed(suspect, number, line.index("=") + 1, number))
        yield from judged(self.files.shown(job.env_file), heard(placed, lines), lines, kinds)

    def _foreach(self, group: int) -> str | None:
        """Return which kind of `foreach:` an entry has, empty for one of paths; None for none."""
        node = tree.node_at(self.plan.root, ("jobs", group, "foreach"))
        if node is None:
            return None
        if isinstance(node.value, dict):
            return next(iter(node.value), "")
        return "cards" if node.value == "cards" else ""

    def _at(self, at: int, suspect: Suspect, kinds: Sequence[Given]) -> Iterator[Finding]:
        line, column = tree.place(at)
        lines = self.plan.source.lines
        placed = heard([Placed(suspect, line, column, line)], lines)
        yield from judged(self.plan.source.name, placed, lines, kinds)

    @cached_property
    def _mistakes(self) -> Mistakes:
        return self.plan.no_mistakes()

    def _run_node(self, group: int) -> YamlNode:
        """Return the entry's `run:`, or what its worker runs."""
        for steps in (("run",), ("worker", "run"), ("worker", "function"), ("worker",)):
            if node := tree.node_at(self.plan.root, ("jobs", group, *steps)):
                return node
        return self.plan.root


def _leaves(node: YamlNode, key: str = "") -> Iterator[tuple[str, YamlNode]]:
    """Yield the texts below a node, each with the first key that leads to it."""
    if isinstance(node.value, dict):
        for name, inner in node.value.items():
            yield from _leaves(inner, key or name)
    elif isinstance(node.value, list):
        for inner in node.value:
            yield from _leaves(inner, key)
    elif isinstance(node.value, str):
        yield key, node


def _text(run: YamlNode) -> str:
    if isinstance(run.value, list):
        return " ".join(str(node.value) for node in run.value)
    return str(run.value)
