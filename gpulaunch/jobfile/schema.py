"""The job file's JSON Schema, for editors, and its fields in words with examples, for people.

The schema accepts what the loader accepts, and says more.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent
from typing import Any

from gpulaunch.base.errors import UsageError
from gpulaunch.jobfile import fields as f
from gpulaunch.jobfile.notify_spec import OCCASIONS
from gpulaunch.jobfile.suggest import did_you_mean_key, shorten

ID = "https://json-schema.org/draft/2020-12/schema"
_NO_SERVICE: f.Schema = {"properties": {"service": f.NULL}}
_ON: f.Schema = {"enum": list(OCCASIONS)}
_TARGET: f.Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "to": {
            "description": "An Apprise address or an http(s) URL; env:NAME: the variable has it.",
            "type": "string",
            "pattern": r"^(env:[A-Za-z_][A-Za-z0-9_]*|[A-Za-z][A-Za-z0-9+.-]*://\S*)$",
        },
        "run": {
            "description": "A command: the title is its last argument, a JSON summary its input.",
            **f.any_of(f.TEXT, f.array(f.SCALAR)),
        },
        "on": {
            "description": "When: finish, first_failure, paused, gpu_idle (all of them).",
            **f.any_of(_ON, {"type": "array", "items": _ON}),
        },
        "every": {"description": "Also after every so many failed jobs.", **f.SOME},
    },
    "oneOf": [{"required": ["to"]}, {"required": ["run"]}],
}

TARGET = f.with_on(_TARGET)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the whole file."""
    return {
        "$schema": ID,
        "title": "gpulaunch job file",
        "type": "object",
        "additionalProperties": False,
        "required": ["jobs"],
        "properties": {
            "name": _described(f.any_of(f.TEXT, f.NULL), "name"),
            "gpus": _described(f.any_of(f.LIST, f.COUNT, f.NULL), "pool"),
            "free_below": _described(f.any_of(f.TEXT, f.NULL), "free_below"),
            "per_gpu": _described(f.any_of(f.SOME, f.NULL), "per_gpu"),
            "limits": _described(
                {"type": ["object", "null"], "additionalProperties": f.SOME}, "limits"
            ),
            "notify": _described(f.any_of(TARGET, f.array(TARGET), f.NULL), "notify"),
            "engine": _described(f.any_of(f.ENGINE, f.NULL), "engine"),
            "defaults": f.any_of(_fields(f.DEFAULTS), f.NULL),
            "jobs": f.array(_fields(f.JOB)),
        },
    }


def _fields(kinds: Mapping[str, f.Kind]) -> f.Schema:
    """Return the schemas of a job's fields; null means that the field is not given."""
    properties = {}
    for name, kind in kinds.items():
        own = kind.schema if name == "run" else f.any_of(kind.schema, f.NULL)
        properties[name] = _described(own, name)
    found: f.Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if "run" in properties:
        found["oneOf"] = [{"required": ["run"]}, {"required": ["worker"], **_NO_SERVICE}]
    return found


def _described(found: f.Schema, name: str) -> f.Schema:
    return {"description": DESCRIPTIONS[name], **found}


