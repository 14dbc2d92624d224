"""The cards of this machine, as `gpulaunch gpus` shows them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpulaunch.app.observer import NOBODY, Observer
from gpulaunch.config.files import current
from gpulaunch.engines.configured import configured, free_below_of, unmatched
from gpulaunch.errors import UsageError
from gpulaunch.gpus.discover import ProbeClient, find
from gpulaunch.gpus.inventory import inventory
from gpulaunch.gpus.lease import scope_of
from gpulaunch.gpus.mask import pool

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import MachineCard


def cards_here(observer: Observer = NOBODY) -> list[MachineCard]:
    """Return a row for each card: who uses it, who has its lease, its health.

    What is wrong with the driver, a card or the inherited mask is noted.
    """
    with ProbeClient(os.environ) as client:
        machine = find(os.environ, client=client)
        try:
            ours = pool(machine, os.environ)
        except UsageError as error:  # the mask may mean two cards: a run would refuse it
            ours = None
            observer.note(str(error))
        config = current()
        said = configured(config, machine.gpus)
        rows = inventory(
            machine,
            client,
            scope_of(os.environ),
            ours,
            said.never,
            said.last,
            free_below_of(config),
        )
    for line in (*machine.faults, *unmatched(config, machine)):
        observer.note(str(line))
    return rows
