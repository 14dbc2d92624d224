"""A sweeper that launches jobs as often as it is told, and writes down what each returned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

ConfigStore.instance().store(
    group="hydra/sweeper",
    name="in_order",
    node={"_target_": "hydra_plugins.in_order.InOrder", "file": "???", "again": None},
)


class InOrder(Sweeper):
    """`file` has the overrides of each job, by batch. `again`: the second batch's first number."""

    def __init__(self, file: str, again: int | None = None) -> None:
        self.batches, self.again = json.loads(Path(file).read_text()), again

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        number, told = 0, []
        for place, batch in enumerate(self.batches):
            if place and self.again is not None:
                number = self.again
            jobs = [[*arguments, *overrides] for overrides in batch]
            told += [said(one) for one in self.launcher.launch(jobs, initial_job_idx=number)]
            number += len(batch)
        Path(self.config.hydra.sweep.dir, "returned.json").write_text(json.dumps(told))


def said(returned: Any) -> Any:
    """What the job returned; of a failed one, what it raised."""
    try:
        value = returned.return_value
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error), **vars(error)}
    return value if isinstance(value, (int, float, str, list)) else type(value).__qualname__
