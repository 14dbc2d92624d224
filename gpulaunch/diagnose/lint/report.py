"""A plan's findings: the command of every entry, and the files behind it, each place once.

The texts of a job are looked at as they are run, every item filled in; of many jobs that one entry
makes, only a few that differ in what matters.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.model import Job
from gpulaunch.core.template import Text, shown
from gpulaunch.diagnose.lint import finding, shell
from gpulaunch.diagnose.lint.files import (
    CommandStart,
    Files,
    Follow,
    ReadBudget,
)
from gpulaunch.diagnose.lint.finding import (
    Finding,
    Given,
    Placed,
    ProgramRun,
    Suspect,
    heard,
    judged,
    silenced,
)
from gpulaunch.jobfile import tree
from gpulaunch.jobfile.mistakes import Mistakes, not_expanded
from gpulaunch.jobfile.placeholders import OF_PATHS, START, compile_raw, names_in
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.shell import Word, commands_in, outline
from gpulaunch.jobfile.tree import YamlNode
from gpulaunch.jobfile.values import SHELLS, dialect

# ── jobs ────────────────────────────────────────────────────────────────────────────────────────

MAX_JOBS_PER_ENTRY = 64
"""Jobs of one entry that are looked at each by itself."""

_MATTERS = (
    r"(?i)\{\{[^{}]*\}\}(?=\S*\.(?:py|sh))"
    r"|(?:python[0-9.]*|bash|sh|torchrun)\s+\S*\{\{"
    r"|(?:device|gpus?|cuda|port|proc\w*|parallel|ids?)[\w-]*[ =]+\S*\{\{|[A-Z_]=\S*\{\{|cuda:\{\{"
)
"""Not compiled before it is used: that takes 4 ms."""

_WORTH = re.compile(
    r"cuda|gpu|device|port|visible|docker|podman|nerdctl|apptainer|singularity|parallel|nproc|proc|deepspeed|accelerate|tp"
    r"|\|\||\bwait\b|setsid|\btee\b|\becho\b"
    r"|main|llama|rdzv|srun|sbatch|qsub|bsub|salloc|systemd|\b(?:at|cd|tmux|screen|batch|tsp)\b|pueue|ORDER",
    re.IGNORECASE,
)
# From a word's start alone: to try each of its letters takes 20 s for a word of 100,000.
_SCRIPTS = re.compile(r"(?<!\S)\S+\.(?:py|sh|bash)\b|-m\s+\S+|(?:^|[\s;&|])\S*/\S+|[\"'$]")


def variants(jobs: Sequence[Job], typed: Callable[[], str]) -> Sequence[Job]:
    """Return an entry's jobs whose commands are looked at. `typed`: the text in the job file."""
    if len(jobs) == 1 or not re.search(_MATTERS, typed()):
        return jobs[:1]
    return some_of(jobs)


def some_of(jobs: Sequence[Job]) -> Sequence[Job]:
    """Return as many of an entry's jobs as are looked at each by itself, from all over it."""
    step = max(1, len(jobs) // MAX_JOBS_PER_ENTRY)
    return jobs[::step][:MAX_JOBS_PER_ENTRY]


def alike(job: Job) -> object:
    """Return a value that is equal for jobs of whose commands one look tells all.

    Where nothing is suspect in a command itself, only the scripts count that it names.
    """
    texts = job.run if isinstance(job.run, tuple) else (job.run,)
    text = " ".join(map(shown, texts))
    if _WORTH.search(text):
        return text, job.cwd, job.shell, job.group
    return tuple(_SCRIPTS.findall(text)), job.cwd, job.shell


def given(jobs: Iterable[Job], by_uuid: Collection[str]) -> list[Given]:
    """Return what these jobs have, each kind once.

    `by_uuid`: kinds of isolation under which the machine's masks name UUIDs.
    """
    kinds = {
        (job.demand.gpus, _named_by_uuid(job, by_uuid), job.isolation == "strict") for job in jobs
    }
    return [Given(gpus, uuid, strict) for gpus, uuid, strict in sorted(kinds)]


def _named_by_uuid(job: Job, by_uuid: Collection[str]) -> bool:
    if not job.demand.gpus:
        return False
    if job.container is not None:  # the others show the job's cards alone, without a mask
        engine, image = job.container.engine, job.container.image
        return engine in ("apptainer", "singularity") or (not engine and image.endswith(".sif"))
    return job.visible == "uuid" or job.demand.mps or job.isolation in by_uuid


def looked_at(job: Job) -> shell.ShellScan:
    """Return what is suspect in a job's command, and what it runs."""
    if isinstance(job.run, tuple):
        return _list(job, [shown(text) for text in job.run])
    kind = dialect(job.shell)
    return _script(job, shown(job.run), kind, job.shell) if kind else shell.ShellScan()


def _script(job: Job, text: str, kind: str, words: Sequence[str]) -> shell.ShellScan:
    return shell.look(text, kind, _masks(job), words)


def _list(job: Job, words: list[str]) -> shell.ShellScan:
    scan = shell.look_words(words, _masks(job))
    which, kind = script_in(words)
    if not which:
        return scan
    inner = _script(job, words[which], kind, words[:which])
    found = (replace(one, number=which) for one in inner.found)
    return shell.ShellScan((*scan.found, *found), inner.runs)


def _masks(job: Job) -> list[str]:
    return [name for name in job.env if finding.hands_on(name)]


def script_in(words: list[str]) -> tuple[int, str]:
    """Return where the script of `[bash, -c, SCRIPT]` stands, and its dialect; 0 if nowhere."""
    name = words[0].rsplit("/", 1)[-1] if words else ""
    flags = [i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)]
    if name in SHELLS and flags and flags[0] + 1 < len(words):
        return flags[0] + 1, name
    return 0, ""


