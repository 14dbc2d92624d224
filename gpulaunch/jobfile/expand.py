"""Expands one validated entry of the file to its Jobs: items, names, placeholders, defaults.

`needs` and `after` are left as patterns in a Draft, because they name jobs of other entries.

    fields ──Entry──▶ for item: values ──▶ name ──▶ texts filled, Deferred converted ──▶ Draft
"""

from __future__ import annotations

import itertools
import math
import os.path
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from gpulaunch.base.errors import NoCardsError
from gpulaunch.core.model import (
    Container,
    Demand,
    Gpu,
    Job,
    Ladder,
    Params,
    RetryPolicy,
    Worker,
)
from gpulaunch.jobfile import containers, field_groups, paths, schedulers
from gpulaunch.jobfile.demands import DemandRules, check_mps, demand_of, kind_of
from gpulaunch.jobfile.drafts import MAX_JOBS, Draft, ExpansionContext
from gpulaunch.jobfile.field_groups import digest
from gpulaunch.jobfile.fields import Deferred, mapped
from gpulaunch.jobfile.file_keys import of_cards
from gpulaunch.jobfile.forms import Matrix
from gpulaunch.jobfile.items import ForeachItem, Items, names_of, open_items, sources_of
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError
from gpulaunch.jobfile.needs import Pattern, pattern_of
from gpulaunch.jobfile.placeholders import compile_raw, insert
from gpulaunch.jobfile.sampling import Combination, Range, Sample, drawn
from gpulaunch.jobfile.suggest import shorten
from gpulaunch.jobfile.texts import DEFAULT_SHELL, Fields, Texts, Values
from gpulaunch.jobfile.tree import Path as Steps


def every_combination(matrix: Matrix) -> list[Combination]:
    """Return the combinations of a matrix of lists that no rule of `exclude:` names.

    Raises FieldError for too many, or none.
    """
    lists = {key: axis for key, axis in matrix.keys.items() if not isinstance(axis, Range)}
    count = math.prod(map(len, lists.values()))
    if count > MAX_JOBS:
        raise FieldError(f"{count:,} combinations; at most {MAX_JOBS:,} jobs are planned")
    if count * len(matrix.exclude) > 20 * MAX_JOBS:
        raise FieldError("too many rules for so many combinations", ("exclude",))
    rules = [rule.items() for rule in matrix.exclude]
    every = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    kept = [axes for axes in every if not any(rule <= axes.items() for rule in rules)]
    if not kept:
        raise FieldError("every combination is excluded", ("exclude",))
    return kept


