"""Prints what would run, where, and how (`check`, `--dry-run`), and the table of results.

Starts nothing. Takes a plan's parts, and shows commands as `present.plan.command` does. The table
is as wide as the terminal, in people's units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gpulaunch.base.localtime import time_of
from gpulaunch.base.text import clip, clock, listing, several, size, span
from gpulaunch.base.wording import card_kind, signal_name
from gpulaunch.core.model import CardKind, Gpu, Job, Ladder, Service
from gpulaunch.core.placement import is_kind, sharers, with_learned
from gpulaunch.observe.present import plan, words
from gpulaunch.observe.present.plan import command
from gpulaunch.observe.terminal.terminal import Line, LinePrinter

Number = TypeVar("Number", int, float)

COMMANDS = 3
"""Jobs of a group whose command is shown."""
STEPS_SHOWN = 20
MAX_COMMAND_CHARACTERS = 500
"""Characters of a command that are shown."""


def print_plan(
    printer: LinePrinter,
    name: str,
    cards: str,
    limits: Mapping[str, int],
    jobs: Sequence[Job],
    engine: str = "local",
    gpus: Sequence[Gpu] = (),
) -> None:
    """Print the run in a line, then each group of jobs: how many, their needs, first commands.

    `gpus` are the cards, where they are known.
    """
    head: list[Line] = [
        ((words.visible(name), "bold"), f"  {several(len(jobs), 'job')} on {cards}")
    ]
    head += [((line, "dim"),) for line in plan.lines(gpus)]
    if limits:
        tokens = ", ".join(f"{words.visible(key)} {number}" for key, number in limits.items())
        head.append(((f"at most at once: {tokens}", "dim"),))
    if any(job.expected for job in jobs):
        head.append((("longest first, by how long these jobs took in earlier runs", "dim"),))
    printer.print(head)
    for group in _groups(jobs):
        if printer.broken:
            return
        printer.print([(), *_group_lines(group, engine, gpus)])


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs grouped by entry of the job file, in its order."""
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.group, []).append(job)
    return list(groups.values())


def _group_lines(group: Sequence[Job], engine: str, gpus: Sequence[Gpu]) -> list[Line]:
    first, last = words.visible(group[0].name), words.visible(group[-1].name)
    names = first if len(group) == 1 else f"{first} … {last}"
    told = _told_of(group, engine)
    facts = " · ".join(filter(None, [several(len(group), "job"), *_needs_of(group), told]))
    lines: list[Line] = [("  ", (names, "bold"), f"  {facts}")]
    if shared := shared_by(group, gpus):
        lines.append((("    " + shared, "dim"),))
    for job in group[:COMMANDS]:
        lines.append((("    $ ", "green"), _one_line(_what_runs(job))))
    if len(group) > COMMANDS:
        lines.append(((f"    and {words.count(len(group) - COMMANDS)} more", "dim"),))
    return lines


def asked_for(job: Job, engine: str) -> str:
    """Return what a job takes and waits for, and what the engine is told of it, in words."""
    alone = replace(job, not_before=None)  # which `status` tells with its words
    return " · ".join(filter(None, [*_needs_of([alone]), _told_of([job], engine)]))


def shared_by(group: Sequence[Job], gpus: Sequence[Gpu]) -> str:
    """Return what the group's jobs are promised of a card that they share, and how many fit.

    Empty where they neither share by memory nor learn it.
    """
    first = group[0].demand
    if not first.share and first.kind is None:
        return ""
    demands = [with_learned(job.demand, job.learned) for job in group]
    most = max(demands, key=lambda demand: demand.promise)
    took = group[0].learned if most.kind is not None else 0
    if most.kind is not None and not took:
        shares = "shares its card" if first.shares_card else "needs so much free on its card"
        if any(gpu.simulated for gpu in gpus):
            return f"{shares}; nothing is learned on simulated ones: each has one alone"
        return f"{shares} once it is known what it takes; until then each has one alone"
    learned = f" ({size(took)} at most in earlier runs)" if took else ""
    if not most.shares_card:
        return f"needs {size(most.gpu_memory)} free on its card{learned}"
    cards = [gpu for gpu in gpus if is_kind(gpu, most) and gpu.memory >= most.gpu_memory]
    fit = sharers(most, most.promise, cards) if cards else 0
    fitting = f"; {words.count(fit)} fit on a card" if fit else ""
    return f"shares its card: {size(most.promise)} promised{learned}{fitting}"


def _what_runs(job: Job) -> str:
    if job.worker is None or job.worker.run:
        return command(job.run)
    return f"{job.worker.title}({job.name})"


def _kinds(kinds: Sequence[CardKind | None]) -> str:
    """Return words about the cards that a group's jobs take; empty for any."""
    if any(kind and kind.own_gpu for kind in kinds):
        return "one on each card" if len(kinds) > 1 else "on its own card"
    if len(kinds) > 1:
        return "cards of different kinds"
    return words.visible(card_kind(kinds[0])) if kinds[0] else ""


def _workers_of(group: Sequence[Job]) -> str:
    """Return words about the group's workers: one kind, or how many; each kind loads by itself."""
    kinds = {job.demand.worker for job in group if job.worker is not None}
    if not kinds:
        return ""
    return "in a worker" if len(kinds) == 1 else f"in workers of {len(kinds)} kinds"