DESCRIPTIONS = {
    "pool": "Which cards: all, how many (any), or a list of indices or UUIDs. --gpus overrides.",
    "free_below": "Memory below which a card counts as free, of nobody that the driver names or of"
    " desktop programs: 2GB, 5%, or 2GB,5%, the larger (512MiB,1%). --free-below overrides.",
    "limits": "Named tokens that jobs hold with uses:, and how many of each there are.",
    "notify": "Whom the run tells, and when: to: an address, or run: a command.",
    "name": "Unique after expansion, at most 200 bytes. Items' labels are appended where needed.",
    "run": "The command: a string for bash -eo pipefail -c, or a list executed as it is.",
    "worker": "In place of run: a Python function, FILE.py:function, or a program that loads once"
    " and takes one job after the other.",
    "gpus": "Cards this job needs at once (1). 0: the cards are hidden.",
    "gpu_memory": 'Only a card with this much memory free: "16GB", "20GiB". auto: what jobs of'
    " this entry took at most, in this run or earlier ones, and a fifth more; until that is known,"
    " each has a card alone.",
    "memory": "Host memory reserved for this job, and its limit where this user may set one.",
    "card": 'Only cards with a name (see gpulaunch gpus) that fits this glob, any case: "*A100*".',
    "compute": "Only cards of at least this compute capability: 8.0.",
    "per_gpu": "How many jobs that say the same may share a card (1: alone). With share: how many"
    " at most.",
    "share": "Shares its card with any jobs that say so, while the gpu_memory of all of them fits"
    " (auto, where none is given).",
    "mps": "Jobs that share a card compute on it at once, through CUDA's Multi-Process Service"
    " (MPS), which gpulaunch starts and ends; each is kept to its gpu_memory.",
    "foreach": "One job per item: a glob, a list of globs, values:, lines:, csv: or fasta:; cards:"
    " one on each of the run's cards.",
    "batch": "With foreach over files: this many items a job, linked in {{batch_dir}}.",
    "matrix": "One job per combination of its keys' values; exclude: drops some. With sample:,"
    " keys may be ranges as well.",
    "sample": "So many combinations of the matrix, drawn: a number, or {n: 40, seed: 1}. Its keys"
    " are then lists, or ranges: {uniform: [0, 0.5]}, {log: [1e-5, 1e-2]}, {integer: [2, 8]}.",
    "needs": "Names or globs of jobs that must succeed first.",
    "after": "Names or globs of jobs that must have ended first, whatever came out.",
    "cpus": "CPUs reserved (1).",
    "uses": "Named tokens of limits: held while it runs.",
    "cwd": "Working directory (the job file's).",
    "env": "Variables added; null removes one. The cards' mask cannot be set.",
    "env_file": "A file of KEY=VALUE lines, read when the run starts.",
    "python": "Run in this interpreter.",
    "venv": "Run in this virtual environment.",
    "conda": "Run in this conda environment, by name or prefix.",
    "modules": "Environment modules that are loaded, in this order, before the job starts.",
    "container": "Run in a container: an image's name (vllm/vllm-openai:latest) or file"
    " (./boltz.sif), or {image, engine, mounts, args, user, pull}. It sees the job's cards alone,"
    " and the job's directories at their own paths.",
    "shell": "The shell for a run: string (bash).",
    "timeout": "Longest run: 90, 30s, 2h, 1h30m.",
    "idle_timeout": "Longest silence in the log.",
    "gpu_idle": "Longest time that it may hold its cards' memory and compute nothing on any of"
    " them; it is then ended.",
    "grace": "Time between SIGTERM and SIGKILL (10s).",
    "warn": "A signal ahead of the timeout, to what takes it: {signal: USR2, before: 3m}. An end"
    " after it that is no success counts as the timeout.",
    "preemptible": "Gives its cards up to a launcher that has none and waits for one. The job is"
    " run again later; no retry is spent.",
    "retries": "How often to try again (0), or {times: 2, on: [gpu_oom], delay: 30s}.",
    "not_before": "Not started before this time: 19:00 (the next one, from when the run first reads"
    " it), 2026-11-26 07:30 (local time), 2026-11-26T07:30Z (with an offset).",
    "outputs": "Files that must exist, be non-empty and be new for success (of a pattern, one);"
    " relative to cwd.",
    "success_codes": "Exit codes of success ([0]).",
    "priority": "Higher first (0).",
    "cost": "Expected cost, larger first: a number or {{length}}.",
    "first": "The first item runs before its siblings start.",
    "service": "A server beside the jobs; ready: tcp:{{port}} or a URL, where it has to answer"
    " within ready_within: (30m).",
    "visible": "How cards are named to the job: index (default) or uuid.",
    "isolation": "env: the mask in the environment; strict: other cards' device nodes are absent.",
    "affinity": "card: on the CPUs near its card, split among per_gpu jobs (so by itself where the"
    " machine has more than one NUMA node); none: on all that are allowed.",
    "explain": "An uncaught device error in Python prints a report of every tensor into the log.",
    "preload": "Python modules imported once for all such jobs: [torch, igfold], or auto.",
    "ladder": "Placeholders whose values move one step further with each retry of the classes in"
    " retries.on (any, without on). Jobs of an entry start at the furthest step that succeeded.",
    "inherit_ranks": "Keep RANK, WORLD_SIZE, SLURM_PROCID and their like.",
    "engine": "What --engine slurm tells Slurm: partition, account, qos, gres (a type of card), and"
    " extra options of sbatch. A job's own wins over defaults:, those over the file's, key by key.",
}

# ── in words: `gpulaunch schema FIELD` ──────────────────────────────────────────────────────────

