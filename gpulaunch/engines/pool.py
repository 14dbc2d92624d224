"""The cards that a launcher may use: of the machine, within its own mask, as `--gpus` selects.

machine (NVML, or --simulate N) ─▶ configuration ─▶ inherited mask ─▶ --gpus / gpus: ─▶ CardPool

The configuration says which cards are never used, which are used last, and how many this user may
hold. Takes no card.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.cgroups import memory_of_machine
from gpulaunch.base.errors import NoCardsError, UsageError
from gpulaunch.base.free_below import FreeBelow, parse_free_below
from gpulaunch.base.loop import Loop
from gpulaunch.base.text import several
from gpulaunch.core.ledger import LOCAL
from gpulaunch.core.model import (
    ALL,
    Gpu,
    Selection,
    choose,
    describe,
    fitting,
    parse_selection,
)
from gpulaunch.engines import environment
from gpulaunch.engines.affinity import read_cpus
from gpulaunch.gpus import socket_locks
from gpulaunch.gpus.discover import ProbeClient, SimulatedProbe, find, pool_name, simulated
from gpulaunch.gpus.lease import scope_of
from gpulaunch.gpus.machine import Machine
from gpulaunch.gpus.mask import Style, style_for
from gpulaunch.gpus.mask import pool as inherited
from gpulaunch.jobfile.config import allowance_of, required
from gpulaunch.jobfile.config_model import Allowance, CardSettings, lease_dir, setting_of

# ── Configured cards ──────────────────────────────────────────────────────────────────────────────

LAST = 1
"""The rank of a card that is taken after all others."""


class ConfiguredCards(Struct, frozen=True):
    """The cards that may be used. `never` has the others by UUID, each with what forbids it.

    `last` has those that are taken after all others. `barred` and `told` are lines about the
    former, and about both.
    """

    gpus: tuple[Gpu, ...]
    never: Mapping[str, str]
    last: Mapping[str, str]
    barred: tuple[str, ...]
    told: tuple[str, ...]

    def refusal(self, selection: Selection, here: Sequence[Gpu]) -> str:
        """Return why a card that the selection names is not to be used; empty for none."""
        for name in selection.which or ():
            for gpu in fitting(name, here):
                if source := self.never.get(gpu.uuid):
                    return f"GPU {gpu.index} is never to be used here: {source} says so"
        return ""


def configured(config: CardSettings, gpus: Sequence[Gpu]) -> ConfiguredCards:
    """Return which of the driver's cards may be used, ranked, with what a person may ask about it.

    Simulated cards are nobody's, and are left as they are.
    """
    never = {gpu.uuid: one.source for one in config.never for gpu in fitting(one.name, gpus)}
    last = {gpu.uuid: one.source for one in config.last for gpu in fitting(one.name, gpus)}
    last = {uuid: source for uuid, source in last.items() if uuid not in never}
    barred = [f"GPU {g.index} is never used ({never[g.uuid]})" for g in gpus if g.uuid in never]
    kept = [gpu for gpu in gpus if gpu.uuid not in never]
    told = [f"GPU {g.index} is used last ({last[g.uuid]})" for g in kept if g.uuid in last]
    ranked = (replace(gpu, rank=LAST) if gpu.uuid in last else gpu for gpu in kept)
    return ConfiguredCards(tuple(ranked), never, last, tuple(barred), (*barred, *told))


def unmatched(config: CardSettings, machine: Machine) -> list[str]:
    """Return a line for each name of `gpus:` that fits no card of the machine, or several.

    An index may be that of a card which the driver cannot use. Nothing where no card is there.
    """
    broken = {str(fault.index) for fault in machine.faults}
    lines = []
    for key, cards in (("never", config.never), ("last", config.last)):
        for card in cards if machine.gpus else ():
            where = f"{card.source}: gpus: {key}: {card.name}"
            found = fitting(card.name, machine.gpus)
            if not found and card.name not in broken:
                lines.append(f"{where} fits no card here, and does nothing")
            if len(found) > 1 and not card.name.isdigit():  # an index means all its MIG instances
                lines.append(f"{where} fits {len(found)} cards, and holds for all of them")
    return lines


def allowance_here(config: CardSettings, environ: Mapping[str, str]) -> Allowance | None:
    """Return how many cards this user's launchers may hold; within a job of gpulaunch any number.

    There the outer job's cards are counted already.
    """
    return None if scope_of(environ) else allowance_of(config)


def capped(allowance: Allowance | None) -> str:
    """Return the words for why a run has no more cards; empty without an allowance."""
    if allowance is None:
        return ""
    return (
        f" (all your launchers together may hold {several(allowance.limit, 'card')} at once:"
        f" {allowance.source})"
    )


def free_below_of(config: CardSettings) -> FreeBelow | None:
    """Return what the configuration counts as free; None: it does not say."""
    return parse_free_below(config.free_below) if config.free_below else None


def lock_beside_leases(config: CardSettings, environ: Mapping[str, str]) -> None:
    """Hold leases in files as well where the configuration says so. Raises UsageError.

    It is said in this process's environment, where its helpers and its jobs find it too.
    """
    directory, source = lease_dir(config, environ)
    socket_locks.check(directory, setting_of(source))
    if directory and not os.environ.get(socket_locks.VARIABLE):
        os.environ[socket_locks.VARIABLE] = directory


# ── The pool ──────────────────────────────────────────────────────────────────────────────────────


class SelectionError(UsageError):
    """`--gpus` or the file's `gpus:` is wrong, or names a card that is not there.

    `text` is the message without the words `--gpus`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(f"--gpus: {text}")
        self.text = text


