"""The Plan of a job file, and which of its jobs these cards, or Slurm, can never run.

Also sets fields of single jobs over what their definitions say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.base.errors import Mistake
from gpulaunch.base.text import asking_for_memory, listing, several, size
from gpulaunch.base.wording import card_kind
from gpulaunch.core.model import ALL, CardKind, Demand, Gpu, Job, Selection
from gpulaunch.core.placement import fits_name, is_kind, models, reserved_on
from gpulaunch.jobfile import command_list, tree
from gpulaunch.jobfile.mistakes import Mistakes
from gpulaunch.jobfile.notify_spec import Target
from gpulaunch.jobfile.source import ForeachSource, JobFileText
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import YamlNode, node_at


class Plan(Struct, frozen=True, dict=True):
    """A job file, read, expanded and checked.

    `selection` is what `gpus:` says, `free_below` what its own key says, as typed. `limits` are the
    tokens of `uses:`; `notify` is whom the run tells. `path` is the file, None for text from
    elsewhere. `sources` is what its `foreach` rest on. `held`: jobs that are left out for now, as
    what they wait for may still come. `typed`: as in Mistakes.
    """

    name: str
    selection: Selection
    per_gpu: int
    limits: Mapping[str, int]
    jobs: tuple[Job, ...]
    source: JobFileText
    path: Path | None = None
    notify: tuple[Target, ...] = ()
    sources: tuple[ForeachSource, ...] = ()
    held: tuple[str, ...] = ()
    free_below: str | None = None
    typed: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> bytes:
        """The file's bytes, as they were read."""
        return self.source.data

    @property
    def base(self) -> Path:
        """The directory where the file's relative paths start."""
        return self.source.base

    def mistake(self, steps: Steps, message: str) -> Mistake:
        """Return a mistake that was found later, at the place to which `steps` lead."""
        return self.mistakes([(steps, message)])[0]

    def point(self, steps: Steps, message: str) -> str:
        """Return such a mistake for people: `jobs.yaml:2:7: gpus: message`, the line, a caret."""
        return self.mistake(steps, message).text

    @cached_property
    def root(self) -> tree.YamlNode:
        """Return the file's tree, made when it is first asked for."""
        return command_list.parse(self.source)[0]

    def unplaceable(
        self, gpus: Sequence[Gpu], pool_size: int, memory: int | None = None, capped: str = ""
    ) -> list[Mistake]:
        """Return mistakes for jobs that could never run on these cards; one per entry and reason.

        `gpus` are the cards the run may use, `pool_size` how many of them at once, and `capped` why
        no more; `memory`: bytes of the host's that its jobs may reserve together, None for any.
        More `cpus` than there are is no mistake: such a job runs alone.
        """
        machine = _Machine(gpus, pool_size, self.limits, memory, capped)
        found = [
            (("jobs", job.group, where), f"{reason} (job {job.name})")
            for job in self.jobs
            for where, reason in machine.why_never(job)
        ]
        conflicts = machine.service_conflicts(self.jobs)
        found += [(("jobs", job.group, "needs"), reason) for job, reason in conflicts]
        return self.mistakes(found)

    def mistakes(self, found: Iterable[tuple[Steps, str]]) -> list[Mistake]:
        """Return mistakes that were found later, of each place the first."""
        first: dict[Steps, str] = {}
        for steps, message in found:
            first.setdefault(self._typed_at(steps), message)
        if not first:
            return []
        mistakes = self.no_mistakes()
        for steps, message in first.items():
            mistakes.add(steps, message)
        return mistakes.found()

    def no_mistakes(self) -> Mistakes:
        """Return what collects mistakes that are found later; none yet."""
        return Mistakes(self.source, self.root, self.typed)

    def _typed_at(self, steps: Steps) -> Steps:
        """Return where a job's field is typed: at the job, or in `defaults:`."""
        default = ("defaults", *steps[2:])
        if not steps[2:] or tree.node_at(self.root, steps) is not None:
            return steps
        return default if default[1] in self.typed or tree.node_at(self.root, default) else steps


