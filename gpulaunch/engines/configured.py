"""What the configuration says of this machine's cards: never used, used last, how many at once.

The driver's cards go in, and those come out that may be used, ranked, with what a person may ask
about it. Pretend cards are nobody's, and are left as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.config.limits import allowance_of
from gpulaunch.config.model import Allowance, CardSettings
from gpulaunch.config.paths import lease_dir, setting_of
from gpulaunch.core.model import Gpu
from gpulaunch.core.selection import Selection, fitting
from gpulaunch.free_below import FreeBelow, parse_free_below
from gpulaunch.gpus import lockfile
from gpulaunch.gpus.lease import scope_of
from gpulaunch.gpus.machine import Machine
from gpulaunch.text import several

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
    """Return which of these cards may be used, and which of them last."""
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
    lockfile.check(directory, setting_of(source))
    if directory and not os.environ.get(lockfile.VARIABLE):
        os.environ[lockfile.VARIABLE] = directory