class CardPool(Struct, frozen=True):
    """The cards of a run: `gpus`, at most `limit` of them at once (None: all).

    `style` spells the mask. `here` are all cards that could be selected; `notes` what a person
    should know at the start. `share_busy` and `free_below`: as in `gpus.machine.is_free`. `engine`:
    one that queues gives cards by itself, and none is known here. `memory`: bytes of the host's
    that jobs may reserve together: all that the launcher may use; None: any.
    `allowance`: how many cards this user's launchers may hold together, where that is set.
    `config` is what it was opened by, `settings` are lines about what that changes, `barred` those
    of them about cards that it keeps from being used.
    """

    gpus: tuple[Gpu, ...]
    limit: int | None
    style: Style
    machine: environment.MachineLimits
    selection: Selection
    here: tuple[Gpu, ...]
    driver: str | None = None
    notes: tuple[str, ...] = ()
    share_busy: bool = False
    free_below: FreeBelow | None = None
    engine: str = LOCAL
    memory: int | None = None
    allowance: Allowance | None = None
    settings: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()
    config: CardSettings = CardSettings()

    @property
    def size(self) -> int:
        """How many of the cards may be used at once."""
        return len(self.gpus) if self.most is None else min(self.most, len(self.gpus))

    @property
    def most(self) -> int | None:
        """How many cards the run may hold at once, whatever others hold; None: all."""
        if self.allowance is None:
            return self.limit
        return self.allowance.limit if self.limit is None else min(self.limit, self.allowance.limit)

    @property
    def limited_by(self) -> str:
        """The configuration's place that sets `most`; empty where something else does."""
        if self.allowance is None or self.allowance.limit != self.most:
            return ""
        return self.allowance.source

    @property
    def capped(self) -> str:
        """Why the run has no more cards, where the configuration limits it; else empty."""
        if self.allowance is not None and self.allowance.limit == self.size:
            return capped(self.allowance)
        return _barred(self.barred) if 0 < self.size == len(self.here) else ""

    @property
    def named_by_uuid(self) -> frozenset[str]:
        """The kinds of a job's `isolation` under which masks name UUIDs, whatever it asks for.

        Strict jobs count their own cards, and MIG instances have no number in any case.
        """
        if any(gpu.mig for gpu in self.gpus):
            return frozenset({"env", "strict"})
        return frozenset({"env"} if self.style == "uuid" else ())

    @property
    def queueing(self) -> bool:
        """True where the engine queues jobs, and places them by itself."""
        return self.engine != LOCAL

    @property
    def echo(self) -> str:
        """The selection in words: `1 of 8 cards, any`, `Slurm, at most 4 cards at once`."""
        if self.queueing:
            name, most = self.engine.capitalize(), several(self.limit or 0, "card")
            return name if self.limit is None else f"{name}, at most {most} at once"
        return describe(self.selection, self.here) if self.here else "no card"

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus)

    def probe(self, loop: Loop) -> ProbeClient | SimulatedProbe:
        """Return what looks at the cards, and calls back from the loop."""
        if self.simulated or not self.gpus:
            return SimulatedProbe(loop)
        return ProbeClient(loop=loop)


