"""What may be set below `hydra.launcher`, and its defaults.

Hydra loads this file without a place in `sys.modules`, where a dataclass would look for the meaning
of annotations that are text: there are none here.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore


@dataclass
class GpulaunchLauncherConf:
    """The cards of a sweep, and what holds for each of its jobs."""

    _target_: str = "hydra_plugins.hydra_gpulaunch_launcher.gpulaunch_launcher.GpulaunchLauncher"

    # Which cards: all, how many (any), or [0, 2] as `gpulaunch gpus` shows them, or UUIDs.
    gpus: Any = "all"
    # Cards that a job has at once; 0: it sees none.
    gpus_per_job: int = 1
    # Jobs that share a card.
    per_gpu: int = 1
    # A number, or {times: 2, on: [gpu_oom, gpu_lost], delay: 30s} by failure class.
    retries: Any = 0
    # The longest that a job may run: 90m, 2h.
    timeout: str | None = None
    # The longest to wait for a first card: 10m; null: for ever.
    wait: str | None = None
    # So many pretend cards instead of the real ones.
    simulate: int | None = None
    # Where the run is kept: its journal, the jobs' logs, the report.
    run_dir: str = "${hydra.sweep.dir}/gpulaunch"
    # Any other field of a job, as in a job file: {gpu_memory: 20GB, env: {WANDB_MODE: offline}}.
    job: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(
    group="hydra/launcher",
    name="gpulaunch",
    node=GpulaunchLauncherConf,
    provider="gpulaunch_launcher",
)
