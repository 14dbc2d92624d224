"""Clusters, for the suite that every engine passes; and the table of a card's legal transitions."""

from __future__ import annotations

import pytest

from gpulaunch.engines.local.leases import TRANSITIONS, CardLeases, CardState, Unleased
from tests.slurm.conftest import _shared, cluster, own_cluster, slurm_here

__all__ = ["_shared", "cluster", "own_cluster", "slurm_here"]


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold each change of a card's state to the table."""
    states: dict[tuple[CardLeases, str], CardState] = {}
    change = CardLeases.become

    def become(self: CardLeases, uuid: str, state: CardState) -> None:
        before = states.get((self, uuid), Unleased())
        assert type(state) in TRANSITIONS[type(before)], f"{before} became {state}"
        states[self, uuid] = state
        change(self, uuid, state)

    monkeypatch.setattr(CardLeases, "become", become)