def open_pool(
    spec: str | Selection | None,
    simulate: int | None,
    environ: Mapping[str, str],
    run_id: str,
    share_busy: bool = False,
    free_below: FreeBelow | None = None,
    config: CardSettings | None = None,
) -> CardPool:
    """Find the machine's cards and return those that the run may use.

    `config`: what held of the configuration when the launcher began, as it keeps to that; None: it
    begins, and the files are read.

    Raises SelectionError for a card that is not there, NoCardsError for too few,
    ConfigurationError. A machine without cards is no error where no number or name was asked for:
    the jobs may need none.
    """
    selection = parse(spec)
    config = required(environ).of_cards if config is None else config
    every, driver, style, notes = _here(simulate, environ, run_id, config)
    pretend = any(gpu.simulated for gpu in every)
    cards = configured(CardSettings() if pretend else config, every)
    if refusal := cards.refusal(selection, every):
        raise SelectionError(refusal)
    here, allowance = cards.gpus, None if pretend else allowance_here(config, environ)
    notes = notes if here else (*notes, *cards.told)
    try:
        chosen = choose(selection, here)
    except LookupError as error:
        raise SelectionError(str(error)) from None
    limit = selection.count
    most = len(here) if allowance is None else min(len(here), allowance.limit)
    size = min(most, len(chosen)) if limit is None else limit
    if limit is not None and limit > most:
        asked = "1 card was" if limit == 1 else f"{limit} cards were"
        why = capped(allowance) if most < len(here) else _barred(cards.barred) if here else ""
        raise NoCardsError(f"{asked} asked for, {_none_or(most, notes, why)}")
    return CardPool(
        gpus=chosen,
        limit=limit,
        style=style,
        machine=environment.MachineLimits(
            cpus=len(os.sched_getaffinity(0)),
            pool=size,
            cache=cache_directory(environ),
            placement=read_cpus(environ, chosen, size),
        ),
        memory=memory_of_machine(),
        selection=selection,
        here=here,
        driver=driver,
        notes=notes,
        # Inside a job of gpulaunch, the outer job's own processes may use the card as well.
        share_busy=share_busy or bool(scope_of(environ)),
        free_below=free_below or free_below_of(config),
        allowance=allowance,
        settings=cards.told,
        barred=cards.barred,
        config=config,
    )


def _here(
    simulate: int | None, environ: Mapping[str, str], run_id: str, config: CardSettings
) -> tuple[tuple[Gpu, ...], str | None, Style, tuple[str, ...]]:
    """Return the cards that this launcher may use, the driver, the mask's style, and notes."""
    socket_locks.check(environ.get(socket_locks.VARIABLE))
    if simulate:
        return simulated(simulate, pool_name(run_id, environ)), None, "index", ()
    if outer := _pretend_cards_of_the_job(environ):
        return outer, None, "index", ()
    lock_beside_leases(config, environ)
    machine = find(environ)
    ours = inherited(machine, environ)
    style, why = style_for(machine)
    notes = [f"the cards are those of {ours.why}"] if ours.why else []
    notes += [f"the mask names cards by UUID: {why}"] if ours.gpus and why else []
    notes += [*ours.notes, *map(str, machine.faults)]
    notes += [
        f"GPU {gpu.index} has unified memory: it uses the host's, of which gpu_memory: and memory:"
        " reserve together"
        for gpu in ours.gpus
        if gpu.unified
    ]
    if not scope_of(environ):  # a job may see fewer cards than the files name
        notes += unmatched(config, machine)
    return ours.gpus, machine.driver, style, tuple(notes)


def _pretend_cards_of_the_job(environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the simulated cards of the job in which this launcher runs; none where it has none."""
    scope, uuids = scope_of(environ), environ.get("GPULAUNCH_GPU_UUID", "").split(",")
    if not scope or not all(re.fullmatch(r"SIM-\d+", uuid) for uuid in uuids):
        return ()
    numbers = [int(uuid.removeprefix("SIM-")) for uuid in uuids]
    return tuple(gpu for gpu in simulated(max(numbers) + 1, scope) if gpu.index in numbers)


def parse(spec: str | Selection | None) -> Selection:
    if spec is None:
        return ALL
    if spec == "":
        raise SelectionError("expected all, a number of cards, or indices like 0,2; it is empty")
    if isinstance(spec, Selection):
        return spec
    try:
        return parse_selection(spec)
    except ValueError as error:
        raise SelectionError(str(error)) from None


def require(pool: CardPool, count: int) -> None:
    """Raise NoCardsError unless the pool can give `count` cards at once."""
    if count > pool.size:
        have = _none_or(pool.size, pool.notes, pool.capped)
        raise NoCardsError(f"{several(count, 'card')} needed, {have}")


def cache_directory(environ: Mapping[str, str]) -> str:
    """Return the directory of the compilers' caches, by the XDG base directories."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return os.path.join(base, "gpulaunch")


def _barred(lines: tuple[str, ...]) -> str:
    return "".join(f"; {line}" for line in lines)


def _none_or(have: int, notes: tuple[str, ...], why: str = "") -> str:
    because = "".join(f"\n  {note}" for note in notes)
    if have or why:
        return f"{have or 'none'} can be had here{why}{because}"
    hint = "to try without cards: --simulate N; what is wrong here: gpulaunch doctor"
    return f"and there is none here ({hint}){because}"