class EntryExpansion(Struct):
    """An entry being expanded. `fields` are converted or Deferred; `where` leads to each of them.

    `broken`: something is wrong, and no plan will be made; its jobs are, as far as that goes, since
    every mistake is told in one go. `wrong`: fields that are not in `fields` because of that.
    `complete`: the names of all its jobs are known, once `drafts` was read to its end.
    """

    context: ExpansionContext
    group: int
    fields: Fields
    where: Callable[[str], Steps]
    broken: bool = False
    wrong: frozenset[str] = frozenset()
    complete: bool = True
    workers: set[str] = field(default_factory=set)
    digest: str = ""
    kind: int = 0
    names: tuple[str, ...] = ()

    def drafts(self) -> Iterator[Draft]:
        """Yield the entry's jobs, and add its mistakes."""
        try:
            items = self._open()
        except FieldError as bad:
            self._add("foreach", bad)
            self.complete = False
            known = names_of(self.fields["foreach"])
            if known is None or "batch" in self.fields:
                return
            items = known
        if items.nameless:
            return
        self._check_ladder(items)
        self._check_sample()
        if self.fields.get("first") and "service" in self.fields:
            self._add("first", FieldError("its siblings wait for its end, and a service has none"))
        self.kind = kind_of(self.fields)
        context = self.context
        home = context.places.home
        texts = Texts(self.fields, items, self.group, context.scripts, home, self._add)
        fine = texts.check()
        self.broken = self.broken or not fine
        if self.broken:
            self._check_constants(texts.fixed)
        if texts.name_broken:
            self.complete = False
            return
        yield from self._expand(texts, items, fine)

    def bare(self) -> Draft:
        """Return what is known of the entry's jobs without items, and add its mistakes.

        That is what they run and, without placeholders, what they wait for.
        """
        self._check_constants({k: v for k, v in self.fields.items() if not isinstance(v, Deferred)})
        needs, after = (
            tuple(pattern_of(text, {}, str) for text in texts if isinstance(text, str))
            for texts in (map(compile_raw, self.fields.get(key, ())) for key in ("needs", "after"))
        )
        return Draft("", "", self.group, self._sketch(), needs, after, sound=self.sound)

    @property
    def grows(self) -> bool:
        """Whether items may come, or come and go, while the run follows them."""
        following, foreach = self.context.following, self.fields.get("foreach")
        return following is not None and foreach is not None and foreach.read

    @property
    def sound(self) -> bool:
        return _RUNNING.isdisjoint(self.wrong)

    def _sketch(self) -> Job | None:
        """Return a job of the entry with unfilled placeholders; None if they decide what runs."""
        fields = self.fields
        if not self.sound or any(isinstance(fields.get(name), Deferred) for name in _RUNNING):
            return None
        try:
            found, worker = self._places(fields), self._worker(fields)
            container = self._container(fields, found)
        except FieldError:
            return None  # `_check_constants` reports it
        run = fields.get("run", ())
        typed = compile_raw(run) if isinstance(run, str) else tuple(map(compile_raw, run))
        env = {k: None if v is None else compile_raw(v) for k, v in fields.get("env", {}).items()}
        return Job(
            name="",
            run=typed if worker is None else field_groups.command_of(worker),
            group=self.group,
            shell=fields.get("shell") or DEFAULT_SHELL,
            env=env,
            worker=worker,
            container=container,
            modules=fields.get("modules", ()),
            **found,
        )

    def _expand(self, texts: Texts, items: Items, fine: bool) -> Iterator[Draft]:
        context = self.context
        combinations = self._combinations()
        if items.count * len(combinations) + context.jobs > MAX_JOBS:
            self._add("foreach", FieldError(f"more than {MAX_JOBS:,} jobs; run them in parts"))
            self.complete = False
            return
        context.jobs += items.count * len(combinations)
        for item in self._batched(items):
            for axes in combinations:
                draft = self._draft(texts, item, axes, fine)
                if draft is not None:
                    yield draft

    def _check_constants(self, fixed: Fields) -> None:
        """Check constant fields although no Job is made, to report every mistake at once."""
        gather = ErrorCollector()
        gather.take((), self._demand, fixed)
        found = gather.take((), self._places, fixed)
        gather.take(("worker",), self._worker, fixed)
        gather.take((), partial(self._container, fixed), found)
        gather.take((), self._check_ends, fixed)
        gather.take((), self._check_modules, fixed)
        for bad in gather.bads:
            self._add_for("", bad)

    # ── items and combinations ──────────────────────────────────────────────────────────────────

    def _open(self) -> Items:
        """Return the items of foreach and batch; one nameless item without foreach."""
        foreach = self.fields.get("foreach")
        matrix: Matrix | None = self.fields.get("matrix")
        batch = self.fields.get("batch")
        if foreach is None:
            if batch is not None:
                self._add("batch", FieldError("batch needs foreach: over files"))
            if self.fields.get("first") and matrix is None:
                self._add("first", FieldError("first needs foreach: or matrix:"))
            return Items(frozenset(), iter((ForeachItem({}, "", {}, ""),)), 1)
        context, places = self.context, self.context.places
        context.sources |= dict.fromkeys(sources_of(foreach, places.base, places.home))
        counting = context.following.counting if context.following is not None else None
        if foreach.kind == "cards":
            items = self._cards()
        else:
            items = open_items(foreach, places.base, places.home, counting)
        for key in matrix.keys if matrix is not None else ():
            if key in items.names or key in items.start_names:
                why = f"{key} is a name that foreach gives"
                self._add("matrix", FieldError(why, (key,), True))
        if batch is None:
            return items
        if foreach.kind != "glob":
            self._add("batch", FieldError(f"batch needs foreach: over files, not {foreach.kind}:"))
        if self.grows:
            why = "batches would change with each file that comes: without --follow, or no batch:"
            self._add("batch", FieldError(why))
        count = -(-items.count // batch)
        return Items(frozenset({"index"}), items.items, count, frozenset({"batch_dir"}))

    def _cards(self) -> Items:
        """Return an item for each of the run's cards. Raises FieldError."""
        context = self.context
        if context.cards is None:
            raise FieldError("its cards are known only on the machine that runs the list")
        card, compute = self.fields.get("card", ""), self.fields.get("compute", ())
        if isinstance(card, Deferred) or isinstance(compute, Deferred):
            card, compute = "", ()
        gpus: Sequence[Gpu] = ()
        try:
            gpus = context.cards()
            items = of_cards(gpus, Demand(card=card, compute=compute))
        except LookupError as error:
            raise FieldError(str(error)) from None
        except NoCardsError as error:
            context.lacking, items = error, of_cards((), _NO_DEMAND)
        self.complete = bool(gpus)
        return items

    def _check_ladder(self, items: Items) -> None:
        """Add a mistake for a ladder whose key another field gives, or that has no retries."""
        ladder: Ladder | None = self.fields.get("ladder")
        if ladder is None:
            return
        matrix: Matrix | None = self.fields.get("matrix")
        axes = matrix.keys if matrix is not None else {}
        for key in ladder.names:
            other = "matrix" if key in axes else "foreach"
            if key in axes or key in items.names | items.start_names:
                why = f"{key} is a name that {other} gives"
                self._add("ladder", FieldError(why, (key,), True))
        retry = self.fields.get("retries", _NO_RETRY)
        if isinstance(retry, RetryPolicy) and not retry.times and "retries" not in self.wrong:
            self._add("ladder", FieldError("it moves with each retry, and retries: is 0"))

    def _check_sample(self) -> None:
        """Add a mistake for `sample:` without a matrix, and for what is drawn from without it."""
        matrix: Matrix | None = self.fields.get("matrix")
        if matrix is None and "sample" in self.fields and "matrix" not in self.wrong:
            self._add("sample", FieldError("it draws from matrix:, which is not there"))
        elif matrix is not None and "sample" not in self.fields and "sample" not in self.wrong:
            for key in matrix.drawn:
                why = "this is drawn from, and nothing says how often: add sample: 40 to the job"
                self._add("matrix", FieldError(why, (key,)))

    def _batched(self, items: Items) -> Iterator[ForeachItem]:
        batch = self.fields.get("batch")
        if batch is None or "batch_dir" not in items.start_names:
            yield from items.items
            return
        for number in itertools.count():
            some = list(itertools.islice(items.items, batch))
            if not some:
                return
            yield _batch_of(number, some)

    def _combinations(self) -> Sequence[Values]:
        """Return the matrix's combinations, or those drawn of it; an empty one without a matrix."""
        matrix: Matrix | None = self.fields.get("matrix")
        sample: Sample | None = self.fields.get("sample")
        if matrix is None:
            return [{}]
        try:
            if sample is not None:
                return drawn(matrix.keys, matrix.exclude, sample)
            if not any(isinstance(axis, Range) for axis in matrix.keys.values()):
                return every_combination(matrix)
        except FieldError as bad:
            self._add("matrix" if sample is None else "sample", bad)
        self.complete = False
        return []

    # ── one job ─────────────────────────────────────────────────────────────────────────────────

    def _draft(self, texts: Texts, item: ForeachItem, axes: Values, fine: bool) -> Draft | None:
        values = {**item.values, **axes}
        where = ", ".join(filter(None, [item.where, *(f"{k}={v}" for k, v in axes.items())]))
        try:
            name = texts.name(values, item.label, axes)
        except FieldError as bad:
            self._add_for(where, bad, "name")
            self.complete = False
            return None
        values["job"] = name
        params = self._params({**item.params, **axes})
        job = self._job(texts, item, params, values, where) if fine else None
        needs, after = (texts.patterns(field, values) for field in ("needs", "after"))
        serves = "service" in self.fields
        gathers = self._gathered(texts, (*needs, *after)) if self.context.following else ()
        return Draft(name, where, self.group, job, needs, after, serves, self.sound, gathers)

    def _gathered(self, texts: Texts, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        """Return the globs over jobs that are not just those of the job's own item."""
        if self.grows:
            constant = (pattern for some in texts.constant.values() for pattern in some)
            return tuple(pattern for pattern in constant if pattern.glob is not None)
        return tuple(pattern for pattern in patterns if pattern.glob is not None)

    def _params(self, given: Values) -> Mapping[str, str]:
        if not given:
            return _NO_PARAMS
        if (names := tuple(given)) != self.names:  # the entry's jobs share it
            self.names = names
        return Params(self.names, tuple(given.values()))

    def _job(
        self, texts: Texts, item: ForeachItem, params: Mapping[str, str], values: Values, where: str
    ) -> Job | None:
        gather = ErrorCollector()
        resolved = self._resolve(texts, values, gather)
        shell = resolved.get("shell") or DEFAULT_SHELL
        demand = gather.take((), partial(self._demand, gpu=item.gpu), resolved, _NO_DEMAND)
        if resolved.get("mps"):
            gather.take((), partial(check_mps, demand=demand, typed=self._typed("mps")), resolved)
        demand = self.context.demands.setdefault(demand, demand)  # equal ones share it
        found = gather.take((), self._places, resolved)
        worker = gather.take(("worker",), self._worker, resolved)
        container = gather.take((), partial(self._container, resolved), found)
        if container is not None and "path" in values:
            directory = os.path.dirname(values["path"])
            container = self.context.containers.with_input(container, directory)
        run: Any = () if worker is None else field_groups.command_of(worker)
        if "run" in self.fields:
            run = gather.take(("run",), partial(texts.run, shell), values)
        env = gather.take(("env",), texts.environment, values)
        outputs = gather.take(("outputs",), texts.files, values)
        service = gather.take(("service",), texts.service, values)
        if resolved.get("modules"):
            gather.take((), self._check_modules, resolved)
        if not texts.plain_ends:
            gather.take((), self._check_ends, resolved)
        try:
            gather.done()
        except FieldError as bad:
            self._add_for(where, bad)
            self.broken = True
            if not _RUNNING.isdisjoint(str(one.path[0]) for one in bad.each()):
                return None
        job = Job(
            name=values["job"],
            run=run,
            group=self.group,
            params=params,
            demand=demand,
            retry=resolved.get("retries", _NO_RETRY),
            not_before=self.context.due(resolved.get("not_before")),
            shell=shell,
            env=env,
            outputs=outputs,
            batch=item.batch,
            fasta=item.record,
            service=service,
            worker=worker,
            item=values if worker is not None else _NO_VALUES,
            engine=self._engine(resolved),
            keep=texts.keeps,
            container=container,
            **found,
            **{name: resolved[name] for name in _AS_TYPED & resolved.keys()},
        )
        if self.broken:
            return job
        if worker is not None:
            try:
                job = self._keyed(job)
            except FieldError as bad:
                self._add_for(where, bad)
                return None
        base = str(self.context.places.base)
        made = digest(job, base)
        if made != self.digest:  # items that differ in name alone share the text
            self.digest = made
        # The job is new and not shared yet: `replace` would copy every field.
        force_setattr(job, "digest", self.digest)
        if texts.reads_items:
            force_setattr(job, "input_base", base)
        return job

    def _check_ends(self, resolved: Fields) -> None:
        field_groups.check_warning(resolved, self._typed("preemptible"))

    def _check_modules(self, resolved: Fields) -> None:
        field_groups.check_modules(resolved, self._inherits)

    def _worker(self, resolved: Fields) -> Worker | None:
        """Return the worker with its files found; checks them unless needed jobs may make them."""
        worker: Worker | None = resolved.get("worker")
        if worker is None:
            return None
        return replace(worker, function=self._found(worker.function), load=self._found(worker.load))

    def _found(self, function: str) -> str:
        """Return a function's name with its file's absolute path."""
        if not (file := field_groups.file_of(function)):
            return function
        path = self.context.places.find("worker", self._made_later, file)
        return f"{path}:{function.rpartition(':')[2]}"

    def _container(self, resolved: Fields, found: Mapping[str, Any] | None) -> Container | None:
        """Return the container with its files found; checks what it stands beside.

        `found`: the job's places, None if something is wrong with them.
        """
        made: Container | None = resolved.get("container")
        if made is None:
            return None
        gather, cwd = ErrorCollector(), found["cwd"] if found else ""
        gather.take((), lambda fields: containers.check(fields, cwd, self._inherits), resolved)
        shared, later = self.context.containers, self._made_later
        placed = gather.take(("container",), lambda typed: shared.placed(typed, later), made)
        gather.done()
        assert isinstance(placed, Container)
        return placed

    def _typed(self, name: str) -> bool:
        """Tell whether a field stands at the job itself."""
        return self.where(name)[0] == "jobs"

    def _inherits(self, name: str) -> bool:
        """Tell whether a field comes from `defaults:`."""
        return self.where(name)[0] == "defaults"

    def _keyed(self, job: Job) -> Job:
        field_groups.check_env(job)
        job = field_groups.with_key(job)
        self.workers.add(job.demand.worker)
        if len(self.workers) > field_groups.KINDS:
            raise FieldError(
                f"more than {field_groups.KINDS} different workers for these jobs: what a worker"
                " has for its whole life (env, venv, gpu_memory ...) differs from item to item",
                ("worker",),
            )
        return job

    def _engine(self, resolved: Fields) -> schedulers.Settings:
        if "engine" not in resolved:
            return _NO_ENGINE
        held = schedulers.held(resolved["engine"])
        return self.context.engines.setdefault(repr(held), held)  # equal ones share it

    def _resolve(self, texts: Texts, values: Values, gather: ErrorCollector) -> dict[str, Any]:
        """Return the fields of this job, with Deferred ones filled and converted."""
        if not texts.deferred:
            return texts.fixed
        resolved = dict(texts.fixed)
        for name, deferred in texts.deferred.items():
            plain = mapped(deferred.value, lambda text: insert(text, values, str))
            value = gather.take((name,), deferred.convert, plain)
            if value is not None:
                resolved[name] = value
        return resolved

    def _places(self, resolved: Fields) -> dict[str, Any]:
        """Return the job's places as absolute paths; checks them unless needs may make them."""
        gather, places = ErrorCollector(), self.context.places
        found: dict[str, Any] = {"cwd": str(places.base)}
        for name in paths.FIELDS & resolved.keys():
            look = partial(places.find, name, self._made_later)
            found[name] = gather.take((name,), look, resolved[name])
        gather.done()
        return found

    @property
    def _made_later(self) -> bool:
        """Whether jobs that come before may make the files that these name."""
        return bool(self.fields.get("needs") or self.fields.get("after"))

    def _demand(self, resolved: Fields, gpu: str = "") -> Demand:
        """Return what a job of these fields takes; `gpu`: the UUID of the card it is made for."""
        rules = DemandRules(
            self.kind,
            self.context.per_gpu,
            self.context.limits,
            service=bool(self.fields.get("service")),
            wants_idle="gpu_idle" in resolved and not self._inherits("gpu_idle"),
        )
        demand = demand_of(resolved, rules)
        if not gpu:
            return demand
        if demand.gpus != 1:
            why = "foreach: cards gives each job the one card that it is made for: leave gpus: out"
            raise FieldError(why, ("gpus",))
        return replace(demand, own_gpu=gpu)

    def _add(self, name: str, bad: FieldError) -> None:
        """Add a mistake of the entry itself."""
        self.broken = True
        self.context.mistakes.add_bad(self.where(name), bad, self._heir(name))

    def _add_for(self, item: str, bad: FieldError, field: str = "") -> None:
        """Add a mistake of one of the entry's jobs; it names the item if that has a part in it."""
        for one in bad.each():
            name, path = (field, one.path) if field else (str(one.path[0]), one.path[1:])
            its = name in ("name", "service") or isinstance(self.fields.get(name), Deferred)
            note = f" (for {shorten(item)})" if item and its else ""
            self.context.mistakes.add(
                (*self.where(name), *path),
                one.message + note,
                key=one.key,
                number=one.number,
                entry=self._heir(name),
            )

    def _heir(self, name: str) -> int | None:
        """Return the entry's number if it has a field from `defaults:`."""
        return self.group if self._inherits(name) else None


_RUNNING = frozenset(
    {
        *("run", "worker", "shell", "cwd", "env", "env_file", "python", "venv", "conda"),
        *("container", "modules"),
        *("foreach", "matrix", "sample", "batch", "needs", "after"),
    }
)
"""Fields that say what a job runs, in what, and whether other jobs come before."""
_AS_TYPED = frozenset(
    {
        *("priority", "cost", "success_codes", "timeout", "idle_timeout", "gpu_idle", "grace"),
        *("visible", "isolation", "affinity", "explain", "preload", "inherit_ranks", "ladder"),
        *("warn", "modules"),
    }
)
"""Fields of a job that are, by the same name and default, the Job's."""
_NO_DEMAND = Demand()
_NO_RETRY = RetryPolicy()
_NO_VALUES: Mapping[str, str] = {}
_NO_PARAMS = Params((), ())
_NO_ENGINE: schedulers.Settings = {}


def _batch_of(number: int, items: list[ForeachItem]) -> ForeachItem:
    last = items[-1]
    where = items[0].where if len(items) == 1 else f"{items[0].where} to {last.where}"
    paths = tuple(item.path or "" for item in items)
    index = str(number)
    return ForeachItem({"index": index}, index, {"batch": index}, where, batch=paths)
