"""One entry of the file, validated, to its Jobs: items, names, placeholders, defaults.

`needs` and `after` are left as patterns in a Draft, because they name jobs of other entries.

    fields ──Entry──▶ for item: values ──▶ name ──▶ texts filled, Deferred converted ──▶ Draft
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gpulaunch.core.model import Demand, Job, RetryPolicy, Service
from gpulaunch.core.template import Text, fill
from gpulaunch.errors import UsageError
from gpulaunch.spec import places
from gpulaunch.spec.convert import UNFIT, Matrix
from gpulaunch.spec.digest import digest
from gpulaunch.spec.fields import Deferred, compiled_names, filled
from gpulaunch.spec.items import Item, Items, open_items, resolve
from gpulaunch.spec.mistakes import Bad, Mistakes
from gpulaunch.spec.needs import Pattern, is_constant, pattern_of
from gpulaunch.spec.placeholders import (
    START,
    compile_raw,
    insert,
    names_in,
    unknown,
)
from gpulaunch.spec.shell import compile_script
from gpulaunch.spec.tree import Path as Steps
from gpulaunch.spec.values import dialect

MAX_JOBS = 1_000_000
MAX_NAME = 200
MAX_TEXT = 131_071
"""Bytes that Linux takes in one argument or variable (MAX_ARG_STRLEN, less the closing NUL)."""

Fields: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Mapping[str, str]

_DEFAULT_SHELL = Job(name="", run="").shell
_IN_TEXTS = "run", "env", "outputs", "service.ready"


@dataclass(frozen=True, slots=True)
class Draft:
    """A job but for what it waits for. `job` is None where a field of it is wrong."""

    name: str
    where: str
    group: int
    job: Job | None
    needs: tuple[Pattern, ...] = ()
    after: tuple[Pattern, ...] = ()


@dataclass(slots=True)
class Context:
    """What all entries share: the file's directory and environment, and what was looked up."""

    base: Path
    environ: Mapping[str, str]
    mistakes: Mistakes
    limits: Mapping[str, int]
    per_gpu: int = 1
    jobs: int = 0
    seen: dict[tuple[str, str], str | Bad] = field(default_factory=dict)
    scripts: dict[tuple[str, str], tuple[Text, list[str]]] = field(default_factory=dict)

    @property
    def home(self) -> str:
        return places.home_of(self.environ)

    def look(self, kind: str, text: str, find: Callable[[], str]) -> str:
        """What `find` returns or raises (Bad), asked of the file system once per text."""
        known = self.seen.get((kind, text))
        if known is None:
            try:
                known = find()
            except Bad as bad:
                known = bad
            self.seen[kind, text] = known
        if isinstance(known, Bad):
            raise known
        return known


