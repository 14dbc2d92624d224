"""Suggests the nearest known word in messages, and shortens long ones."""

from __future__ import annotations

import difflib
from collections.abc import Collection

# fmt: off
_HABITS = {
    "run": ("command", "commands", "cmd", "script", "exec", "execute", "program", "entrypoint",
            "shell_command", "args", "argv", "bash", "steps", "task", "call", "wrap"),
    "cwd": ("workdir", "working_dir", "working_directory", "work_dir", "dir", "directory", "chdir",
            "pwd", "folder"),
    "gpus": ("gpu", "num_gpus", "n_gpus", "n_gpu", "ngpus", "ngpu", "gpu_count", "devices",
             "device", "cards", "gres", "cuda", "gpus_per_job", "gpus_per_task", "accelerators"),
    "gpu_memory": ("vram", "gpu_mem", "gpumem", "min_vram", "gpu_ram", "cuda_memory"),
    "memory": ("mem", "ram", "mem_gb", "memory_gb", "mem_mb", "max_ram", "host_memory", "rss"),
    "card": ("gpu_type", "gpu_model", "gpu_name", "card_type", "card_model", "gpu_kind"),
    "compute": ("compute_capability", "cuda_capability", "capability", "cuda_arch", "sm"),
    "affinity": ("numa", "cpu_bind", "cpu_affinity", "cpu_set", "cpuset", "bind", "gpu_bind"),
    "mps": ("multi_process_service", "use_mps", "cuda_mps", "enable_mps"),
    "per_gpu": ("jobs_per_gpu", "slots"),
    "share": ("shared", "sharing", "gpu_fraction", "fraction", "fractional", "oversubscribe",
              "pack", "packing", "colocate"),
    "cpus": ("cpu", "num_cpus", "n_cpus", "ncpus", "threads", "cores", "n_jobs",
             "cpus_per_task", "ntasks"),
    "needs": ("depends_on", "depends", "dependencies", "dependency", "dependson", "requires",
              "require", "prerequisites", "wait_for", "upstream", "parents", "afterok"),
    "after": ("afterany", "follows"),
    "env": ("environment", "vars", "variables", "environ", "envs", "env_vars", "environment_vars"),
    "env_file": ("dotenv", "envfile", "environment_file"),
    "conda": ("conda_env", "conda_environment", "mamba", "micromamba"),
    "venv": ("virtualenv", "virtual_env"),
    "python": ("interpreter", "python_bin", "python_path"),
    "shell": ("executable",),
    "modules": ("module", "module_load", "envmodules", "env_modules", "environment_modules",
                "lmod", "ml", "load_modules"),
    "retries": ("retry", "max_retries", "attempts", "max_attempts", "restart", "restarts",
                "num_retries", "tries", "backofflimit", "requeue"),
    "times": ("retries", "count", "max", "number", "attempts", "limit"),
    "delay": ("wait", "backoff", "sleep", "interval", "cooldown"),
    "timeout": ("time", "walltime", "wall_time", "time_limit", "timelimit", "max_time",
                "max_runtime", "time_min", "deadline", "runtime"),
    "gpu_idle": ("idle_gpu", "gpu_idle_timeout", "gpu_timeout", "idle_gpu_timeout"),
    "idle_timeout": ("stall_timeout", "silence", "no_output_timeout", "hang_timeout"),
    "not_before": ("begin", "start", "start_at", "start_time", "starttime", "at", "not_earlier",
                   "schedule", "scheduled", "delay_until", "wait_until", "eligible", "notbefore"),
    "grace": ("grace_period", "kill_after", "stop_timeout", "killwait"),
    "foreach": ("for_each", "for", "items", "inputs", "input", "files", "loop", "each", "glob",
                "with_items", "array", "map"),
    "matrix": ("sweep", "grid", "params", "parameters", "product", "combinations", "strategy"),
    "sample": ("samples", "n_samples", "num_samples", "random", "draws", "trials", "n_trials"),
    "batch": ("batch_size", "chunk", "chunks", "chunk_size", "group_size"),
    "outputs": ("output", "out", "produces", "targets", "artifacts", "creates", "results"),
    "success_codes": ("ok_codes", "exit_codes", "allowed_exit_codes", "returncodes"),
    "uses": ("tokens", "resources", "locks", "semaphore", "lock", "license", "licenses"),
    "limits": ("tokens", "concurrency", "resources", "semaphores"),
    "priority": ("prio", "nice", "weight"),
    "cost": ("duration", "expected", "estimate", "size"),
    "name": ("id", "title", "label", "job", "job_name", "jobname"),
    "jobs": ("job", "tasks", "steps", "list", "services"),
    "defaults": ("default", "common", "global", "globals", "settings", "base"),
    "notify": ("notifications", "notification", "mail", "email", "mail_user", "on_failure",
               "webhook", "slack"),
    "service": ("server", "daemon", "healthcheck", "ready"),
    "engine": ("executor", "backend", "slurm", "sbatch", "scheduler", "cluster",
               "nodes", "partition", "account", "qos"),
    "isolation": ("sandbox", "isolate"),
    "preemptible": ("spare", "preemptable", "spot", "best_effort", "opportunistic"),
    "warn": ("signal", "warning", "pre_signal", "checkpoint_signal"),
    "first": ("warmup", "warm_up"),
    "worker": ("function", "callable"),
    "function": ("fn", "func", "callable", "call"),
    "load": ("init", "setup", "initializer", "initialise", "initialize"),
    "to": ("url", "address", "target", "apprise"),
    "on": ("when", "events", "occasions", "classes", "if"),
}
# fmt: on
"""Other tools' words for our keys; one of theirs may stand for several of ours."""


def did_you_mean(word: str, known: Collection[str], alike: float = 0.6) -> str:
    """Return `; did you mean fold-a?` for the nearest spelling, or "". `alike`: from 0 to 1."""
    near = difflib.get_close_matches(word.lower()[:80], sorted(known), n=1, cutoff=alike)
    return f"; did you mean {near[0]}?" if near else ""


def did_you_mean_key(word: str, known: Collection[str]) -> str:
    """Return `; did you mean gpus?` for another tool's word, else for the nearest spelling."""
    plain = word.lower().replace("-", "_")[:80]
    meant = [ours for ours, theirs in _HABITS.items() if plain == ours or plain in theirs]
    if not meant:
        # A wrong guess costs more than none.
        return did_you_mean(plain, known, alike=0.74 if len(plain) > 3 else 0.8)
    fitting = [ours for ours in meant if ours in known]
    return f"; did you mean {fitting[0]}?" if fitting else ""


def shorten(text: str) -> str:
    """Return at most 80 characters of the text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."
