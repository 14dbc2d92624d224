"""The job file's JSON Schema, for editors: it accepts what the loader accepts, and says more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulaunch.jobfile.fields import (
    COUNT,
    DEFAULTS,
    ENGINE,
    JOB,
    LIST,
    NULL,
    SCALAR,
    SOME,
    TEXT,
    Kind,
    Schema,
    any_of,
    array,
    with_on,
)
from gpulaunch.jobfile.notify_spec import OCCASIONS

ID = "https://json-schema.org/draft/2020-12/schema"
_NO_SERVICE: Schema = {"properties": {"service": NULL}}
_ON: Schema = {"enum": list(OCCASIONS)}
_TARGET: Schema = {
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
            **any_of(TEXT, array(SCALAR)),
        },
        "on": {
            "description": "When: finish, first_failure, paused (all of them).",
            **any_of(_ON, {"type": "array", "items": _ON}),
        },
        "every": {"description": "Also after every so many failed jobs.", **SOME},
    },
    "oneOf": [{"required": ["to"]}, {"required": ["run"]}],
}


TARGET = with_on(_TARGET)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the whole file."""
    return {
        "$schema": ID,
        "title": "gpulaunch job file",
        "type": "object",
        "additionalProperties": False,
        "required": ["jobs"],
        "properties": {
            "name": _described(any_of(TEXT, NULL), "name"),
            "gpus": _described(any_of(LIST, COUNT, NULL), "pool"),
            "per_gpu": _described(any_of(SOME, NULL), "per_gpu"),
            "limits": _described(
                {"type": ["object", "null"], "additionalProperties": SOME}, "limits"
            ),
            "notify": _described(any_of(TARGET, array(TARGET), NULL), "notify"),
            "engine": _described(any_of(ENGINE, NULL), "engine"),
            "defaults": any_of(_fields(DEFAULTS), NULL),
            "jobs": array(_fields(JOB)),
        },
    }


def _fields(kinds: Mapping[str, Kind]) -> Schema:
    """Return the schemas of a job's fields; null means that the field is not given."""
    properties = {}
    for name, kind in kinds.items():
        own = kind.schema if name == "run" else any_of(kind.schema, NULL)
        properties[name] = _described(own, name)
    found: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if "run" in properties:
        found["oneOf"] = [{"required": ["run"]}, {"required": ["worker"], **_NO_SERVICE}]
    return found


def _described(found: Schema, name: str) -> Schema:
    return {"description": DESCRIPTIONS[name], **found}


DESCRIPTIONS = {
    "pool": "Which cards: all, how many (any), or a list of indices or UUIDs. --gpus overrides.",
    "limits": "Named tokens that jobs hold with uses:, and how many of each there are.",
    "notify": "Whom the run tells, and when: to: an address, or run: a command.",
    "name": "Unique after expansion, at most 200 bytes. Items' labels are appended where needed.",
    "run": "The command: a string for bash -eo pipefail -c, or a list executed as it is.",
    "worker": "In place of run: a Python function, FILE.py:function, or a program that loads once"
    " and takes one job after the other.",
    "gpus": "Cards this job needs at once (1). 0: the cards are hidden.",
    "gpu_memory": 'Only a card with this much memory free: "16GB", "20GiB".',
    "per_gpu": "How many jobs that say the same may share a card (1: alone).",
    "foreach": "One job per item: a glob, a list of globs, values:, lines:, csv: or fasta:.",
    "batch": "With foreach over files: this many items a job, linked in {{batch_dir}}.",
    "matrix": "One job per combination of its keys' values; exclude: drops some.",
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
    "shell": "The shell for a run: string (bash).",
    "timeout": "Longest run: 90, 30s, 2h, 1h30m.",
    "idle_timeout": "Longest silence in the log.",
    "grace": "Time between SIGTERM and SIGKILL (10s).",
    "retries": "How often to try again (0), or {times: 2, on: [gpu_oom], delay: 30s}.",
    "outputs": "Files that must exist, be non-empty and be new for success (of a pattern, one);"
    " relative to cwd.",
    "success_codes": "Exit codes of success ([0]).",
    "priority": "Higher first (0).",
    "cost": "Expected cost, larger first: a number or {{length}}.",
    "first": "The first item runs before its siblings start.",
    "service": "A server beside the jobs; ready: tcp:{{port}} or a URL.",
    "visible": "How cards are named to the job: index (default) or uuid.",
    "isolation": "env: the mask in the environment; strict: other cards' device nodes are absent.",
    "explain": "An uncaught device error in Python prints a report of every tensor into the log.",
    "preload": "Python modules imported once for all such jobs: [torch, igfold], or auto.",
    "inherit_ranks": "Keep RANK, WORLD_SIZE, SLURM_PROCID and their like.",
    "engine": "What --engine slurm tells Slurm: partition, account, qos, gres (a type of card), and"
    " extra options of sbatch. A job's own wins over defaults:, those over the file's, key by key.",
}