@dataclass(slots=True)
class Entry:
    """An entry being expanded. `fields` are converted or Deferred; `where` leads to each of them.

    `broken`: some field was wrong and is not in `fields`, so no Job can be made.
    """

    context: Context
    group: int
    fields: Fields
    where: Callable[[str], Steps]
    broken: bool = False

    def drafts(self) -> Iterator[Draft] | None:
        """Its jobs, mistakes added; None where not even their names can be known."""
        try:
            items = self._open()
        except Bad as bad:
            self._add("foreach", bad)
            return None
        compiled = _Compiled(self, items)
        if not compiled.check():
            self.broken = True
        if compiled.name_broken:
            return None
        return self._expand(compiled, items)

    def _expand(self, compiled: _Compiled, items: Items) -> Iterator[Draft]:
        context = self.context
        combinations = self._combinations()
        try:
            for item in self._batched(items):
                for axes in combinations:
                    context.jobs += 1
                    if context.jobs > MAX_JOBS:
                        raise Bad(f"more than {MAX_JOBS:,} jobs in this file")
                    draft = self._draft(compiled, item, axes)
                    if draft is not None:
                        yield draft
        except Bad as bad:
            self._add("foreach", bad)

    # ── items and combinations ──────────────────────────────────────────────────────────────────

    def _open(self) -> Items:
        """What foreach and batch give; one nameless item where there is no foreach."""
        foreach = self.fields.get("foreach")
        matrix: Matrix | None = self.fields.get("matrix")
        batch = self.fields.get("batch")
        if foreach is None:
            if batch is not None:
                self._add("batch", Bad("batch needs foreach: over files"))
            if self.fields.get("first") and matrix is None:
                self._add("first", Bad("first needs foreach: or matrix:"))
            return Items(frozenset(), iter((Item({}, "", {}, ""),)))
        items = open_items(foreach, self.context.base, self.context.home)
        if matrix is not None:
            for key in matrix.keys:
                if key in items.names or key in items.start_names:
                    self._add("matrix", Bad(f"{key} is a name that foreach gives", (key,), True))
        if batch is None:
            return items
        if foreach.kind != "glob":
            self._add("batch", Bad(f"batch needs foreach: over files, not {foreach.kind}:"))
        return Items(frozenset({"index"}), items.items, frozenset({"batch_dir"}))

    def _batched(self, items: Items) -> Iterator[Item]:
        batch = self.fields.get("batch")
        if batch is None or "batch_dir" not in items.start_names:
            yield from items.items
            return
        for number in itertools.count():
            some = list(itertools.islice(items.items, batch))
            if not some:
                return
            yield _batch_of(number, some)

    def _combinations(self) -> list[Values]:
        matrix: Matrix | None = self.fields.get("matrix")
        if matrix is None:
            return [{}]
        count = 1
        for axis in matrix.keys.values():
            count *= len(axis)
        if count > MAX_JOBS:
            self._add(
                "matrix", Bad(f"{count:,} combinations; at most {MAX_JOBS:,} jobs are planned")
            )
            return []
        rules = [list(rule.items()) for rule in matrix.exclude]
        used = [False] * len(rules)
        kept: list[Values] = []
        for chosen in itertools.product(*matrix.keys.values()):
            axes = dict(zip(matrix.keys, chosen, strict=True))
            hits = [i for i, r in enumerate(rules) if all(axes[key] == value for key, value in r)]
            for i in hits:
                used[i] = True
            if not hits:
                kept.append(axes)
        if not kept:
            self._add("matrix", Bad("every combination is excluded", ("exclude",)))
        return kept

    # ── one job ─────────────────────────────────────────────────────────────────────────────────

    def _draft(self, compiled: _Compiled, item: Item, axes: Values) -> Draft | None:
        values = {**item.values, **axes}
        where = ", ".join(filter(None, [item.where, *(f"{k}={v}" for k, v in axes.items())]))
        try:
            name = _checked(compiled.name(values, item.label, axes))
        except Bad as bad:
            self._add("name", bad, where)
            return None
        values["job"] = name
        job = None if self.broken else self._job(compiled, item, {**item.params, **axes}, values)
        return Draft(
            name,
            where,
            self.group,
            job,
            compiled.patterns("needs", values),
            compiled.patterns("after", values),
        )

    def _job(
        self, compiled: _Compiled, item: Item, params: Mapping[str, str], values: dict[str, str]
    ) -> Job | None:
        resolved = self._resolve(compiled, values)
        if resolved is None:
            return None
        try:
            shell = resolved.get("shell") or _DEFAULT_SHELL
            run = compiled.run(shell, values)
            found = self._places(resolved)
            job = Job(
                name=values["job"],
                run=run,
                group=self.group,
                params=params,
                demand=self._demand(resolved),
                priority=resolved.get("priority", 0),
                cost=resolved.get("cost", 0.0),
                retry=resolved.get("retries", RetryPolicy()),
                success_codes=resolved.get("success_codes", _ZERO),
                shell=shell,
                env=compiled.environment(values),
                timeout=resolved.get("timeout"),
                idle_timeout=resolved.get("idle_timeout"),
                grace=resolved.get("grace", 10.0),
                outputs=tuple(fill(text, values) for text in compiled.outputs),
                batch=item.batch,
                fasta=item.record,
                service=Service(fill(compiled.ready, values)) if compiled.ready else None,
                visible=resolved.get("visible", "index"),
                inherit_ranks=resolved.get("inherit_ranks", False),
                cwd=found["cwd"] or str(self.context.base),
                env_file=found["env_file"],
                python=found["python"],
                venv=found["venv"],
                conda=found["conda"],
            )
        except Bad as bad:
            path = bad.path or ("run",)
            self._add(str(path[0]), Bad(bad.message, path[1:], bad.key), values["job"])
            return None
        return _with_digest(job, item.content)

    def _resolve(self, compiled: _Compiled, values: Values) -> dict[str, Any] | None:
        """The fields of this job, with Deferred ones filled and converted."""
        if not compiled.deferred:
            return compiled.fixed
        resolved = dict(compiled.fixed)
        fine = True
        for name, deferred in compiled.deferred:
            try:
                resolved[name] = deferred.convert(
                    filled(deferred.value, lambda text: insert(text, values, str))
                )
            except Bad as bad:
                self._add(name, bad, values["job"])
                fine = False
            except ValueError as error:
                self._add(name, Bad(str(error)), values["job"])
                fine = False
        return resolved if fine else None

    def _demand(self, resolved: Fields) -> Demand:
        uses = resolved.get("uses", ())
        for i, token in enumerate(uses):
            if token not in self.context.limits:
                raise Bad(f"no limit is called {token}: add limits: {{{token}: 1}}", ("uses", i))
        gpus = resolved.get("gpus", 1)
        cpus = resolved.get("cpus")
        if not gpus:
            return Demand(gpus=0, cpus=cpus, uses=uses)
        memory = resolved.get("gpu_memory", 0)
        return Demand(gpus, memory, resolved.get("per_gpu", self.context.per_gpu), cpus, uses)

    def _places(self, resolved: Fields) -> Mapping[str, str | None]:
        """Absolute paths of what the job runs in; checked unless its needs may make them."""
        if _PLACES.isdisjoint(resolved):
            return _NO_PLACES
        made_later = bool(self.fields.get("needs") or self.fields.get("after"))
        look, base, home = self.context.look, self.context.base, self.context.home
        environ = self.context.environ

        def directory(text: str, check: Callable[[Path], None]) -> str:
            path = resolve(text, base, home)
            if not made_later:
                check(path)
            return str(path)

        def conda(text: str) -> str:
            by_prefix = "/" in text or text.startswith("~")
            if made_later and by_prefix:
                return str(resolve(text, base, home))
            return str(places.find_conda(text, base, environ))

        def python(text: str) -> str:
            if made_later and "/" in text:
                return str(resolve(text, base, home))
            return str(places.find_python(text, base, environ))

        finders: dict[str, Callable[[str], str]] = {
            "cwd": lambda text: directory(text, places.check_directory),
            "env_file": lambda text: directory(text, _check_env_file),
            "venv": lambda text: directory(text, places.check_venv),
            "conda": conda,
            "python": python,
        }
        found = dict(_NO_PLACES)
        for name, find in finders.items():
            text = resolved.get(name)
            if text is not None:
                kind = name + "?" * made_later
                try:
                    found[name] = look(kind, text, partial(find, text))
                except Bad as bad:
                    raise Bad(bad.message, (name,)) from None
        return found

    def _add(self, name: str, bad: Bad, job: str = "") -> None:
        self.broken = self.broken or not job
        message = f"{bad.message} (job {job})" if job else bad.message
        self.context.mistakes.add((*self.where(name), *bad.path), message, key=bad.key)