def why_never(
    job: Job,
    gpus: Sequence[Gpu],
    pool_size: int,
    limits: Mapping[str, int],
    memory: int | None = None,
    capped: str = "",
) -> list[str]:
    """Return `field: reason` for all that keeps one job from ever running on these cards."""
    machine = _Machine(gpus, pool_size, limits, memory, capped)
    return [f"{field}: {reason}" for field, reason in machine.why_never(job)]


class _Machine(Struct):
    gpus: Sequence[Gpu]
    pool_size: int
    limits: Mapping[str, int]
    memory: int | None = None
    capped: str = ""

    def why_never(self, job: Job) -> Iterator[tuple[str, str]]:
        """Yield (field, reason) for everything that keeps the job from ever starting here."""
        demand, wanted = job.demand, job.demand.memory
        if demand.gpus > self.pool_size:
            needs = f"needs {several(demand.gpus, 'card')}"
            yield "gpus", f"{needs}, the run has {self.pool_size}{self.capped}"
        elif demand.gpus > 1 and demand.gpus > (whole := sum(not g.mig for g in self.gpus)):
            yield (
                "gpus",
                f"needs {several(demand.gpus, 'card')}, the run has {whole} that are not MIG"
                " instances (a process can use only one of those)",
            )
        elif demand.gpus and (why := self._too_few(demand)):
            yield why
        else:
            wanted = reserved_on(self.gpus, demand)
        if self.memory is not None and wanted > self.memory:
            unified = wanted > demand.memory
            also = " with its gpu_memory (the card's memory is the host's)" if unified else ""
            yield (
                "memory" if demand.memory else "gpu_memory",
                f"reserves {size(wanted)} of the host's memory{also}, of which this run may"
                f" reserve {size(self.memory)}",
            )
        for token, count in overdrawn(demand.uses, self.limits):
            yield "uses", f"needs {count} of {token}, its limit is {self.limits[token]}"

    def _too_few(self, demand: Demand) -> tuple[str, str] | None:
        """Return (field, reason) where too few cards are of the kind, or as large, as is asked."""
        fit = [gpu for gpu in self.gpus if is_kind(gpu, demand)]
        if demand.own_gpu and not fit:
            return "foreach", f"is made for the card {demand.own_gpu}, which is none of the run's"
        if (kind := demand.card_kind) and len(fit) < demand.gpus:
            named = sum(fits_name(gpu.name, kind.card) for gpu in self.gpus) >= demand.gpus
            there = listing(models(self.gpus, kind))
            return (
                "compute" if not kind.card or (named and kind.compute) else "card",
                f"needs {several(demand.gpus, 'card')} {card_kind(kind)}; {len(fit) or 'none'} of"
                f" the run's {len(self.gpus)} fit{'s' * (len(fit) < 2)}: {there}"
                f"{_with_stars(self.gpus, kind)}",
            )
        large = sum(gpu.memory >= demand.gpu_memory for gpu in fit)
        if large >= demand.gpus:
            return None
        most = max((gpu.memory for gpu in fit), default=0)
        such = f" {card_kind(kind)}" if kind else ""
        return (
            "gpu_memory",
            f"needs {several(demand.gpus, 'card')}{such} with {size(demand.gpu_memory)} each;"
            f" {large} of {len(fit)} have that much, the largest has {size(most)}",
        )

    def service_conflicts(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]:
        """Yield jobs that do not fit beside the services they need, which run at the same time."""
        services = {job.name: job for job in jobs if job.service is not None}
        if not services:
            return
        for job in jobs:
            beside = [services[name] for name in _services_of(job, services)]
            if beside and (reason := self._misfit(job, beside)):
                yield job, reason

    def _misfit(self, job: Job, services: Sequence[Job]) -> str:
        together = [*services, job]
        names = ", ".join(service.name for service in services)
        cards = _cards_together(together)
        if cards > self.pool_size:
            return (
                f"{job.name} and the services it needs ({names}) take {several(cards, 'card')}"
                f" at once, the run has {self.pool_size}{self.capped}"
            )
        memory = sum(reserved_on(self.gpus, one.demand) for one in together)
        if self.memory is not None and memory > self.memory:
            return (
                f"{job.name} and the services it needs ({names}) reserve {size(memory)} of the"
                f" host's memory at once, the run may reserve {size(self.memory)}"
            )
        uses = (token for one in together for token in one.demand.uses)
        for token, count in overdrawn(uses, self.limits):
            return (
                f"{job.name} and the services it needs ({names}) hold {count} of {token} at"
                f" once, its limit is {self.limits[token]}"
            )
        return ""