def place_of_word(mistakes: Mistakes, run: YamlNode, job: Job, word: Word, number: int = 0) -> int:
    """Place a word of a job's command or, in a list, of its element `number`.

    The command as typed has the same words as the one filled in, so its n-th word is meant.
    """
    node = run.value[number] if isinstance(run.value, list) else run
    kind = dialect(job.shell) or "bash"
    text = shown(job.run[number] if isinstance(job.run, tuple) else job.run)
    typed = str(node.value)
    if not word.end or not isinstance(node.value, str):
        return node.at
    both = (list(_words(one, kind)) for one in (text, typed))
    for filled, there in zip(*both, strict=False):
        if filled.start == word.start:
            return _place_of(mistakes, node, there, typed)
    return node.at


def _place_of(mistakes: Mistakes, node: YamlNode, word: Word, script: str) -> int:
    """Return the place in the file of a word of `script`, which is the node's text."""
    text = script[word.start : word.end].partition("=")[0]
    if not text:
        return node.at
    pattern = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    number = sum(1 for _ in pattern.finditer(script, 0, word.start))
    return mistakes.inside(node.at, pattern, number)


def _words(text: str, kind: str) -> Iterator[Word]:
    for command in commands_in(text, kind):
        yield from command.assignments
        yield from (command.name,) if command.name else ()
        yield from command.arguments


def start_of(run: ProgramRun, job: Job) -> CommandStart:
    """Return where a job's command looks for the file that it runs."""
    path = job.env.get("PYTHONPATH")
    parts = path.split(":") if isinstance(path, str) else []
    cwd = run.cwd if run.cwd.startswith("/") else f"{job.cwd}/{run.cwd}"
    absolute = [part for part in parts if part[:1] == "/" and is_here(job, part)]
    return CommandStart(run, posixpath.normpath(cwd), tuple(absolute[:10]))


def starts_of(job: Job, scan: shell.ShellScan) -> list[CommandStart]:
    """Return what a job's command runs of this machine's files, and from where."""
    starts = [start_of(run, job) for run in scan.runs]
    return [one for one in starts if is_here(job, posixpath.join(one.cwd, one.run.what))]


def is_here(job: Job, path: str) -> bool:
    """Tell whether a path that a job names is that of this machine, also in its container.

    There, the job's directory and what is mounted by its own name are.
    """
    if job.container is None:
        return True
    path = posixpath.normpath(path)
    over = [mount for mount in job.container.mounts if _is_below(path, mount.target)]
    if over:
        nearest = max(over, key=lambda mount: len(mount.target))
        return nearest.source == nearest.target
    return _is_below(path, job.cwd)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


# ── the files with jobs' code ─────────────────────────────────────────────────────────────────────


class JobsCode:
    """Finds the files with jobs' code, of more and more jobs. `budget`: for one call."""

    def __init__(self, budget: Callable[[], ReadBudget] = ReadBudget) -> None:
        self._budget = budget
        self._files = Files("/", budget())
        self._follow = Follow(self._files)
        self._seen: set[object] = set()

    def of(self, jobs: Iterable[Job]) -> Mapping[str, set[int]]:
        """Return the files that these jobs' commands lead to, each with the entries it is of.

        Absolute paths; what is installed is left out, and what an earlier call has looked at.
        """
        self._files.budget = self._budget()
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            groups.setdefault(job.group, []).append(job)
        found: dict[str, set[int]] = {}
        for group, members in groups.items():
            for job in some_of(members):
                for path in self._code_of(job):
                    found.setdefault(path, set()).add(group)
        return found

    def _code_of(self, job: Job) -> Iterator[str]:
        key = (alike(job), job.group, job.env_file)
        if key in self._seen:
            return
        self._seen.add(key)
        if job.env_file is not None:
            yield job.env_file
        for start in starts_of(job, looked_at(job)):
            yield from self._follow.files_of(start)


