"""Real cards for the tests in here: only those of an inherited mask, only free ones, and leased.

Without one the tests are skipped; they fail where GPULAUNCH_REQUIRE_GPU=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.gpus.discover import ProbeClient, find, looks
from gpulaunch.gpus.lease import scope_of, take
from gpulaunch.gpus.machine import Machine, is_free
from gpulaunch.gpus.mask import pool
from gpulaunch.gpus.socket_locks import NameHeldError


def no_card(why: str) -> None:
    if os.environ.get("GPULAUNCH_REQUIRE_GPU") == "1":
        pytest.fail(f"GPULAUNCH_REQUIRE_GPU=1, and {why}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def client() -> Iterator[ProbeClient]:
    with ProbeClient(os.environ, limit=60.0) as client:
        yield client


@pytest.fixture(scope="session")
def machine(client: ProbeClient) -> Machine:
    found = find(os.environ, client=client)
    if not found.gpus:
        no_card("no card: " + "; ".join(map(str, found.faults)))
    return found


@pytest.fixture(scope="session")
def free(machine: Machine, client: ProbeClient) -> tuple[Gpu, ...]:
    """The cards that this user may use and that nobody uses now."""
    ours = pool(machine, os.environ).gpus
    seen = looks(client, ours)
    found = tuple(gpu for gpu in ours if is_free(seen[gpu.uuid]) is None)
    if not found:
        no_card("no card is free: " + "; ".join(str(is_free(seen[gpu.uuid])) for gpu in ours))
    return found


@pytest.fixture
def gpu(free: tuple[Gpu, ...]) -> Iterator[Gpu]:
    """One free card, leased for the length of the test."""
    for card in free:
        try:
            lease = take(card.key, scope_of(os.environ))
        except NameHeldError:
            continue
        with lease:
            yield card
        return
    no_card("every free card is leased to another launcher")