def overdrawn(uses: Iterable[str], limits: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield each token of which more are held at once than there are, and how many."""
    for token, count in Counter(uses).items():
        if count > limits.get(token, count):
            yield token, count


def _with_stars(gpus: Sequence[Gpu], kind: CardKind) -> str:
    """Return a hint where the text is only a part of a card's name, as a name is typed."""
    if not kind.card or any(fits_name(gpu.name, kind.card) for gpu in gpus):
        return ""
    wide = f"*{kind.card}*"
    return f'; did you mean "{wide}"?' if any(fits_name(g.name, wide) for g in gpus) else ""


def _services_of(job: Job, services: Mapping[str, Job]) -> dict[str, None]:
    """Return the services that must be up while the job runs, with those that they need."""
    found: dict[str, None] = {}
    queue = [name for name in job.needs if name in services]
    while queue:
        name = queue.pop()
        if name not in found and name != job.name:
            found[name] = None
            queue += [other for other in services[name].needs if other in services]
    return found


def _cards_together(jobs: Sequence[Job]) -> int:
    """Return the fewest cards for all of them at once; equal `per_gpu` and `mps` share a card.

    So do all that share by memory, as far as is known here; one whose memory is not known yet runs
    alone.
    """
    cards = 0
    sharing: Counter[tuple[int, bool]] = Counter()
    for job in jobs:
        demand = job.demand
        unknown = demand.kind is not None and not job.learned
        if demand.gpus == 1 and demand.shares_card and not unknown:
            sharing[0 if demand.share else demand.per_gpu, demand.mps] += 1
        else:
            cards += demand.gpus
    return cards + sum(-(-count // (per_gpu or count)) for (per_gpu, _), count in sharing.items())


EMPTY = b"# All jobs of this run were added while it lived: events.jsonl has them.\njobs: []\n"
"""The text of a run's list where it has no job file."""


def empty_plan(name: str, base: Path) -> Plan:
    """Return the plan of a run that has no job file: all its jobs are added while it lives."""
    return Plan(name, ALL, 1, {}, (), JobFileText(name, base, EMPTY, EMPTY.decode()))


def as_chosen(plan: Plan, explain: bool | None, preload: bool | None) -> Plan:
    """Return the plan with every job explained (`explain`), or started cold (`preload` False)."""
    if explain:
        plan = replace(plan, jobs=tuple(replace(job, explain=True) for job in plan.jobs))
    if preload is False:
        plan = replace(plan, jobs=tuple(replace(job, preload=()) for job in plan.jobs))
    return plan


# ── Fields that a person sets ─────────────────────────────────────────────────────────────────────


# ── Jobs that Slurm cannot run ────────────────────────────────────────────────────────────────────


def unfit(plan: Plan, jobs: Sequence[Job], limit: int | None) -> list[Mistake]:
    """Return mistakes for fields that no job under `--engine slurm` can have, each place once.

    Nothing is submitted before that. `limit`: cards that the run may have at once; None: as many as
    Slurm gives.
    """
    return plan.mistakes(
        (place, why if place[-1] == field else f"{field}: {why}")
        for job in jobs
        for field, why in why_not(job, limit, plan.limits)
        for place in [_place(plan.root, job.group, field)]
    )


def why_not(job: Job, limit: int | None, limits: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for everything that keeps the job from running there."""
    demand = job.demand
    if job.service is not None:
        yield (
            "service",
            "Slurm starts jobs when it likes, none beside another: start the server yourself and"
            " give its address in env:, or run the list with --engine local",
        )
    if job.worker is not None:
        yield (
            "worker",
            "Slurm gives cards to one job at a time, no process can take several: write run:, with"
            " batch: for longer jobs, or run the list with --engine local",
        )
    if job.isolation == "strict":
        yield (
            "isolation",
            "Slurm itself hides the other cards (ConstrainDevices=yes in its cgroup.conf): leave"
            " it out",
        )
    for name, given in (("card", demand.card), ("compute", demand.compute)):
        if given:
            yield (
                name,
                "Slurm chooses the cards: name a type of them with engine: {slurm: {gres: a100}},"
                " or a constraint of your site in extra:",
            )
    if demand.per_gpu > 1:
        yield "per_gpu", "Slurm gives a job whole cards: leave it out; batch: makes longer jobs"
    if demand.share:
        yield "share", "Slurm gives a job whole cards: leave it out; batch: makes longer jobs"
    if job.gpu_idle is not None and demand.gpus:
        yield (
            "gpu_idle",
            "nothing measures on a cluster's nodes what jobs compute: leave it out (idle_timeout:"
            " or timeout: ends what hangs), or run the list with --engine local",
        )
    if demand.mps:
        yield "mps", "Slurm gives a job whole cards, none is shared: leave it out"
    if job.visible != "index":
        yield "visible", "Slurm spells the mask, gpulaunch only checks it: leave it out"
    if limit is not None and demand.gpus > limit:
        yield "gpus", f"needs {demand.gpus}, the run may have {limit} at once (job {job.name})"
    if why := asks_twice(job):
        yield "memory", why
    for token, count in overdrawn(demand.uses, limits):
        yield "uses", f"needs {count} of {token}, its limit is {limits[token]} (job {job.name})"


def asks_twice(job: Job) -> str:
    """Return why a job's `memory:` does not go with its own options for Slurm; else empty."""
    asked = asking_for_memory(job.engine.get("slurm", {}).get("extra", ()))
    if not (job.demand.memory and asked):
        return ""
    return f"{asked[0]} in extra: asks Slurm for memory as well: leave one of them out"


def outranked(jobs: Sequence[Job], defaults: Mapping[str, Sequence[str]], source: str) -> str:
    """Return a line on options of the configuration that jobs' `memory:` goes before; else empty.

    `defaults` are its settings for Slurm, `source` is where its `extra` stands.
    """
    asked = asking_for_memory(defaults.get("extra", ()))
    count = sum(
        bool(job.demand.memory) and "extra" not in job.engine.get("slurm", {}) for job in jobs
    )
    if not (asked and count):
        return ""
    return (
        f"memory: goes before {asked[0]}, which {source} says of all jobs:"
        f" {several(count, 'job')} of this list {'has' if count == 1 else 'have'} it"
    )


def _place(root: YamlNode, group: int, field: str) -> Steps:
    """Return where the field's value comes from: the job, else `defaults:`, else the file."""
    known: list[Steps] = [("jobs", group, field), ("defaults", field)]
    if field == "per_gpu":
        known.append((field,))
    nodes = ((steps, node_at(root, steps)) for steps in known)
    return next((steps for steps, node in nodes if node and node.value is not None), known[0][:2])


def notes(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield a line for each setting of this machine that has no meaning there."""
    if any(job.preload for job in jobs):
        yield "preload: does nothing under Slurm: each job starts cold, on a node of its own"
    if any(job.ladder for job in jobs):
        yield (
            "ladder: jobs that are in Slurm's queue already keep the step with which they were"
            " handed over; what succeeds counts for retries and for jobs handed over later"
        )
    if any(job.demand.preemptible for job in jobs):
        yield (
            "preemptible: Slurm decides what it preempts by partition and QOS: name one that gives"
            " way with engine: {slurm: {partition: ...}}; a preempted job is run again, uncharged"
        )
    if any(job.affinity == "card" for job in jobs):
        yield (
            "affinity: Slurm itself gives a job its CPUs (its options for that go into extra:), and"
            " gpulaunch changes nothing there"
        )
    if any(job.demand.gpu_memory or job.demand.kind is not None for job in jobs):
        yield (
            "gpu_memory: Slurm is not told of it: name a type of card that has it with engine:"
            " {slurm: {gres: a100}}, or a constraint of your site in extra:"
        )