# ── one brace where two are meant ─────────────────────────────────────────────────────────────────

SINGLE = re.compile(r"(?<![{$\\])\{([^\W\d][\w-]*)\}(?![}<>])")
_OTHERS = re.compile(r"\b(?:xargs|parallel)\b")
"""Programs in whose commands a person may call an item as they like: xargs -I {path}."""
_NO_PATHS = frozenset({"csv", "fasta", "cards"})
_ONE_WORD = re.compile(r"[\w./=:,+@%{}-]+")


def _names_of(job: Job, foreach: str | None) -> frozenset[str]:
    """Return the names that a job's placeholders may have.

    `foreach`: which kind of items it has, empty for paths and None for none.
    """
    names = {*START, "job", *job.params, *(job.ladder.names if job.ladder else ())}
    if job.batch is not None:
        return frozenset({*names, "index", "batch_dir"})
    if foreach is not None:
        names |= {"item", "index"}
        names |= {"path"} if foreach == "fasta" else set()
        names |= set() if foreach in _NO_PATHS else {*OF_PATHS}
    return frozenset(names)


def _single_in(typed: str, kind: str, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the number among SINGLE's matches in a text, and the name, of each that is meant so.

    `typed`: the text as it stands in the file; `kind`: the shell that runs it, empty for an element
    of a list. `names` are those of the job's placeholders.
    """
    found = list(SINGLE.finditer(typed))
    if not any(match[1] in names for match in found):
        return
    if kind:
        code = "" if _OTHERS.search(typed) else outline(typed, kind)
    else:
        code = typed if _ONE_WORD.fullmatch(typed) else ""
    for number, match in enumerate(found):
        if match[1] in names and code[match.start() : match.end()] == match[0]:
            yield number, match[1]


# ── the report ────────────────────────────────────────────────────────────────────────────────────

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
    `by_uuid`: as for `given`.
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
        kinds = given(jobs, self.by_uuid)
        quiet = self.plan.source.line(tree.place(run().key_at)[0]) if self.comments else ""
        own = (self._environment, self._braces, self._name, self._unexpanded)
        for found in chain.from_iterable(look(jobs[0], kinds) for look in own):
            if not silenced(quiet, found.rule):
                yield found, True
        for job in variants(jobs, lambda: _text(run())):
            key = (alike(job), quiet, *kinds)
            if key in self.seen:
                continue
            self.seen.add(key)
            for found, here in self._of(job, kinds, run):
                if not silenced(quiet, found.rule):
                    yield found, here

    def _of(
        self, job: Job, kinds: Sequence[Given], run: Callable[[], YamlNode]
    ) -> Iterator[tuple[Finding, bool]]:
        scan = looked_at(job)
        starts = starts_of(job, scan)
        for one in scan.found:
            at = place_of_word(self._mistakes, run(), job, one.word, one.number)
            for found in self._at(at, one.suspect, kinds):
                yield found, True
        for start in starts:
            for kind in kinds:
                for found in self.follow.findings(start, kind):
                    yield found, False

    def _environment(self, job: Job, kinds: Sequence[Given]) -> Iterator[Finding]:
        """Yield a finding for a port in `env:` that is the same for all jobs of an entry."""
        port = job.env.get(finding.PORT)
        if not isinstance(port, str) or not port.isdigit() or port == "0":
            return
        at = self.plan.root.find(("jobs", job.group, "env", finding.PORT))
        yield from self._at(at, finding.port(f"{finding.PORT}: {port}"), kinds)

    def _braces(self, job: Job, kinds: Sequence[Given]) -> Iterator[Finding]:
        """Yield a finding for each `{path}` in an entry's command that is meant as `{{path}}`."""
        filled = job.run if isinstance(job.run, tuple) else (job.run,)
        if not any(SINGLE.search(shown(text)) for text in filled):
            return
        run = self._run_node(job.group)
        parts = run.value if isinstance(run.value, list) else [run]
        texts = [node.value if isinstance(node.value, str) else "" for node in parts]
        names = _names_of(job, self._foreach(job.group))
        script, shell = script_in(texts) if parts is run.value else (0, dialect(job.shell))
        for number, (node, text) in enumerate(zip(parts, texts, strict=True)):
            kind = (shell or "") if number == script else ""
            for which, name in _single_in(text, kind, names):
                at = self._mistakes.inside(node.at, SINGLE, which)
                yield from self._at(at, finding.single_brace(name), kinds)

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
            yield from self._at(name.at, finding.index_name(), kinds)

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