OF_FILE = {
    "name": "name: nanobodies",
    "gpus": "gpus: [0, 2]",
    "free_below": "free_below: 2GB",
    "per_gpu": "per_gpu: 2",
    "limits": "limits: {msa_server: 1}",
    "notify": 'notify: {to: "env:LAB_CHANNEL", "on": [finish, first_failure]}',
    "engine": "engine: {slurm: {partition: gpu, account: lab}}",
    "defaults": "defaults: {timeout: 2h, retries: 1}",
    "jobs": "",
}
OF_JOB = {
    "name": "name: fold-{{stem}}\nforeach: inputs/*.fasta",
    "run": "run: [python, predict.py, --device, 'cuda:0']",
    "worker": 'worker: "fold.py:fold"\nforeach: inputs/*.fasta',
    "gpus": "gpus: 2",
    "gpu_memory": "gpu_memory: 16GB",
    "memory": "memory: 64GB",
    "card": 'card: "*A100*"',
    "compute": "compute: 8.0",
    "per_gpu": "per_gpu: 2",
    "share": "share: true\ngpu_memory: auto",
    "mps": "per_gpu: 4\nmps: true\ngpu_memory: 4GB",
    "foreach": "foreach: inputs/*.fasta\nrun: python predict.py {{path}} {{out}}",
    "batch": "foreach: inputs/*.fasta\nbatch: 8\nrun: python predict.py {{batch_dir}}",
    "matrix": "matrix: {lr: [1e-3, 1e-4], seed: [0, 1]}\nrun: python train.py {{lr}} {{seed}}",
    "sample": "matrix: {lr: {log: [1e-5, 1e-2]}, depth: {integer: [2, 8]}, batch: [16, 32]}\n"
    "sample: {n: 40, seed: 1}\nrun: python train.py {{lr}} {{depth}} {{batch}}",
    "needs": 'needs: ["fold-*"]',
    "after": 'after: ["fold-*"]',
    "cpus": "cpus: 8",
    "uses": "uses: [msa_server]",
    "cwd": "cwd: work",
    "env": "env: {HF_HOME: /data/hf, WANDB_API_KEY: null}",
    "env_file": "env_file: settings.env",
    "python": "python: /opt/chai/bin/python",
    "venv": "venv: .venv",
    "conda": "conda: chai",
    "modules": "modules: [gcc/13, cuda/12.4]",
    "container": "container: {image: alphafold3, mounts: [/data/databases:/databases:ro]}\n"
    "run: python run_alphafold.py --json_path={{path}} --output_dir={{out}}\n"
    "foreach: inputs/*.json",
    "shell": "shell: zsh",
    "timeout": "timeout: 2h",
    "idle_timeout": "idle_timeout: 20m",
    "gpu_idle": "gpu_idle: 30m",
    "grace": "grace: 30s",
    "warn": "timeout: 4h\nwarn: {signal: USR2, before: 3m}\nrun: python train.py {{keep}}",
    "preemptible": "preemptible: true\nwarn: {signal: USR2, before: 3m}\n"
    "run: python train.py {{keep}}",
    "retries": 'retries: {times: 2, "on": [gpu_oom, network], delay: 30s}',
    "not_before": 'not_before: "19:00"',
    "outputs": 'outputs: ["{{out}}/structure.pdb"]\nrun: python predict.py {{out}}',
    "success_codes": "success_codes: [0, 3]",
    "priority": "priority: 10",
    "cost": 'foreach: {fasta: all.fasta}\ncost: "{{length}}"\nrun: python predict.py {{path}}',
    "first": "foreach: inputs/*.fasta\nfirst: true\nrun: python predict.py {{path}}",
    "service": 'service: {ready: "tcp:{{port}}"}\nrun: python serve.py --port {{port}}',
    "visible": "visible: uuid",
    "isolation": "isolation: strict",
    "affinity": "affinity: none",
    "explain": "explain: true",
    "preload": "preload: [torch, igfold]",
    "ladder": 'ladder: {batch: [32, 16, 8]}\nretries: {times: 2, "on": [gpu_oom]}\n'
    "run: python embed.py --batch-size {{batch}}",
    "inherit_ranks": "inherit_ranks: true",
    "engine": "engine: {slurm: {gres: a100, extra: [--mem=64G]}}",
}
_COMMAND = "run: python predict.py"


def explained(field: str) -> str:
    """Return what the field means, where it may stand, and an example. Raises UsageError."""
    name = field.removesuffix(":")
    told = []
    if name in OF_FILE:
        words = schema()["properties"][name].get("description") or _OF_ITSELF[name]
        text = "\n".join(filter(None, (OF_FILE[name], "jobs:", f"  - {_COMMAND}")))
        told.append(f"{name}, of the file: {words}\n\n{indent(text, '    ')}\n")
    if name in OF_JOB:
        of = "of a job, or of all in defaults" if name in f.DEFAULT_FIELDS else "of a job"
        lines = OF_JOB[name]
        if "run:" not in lines and "worker:" not in lines:
            lines += f"\n{_COMMAND}"
        text = f"jobs:\n  - {indent(lines, '    ').strip()}"
        told.append(f"{name}, {of}: {DESCRIPTIONS[name]}\n\n{indent(text, '    ')}\n")
    if not told:
        known = {*OF_FILE, *f.FIELDS}
        near = did_you_mean_key(name, known) or f"; there are {', '.join(sorted(known))}"
        raise UsageError(f"a job file has no field {shorten(name)!r}{near}")
    return "\n".join(told)


_OF_ITSELF = {
    "defaults": "Fields of jobs that hold for all that do not say otherwise.",
    "jobs": "The jobs; schema run, schema foreach ... tell of what each may have.",
}
