"""What the configuration says, and where each part of it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gpulaunch.errors import Mistake

if TYPE_CHECKING:
    from gpulaunch.jobfile.notify_spec import Target


class NamedCard(Struct, frozen=True):
    """A card by its index or UUID, and the place (`FILE:LINE`) that names it."""

    name: str
    source: str


class CardCounts(Struct, frozen=True):
    """Cards that each user, by name, may hold at once; `sources`: the place of each name."""

    counts: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


class CardLimits(Struct, frozen=True):
    """`limits:` of the machine's file: of users, and of each member of a group."""

    users: CardCounts = CardCounts()
    groups: CardCounts = CardCounts()


class Allowance(Struct, frozen=True):
    """How many cards the launchers of this user may hold at once, and the place that says so."""

    limit: int
    source: str


class CardSettings(Struct, frozen=True):
    """What both files say of this machine's cards. `sources` has the place of each key given."""

    never: tuple[NamedCard, ...] = ()
    last: tuple[NamedCard, ...] = ()
    free_below: str | None = None
    lease_dir: str | None = None
    limits: CardLimits = CardLimits()
    sources: Mapping[str, str] = field(default_factory=dict)


class Configuration(CardSettings, frozen=True):
    """What both files say together. `sources` has the keys of `slurm` as `slurm.partition`.

    `notify` and `slurm` are as in a job file, for runs whose file is silent. `runs` is as it was
    typed: see `paths`. `mistakes`: keys that are wrong are as if they were not given.
    """

    runs: str | None = None
    notify: tuple[Target, ...] = ()
    slurm: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()

    @property
    def of_cards(self) -> CardSettings:
        """What of it is about cards."""
        return CardSettings(*(getattr(self, name) for name in CardSettings.__struct_fields__))


NOTHING = Configuration()
