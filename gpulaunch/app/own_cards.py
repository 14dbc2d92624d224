"""Says which cards a run has, for `foreach: cards`, before or while it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

from gpulaunch.core.ledger import LOCAL
from gpulaunch.core.model import Gpu
from gpulaunch.core.selection import Selection
from gpulaunch.engines import setup_of
from gpulaunch.engines.pool import CardPool, SelectionError, require
from gpulaunch.errors import NoCardsError
from gpulaunch.jobfile.cards import CardsOfRun
from gpulaunch.journal.choices import Choices


def cards_of(choices: Choices, engine: str | None = None) -> CardsOfRun:
    """Return what tells which cards a run of these choices has, by a look at the machine.

    It looks when it is first asked. What it returns raises UsageError where `--gpus` is wrong.
    """

    @cache
    def look(selected: Selection) -> Sequence[Gpu]:
        if engine not in (None, LOCAL):
            raise LookupError(_CLUSTERS)
        asked = selected if choices.gpus is None else choices.gpus
        try:
            pool = setup_of(LOCAL).open_pool(asked, choices, os.environ, "")
        except SelectionError as error:
            if choices.gpus is not None:
                raise
            raise LookupError(error.text) from None
        if not pool.gpus:
            require(pool, 1)
        return _known(pool)

    return look


def cards_if_any(choices: Choices, engine: str | None = None) -> CardsOfRun:
    """Return what tells the same, and tells none where this machine has none.

    For a list that is only looked at, and may run elsewhere.
    """
    known = cards_of(choices, engine)

    def look(selected: Selection) -> Sequence[Gpu]:
        try:
            return known(selected)
        except (LookupError, NoCardsError):
            if choices.gpus is None and _none_here(choices, engine):
                return ()
            raise

    return look


def _none_here(choices: Choices, engine: str | None) -> bool:
    if engine not in (None, LOCAL):
        return False
    return not setup_of(LOCAL).open_pool(None, choices, os.environ, "").here


def cards_in(pool: CardPool) -> CardsOfRun:
    """Return what tells which cards the run of this pool has."""
    return lambda _: _known(pool)


def _known(pool: CardPool) -> Sequence[Gpu]:
    """Return the pool's cards. Raises LookupError for none, and where they are not certain."""
    if pool.queueing:
        raise LookupError(_CLUSTERS)
    if not pool.gpus:
        raise LookupError("the run has no card")
    if pool.limit is not None and pool.limit < len(pool.gpus):
        raise LookupError(
            f"the run takes any {pool.limit} of {len(pool.gpus)} cards, and only once it has them"
            " it is known which: name them (gpus: [0, 2], --gpus 0,2), or take all"
        )
    return pool.gpus


_CLUSTERS = (
    "a cluster chooses the cards, so that none is known before: say how many jobs there are to be,"
    " like foreach: {values: [0, 1, 2, 3]}"
)