def _images_of(group: Sequence[Job]) -> str:
    """Return words about the images of the group's containers: which one, or how many."""
    images = {job.container.image for job in group if job.container is not None}
    if not images:
        return ""
    return f"in {images.pop()}" if len(images) == 1 else f"in {len(images)} images"


def _one_line(text: str) -> str:
    """Return a script on one line, with its line ends shown; a long one is cut."""
    script = " ⏎ ".join(line.strip() for line in text.strip().splitlines())
    return clip(words.visible(script), MAX_COMMAND_CHARACTERS)


def _needs_of(group: Sequence[Job]) -> list[str]:
    """Return what the group's jobs take and wait for, "" for what none does; from least to most."""
    each = " each" if len(group) > 1 else ""
    kinds = dict.fromkeys(job.demand.card_kind for job in group)
    demands = [job.demand for job in group]
    memories = [demand.gpu_memory or None for demand in demands if not demand.share]
    retries = [job.retry.times or None for job in group]
    dues = [None if job.not_before is None else job.not_before.utc for job in group]
    shares = [d.per_gpu if d.per_gpu > 1 and not d.share else None for d in demands]
    return [
        _cards_needed(group) + each,
        _workers_of(group),
        _images_of(group),
        _kinds(list(kinds)),
        _span(memories, size, "{} free on the card"),
        _span([demand.memory or None for demand in demands], size, "{} of memory"),
        _span(shares, words.count, "{} share a card"),
        "through MPS" if all(demand.mps for demand in demands) else "",
        _span([demand.cpus for demand in demands], lambda n: several(n, "CPU"), "{}"),
        "affinity none" if all(job.affinity == "none" for job in group) else "",
        "strict isolation" if all(job.isolation == "strict" for job in group) else "",
        _span([job.priority or None for job in group], str, "priority {}"),
        _listed("uses", [demand.uses for demand in demands]),
        _listed("needs", [job.needs for job in group]),
        _listed("after", [job.after for job in group]),
        _span([job.expected or None for job in group], clock, "{} expected"),
        _span([job.timeout for job in group], span, "timeout {}"),
        _span([job.idle_timeout for job in group], span, "idle_timeout {}"),
        _span([job.gpu_idle for job in group if job.demand.gpus], span, "gpu_idle {}"),
        _span(dues, time_of, "not before {}"),
        _warnings_of(group),
        "preemptible" if all(demand.preemptible for demand in demands) else "",
        _span(retries, lambda n: several(n, "retry", "retries"), "{}"),
        _ladder_of(group[0].ladder),
        _service_of(group[0].service),
    ]


def _service_of(service: Service | None) -> str:
    return "" if service is None else f"a service, ready within {span(service.ready_within)}"


def _ladder_of(ladder: Ladder | None) -> str:
    """Return the steps of all of the group in words: `ladder batch 32, 16, 8`; not all of many."""
    if ladder is None:
        return ""
    values = zip(*ladder.steps[:STEPS_SHOWN], strict=True)
    more = len(ladder.steps) - STEPS_SHOWN
    keys = (f"{key} {', '.join(its)}" for key, its in zip(ladder.names, values, strict=True))
    and_more = f" and {words.count(more)} more" if more > 0 else ""
    return words.visible(f"ladder {'; '.join(keys)}{and_more}")


def _warnings_of(group: Sequence[Job]) -> str:
    """Return `warned 3m before`, with the signal where all have the same; empty without any."""
    told = {job.warn for job in group if job.warn is not None}
    if not told:
        return ""
    numbers = {warn.signal for warn in told}
    name = signal_name(numbers.pop()) if len(numbers) == 1 else "a signal"
    return f"{name} {_span([warn.before for warn in told], span, '{}')} before"


def _told_of(group: Sequence[Job], engine: str) -> str:
    """Return all settings for the engine; the first job's if the jobs differ."""
    told = [", ".join(map(words.visible, _told(job, engine))) for job in group]
    if not any(told):
        return ""
    same = all(other == told[0] for other in told)
    return f"tells it {told[0]}" if same else f"tells it item by item ({told[0]} …)"


def _told(job: Job, engine: str) -> tuple[str, ...]:
    """Return a job's settings for the engine: `partition gpu`, `--mem=64G`."""
    return tuple(
        word if word.startswith("-") else f"{key} {word}"
        for key, given in job.engine.get(engine, {}).items()
        for word in given
    )


def _span(values: Sequence[Number | None], show: Callable[[Number], str], phrase: str) -> str:
    """Return a range in words, and if some jobs have no value: `timeout 30 min to 2 h`."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    least, most = show(min(known)), show(max(known))
    span = least if least == most else f"{least} to {most}"
    return phrase.format(span) + (" (not all)" if len(known) < len(values) else "")


def _cards_needed(group: Sequence[Job]) -> str:
    least = min(job.demand.gpus for job in group)
    most = max(job.demand.gpus for job in group)
    if least != most:
        return f"{least} to {most} cards"
    return several(most, "card") if most else "no card"


def _listed(word: str, names: Sequence[tuple[str, ...]]) -> str:
    """Return names in words: `needs a, b`; the first job's as an example if the jobs differ."""
    if not any(names):
        return ""
    listed = listing(map(words.visible, names[0]))
    if all(other == names[0] for other in names):
        return f"{word} {listed}"
    return f"{word} item by item ({listed} …)" if listed else f"{word} others, some of them"


# ── Results ───────────────────────────────────────────────────────────────────────────────────────
