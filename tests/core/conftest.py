"""Every test of the core holds each change of a state to the tables of legal transitions."""

from __future__ import annotations

from typing import Any

import pytest

from gpulaunch.core.attempts import ActiveAttempt
from gpulaunch.core.cards import Card
from gpulaunch.core.jobs import Node
from tests.core.transitions import TABLES


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(cls: type[Any], table: Any) -> None:
        def become(self: Any, state: Any) -> None:
            legal = type(state) in table[type(self.state)]
            assert legal, f"{cls.__name__}: {self.state} became {state}"
            self.state = state

        monkeypatch.setattr(cls, "become", become)

    for cls in (Node, ActiveAttempt, Card):
        watch(cls, TABLES[cls])