_ZERO = frozenset({0})
_PLACES = frozenset({"cwd", "env_file", "venv", "conda", "python"})
_NO_PLACES: Mapping[str, str | None] = dict.fromkeys(_PLACES)


def _with_digest(job: Job, content: str) -> Job:
    # Set once, on a value nobody else has seen yet: `replace` would build every field again.
    object.__setattr__(job, "digest", digest(job, content))
    return job


def _check_env_file(path: Path) -> None:
    try:
        places.read_env_file(path)
    except UsageError as error:
        raise Bad(str(error)) from None


def _batch_of(number: int, items: list[Item]) -> Item:
    last = items[-1]
    where = items[0].where if len(items) == 1 else f"{items[0].where} to {last.where}"
    paths = tuple(item.path or "" for item in items)
    index = str(number)
    return Item({"index": index}, index, {"batch": index}, where, batch=paths)


def clean(value: str) -> str:
    """What a value becomes inside a name."""
    return UNFIT.sub("_", value)


def _checked(name: str) -> str:
    if len(name.encode("utf-8", "replace")) > MAX_NAME:
        raise Bad(f"name {name[:40]}... has more than {MAX_NAME} bytes; set a shorter name:")
    return "_" + name[1:] if name.startswith(".") else name


class _Compiled:
    """An entry's texts with their slots, made once for all its jobs."""

    def __init__(self, entry: Entry, items: Items) -> None:
        fields = entry.fields
        self.entry = entry
        self.fixed: dict[str, Any] = {}
        self.deferred: list[tuple[str, Deferred]] = []
        for name, value in fields.items():
            if isinstance(value, Deferred):
                self.deferred.append((name, value))
            else:
                self.fixed[name] = value
        matrix: Matrix | None = fields.get("matrix")
        self.axes = tuple(matrix.keys) if matrix else ()
        self.expands = "foreach" in fields or matrix is not None
        self.load = items.names | frozenset(self.axes)
        self.start = START | items.start_names
        self.batch = "batch_dir" in items.start_names
        self.name_broken = False
        self.name_text = compile_raw(fields["name"]) if "name" in fields else None
        env: Mapping[str, str | None] = fields.get("env") or {}
        self.env = {key: None if v is None else compile_raw(v) for key, v in env.items()}
        self.env_constant = all(v is None or isinstance(v, str) for v in self.env.values())
        self.run_list: tuple[Text, ...] = ()
        self.script: Text | None = None
        self.outputs = tuple(compile_raw(text) for text in fields.get("outputs", ()))
        self.ready = compile_raw(fields.get("service") or "")
        self.waits = {
            field: tuple(compile_raw(text) for text in fields.get(field, ()))
            for field in ("needs", "after")
        }
        self.constant = {
            field: tuple(pattern_of(text, {}, clean) for text in texts)
            for field, texts in self.waits.items()
            if is_constant(texts)
        }

    # ── checks before any item is filled in ─────────────────────────────────────────────────────

    def check(self) -> bool:
        """Every placeholder is known where it stands; each that is not becomes a mistake."""
        before = self.entry.context.mistakes.count
        self._check_name()
        everything = self.load | self.start | {"job"}
        self._check_run(everything)
        for key, value in self.env.items():
            self._check("env", (key,), names_in(value or ""), everything)
        for i, text in enumerate(self.outputs):
            self._check("outputs", (i,), names_in(text), everything)
        self._check("service", ("ready",), names_in(self.ready), everything)
        for name, texts in self.waits.items():
            for i, text in enumerate(texts):
                self._check(name, (i,), names_in(text), self.load | {"job"})
        for name, deferred in self.deferred:
            self._check(name, (), compiled_names(deferred.value), self.load | {"job"})
        return self.entry.context.mistakes.count == before

    def _check_run(self, known: frozenset[str]) -> None:
        run = self.entry.fields.get("run")
        if isinstance(run, tuple):
            self.run_list = tuple(compile_raw(item) for item in run)
            for i, text in enumerate(self.run_list):
                self._check("run", (i,), names_in(text), known)
        elif run is not None and "{{" in run:
            try:
                self.script = self._script(run, self.fixed.get("shell") or _DEFAULT_SHELL)
            except Bad as bad:
                self._check("run", (), names_in(compile_raw(run)), known)
                if "shell" not in dict(self.deferred):
                    self.entry._add("run", bad)
                return
            self._check("run", (), names_in(self.script), known)

    def _check(self, field: str, steps: Steps, names: Iterable[str], known: frozenset[str]) -> bool:
        fine = True
        for name in names:
            if name in known:
                continue
            fine = False
            self.entry._add(field, Bad(self._why_not(name, known), steps))
        return fine

    def _why_not(self, name: str, known: frozenset[str]) -> str:
        if name in self.start or name == "batch_dir":
            if name == "batch_dir" and not self.batch:
                return "{{batch_dir}} needs batch:"
            return (
                f"{{{{{name}}}}} is known only when the job starts: it works in"
                f" {', '.join(_IN_TEXTS)}"
            )
        if name == "job":
            return "{{job}} is the name itself"
        if self.batch:
            return f"{unknown(name, known)}; a batch has many items: use {{{{batch_dir}}}}"
        return unknown(name, known)

    def _check_name(self) -> None:
        if self.name_text is None:
            return
        typed = self.name_text
        parts = (typed,) if isinstance(typed, str) else typed.parts
        literal = "".join(part for part in parts if isinstance(part, str))
        message = ""
        if isinstance(parts[0], str) and parts[0].startswith("."):
            message = "a name may not start with a dot"
        elif UNFIT.search(literal):
            odd = UNFIT.search(literal)
            message = f"a name may not hold {odd.group()!r}: it names files" if odd else ""
        elif literal != literal.strip() and isinstance(typed, str):
            message = "a name may not start or end with a space"
        if message:
            self.name_broken = True
            self.entry._add("name", Bad(message))
        if not self._check("name", (), names_in(typed), self.load):
            self.name_broken = True

    # ── filling ─────────────────────────────────────────────────────────────────────────────────

    def name(self, values: Values, label: str, axes: Values) -> str:
        """The name, made different for each item where it is not by itself."""
        text = self.name_text
        if text is not None and not isinstance(text, str):
            return insert(text, values, clean)
        if not self.expands:
            return text if text is not None else f"job-{self.entry.group + 1}"
        labels = [label, *(f"{key}={value}" for key, value in axes.items())]
        return "-".join([text or "job", *(clean(part) for part in labels if part)])

    def run(self, shell: tuple[str, ...], values: Values) -> Text | tuple[Text, ...]:
        run = self.entry.fields["run"]
        if isinstance(run, tuple):
            return tuple(_short(fill(text, values)) for text in self.run_list)
        if self.script is None:
            return _short(run)
        script = self._script(run, shell) if "shell" not in self.fixed else self.script
        return _short(fill(script, values))

    def environment(self, values: Values) -> Mapping[str, Text | None]:
        if self.env_constant:
            return self.env
        return {key: value and fill(value, values) for key, value in self.env.items()}

    def _script(self, run: str, shell: tuple[str, ...]) -> Text:
        kind = dialect(shell)
        if kind is None:
            if names_in(compile_raw(run)):
                raise Bad(
                    f"placeholders cannot be quoted for {shell[0]}: write run: as a list, or hand"
                    " the value over in env:"
                )
            return compile_raw(run)
        scripts = self.entry.context.scripts
        if (run, kind) not in scripts:
            if len(scripts) > 1000:
                scripts.clear()
            scripts[run, kind] = compile_script(run, kind)
        text, errors = scripts[run, kind]
        if errors:
            raise Bad("; ".join(errors))
        return text

    def patterns(self, field: str, values: Values) -> tuple[Pattern, ...]:
        known = self.constant.get(field)
        if known is not None:
            return known
        if self.entry.broken:
            return ()
        return tuple(pattern_of(text, values, clean) for text in self.waits[field])


def _short(text: Text) -> Text:
    """Refuse what no exec could take."""
    parts = (text,) if isinstance(text, str) else text.parts
    length = sum(len(part) for part in parts if isinstance(part, str))
    if length > MAX_TEXT // 4:
        length = sum(len(p.encode("utf-8", "replace")) for p in parts if isinstance(p, str))
        if length > MAX_TEXT:
            raise Bad(
                f"{length:,} bytes; Linux takes at most {MAX_TEXT:,} in one argument: put the"
                " script in a file"
            )
    return text
