"""A job list whose names and values try everything, and what is left of it wherever it ran."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from tests.cli.launcher import Launcher

ITEMS = [
    "plain",
    "two words",
    "it's",
    'say "so"',
    "$(touch owned)",
    "`touch owned`",
    "${HOME}",
    "-n",
    "--force",
    "a;b|c&d>e<f",
    "*",
    "[x]",
    "back\\slash",
    "ärger-日本",
    "tab\there",
    "new\nline",
    "!!",
    "%{TASK_ID}",
    "'''",
    "#c",
    "~",
    "{a,b}",
    "a=b",
]


def hostile(launcher: Launcher, name: str = "jobs.yaml") -> Path:
    """Every item through a script, a list, a variable, an output, and a job that needs it."""
    jobs = [
        {
            "name": "text-{{item}}",
            "foreach": {"values": ITEMS},
            "run": "printf '%s|' {{item}} \"<{{item}}>\" '={{item}}' > {{out}}/said\n"
            "printf '%s' \"$VALUE\" {{job}} >> {{out}}/said",
            "env": {"VALUE": "v{{item}}"},
            "outputs": ["{{out}}/said"],
        },
        {
            "name": "list-{{item}}",
            "foreach": {"values": ITEMS},
            "needs": ["text-{{item}}"],
            "run": ["bash", "-c", 'printf "%s|" "$@" >"$0"', "{{out}}/it {{item}}", "{{item}}", ""],
        },
        {
            "name": "all",
            "gpus": 0,
            "needs": ["list-?*"],
            "run": 'cd {{run_dir}}/results && for d in *; do [ "$d" = all ] || '
            '{ echo "$d"; cat "$d"/*; }; done > {{out}}/all',
        },
    ]
    launcher.environ["LC_ALL"] = "C.UTF-8"  # the order of `*`
    text = yaml.safe_dump({"name": "hostile", "jobs": jobs}, allow_unicode=True)
    path = launcher.path / name
    path.write_text(text, encoding="utf-8")
    return path


def results(directory: Path) -> dict[str, bytes]:
    """Every file that a job that succeeded has left, by job and name."""
    found = {}
    base = directory / "results"
    for job in sorted(os.listdir(base)):
        for file in sorted((base / job).iterdir()):
            found[f"{job} :: {file.name}"] = file.read_bytes()
    return found


def as_run(launcher: Launcher, jobs: Path) -> dict[str, bytes]:
    """What `gpulaunch run` leaves of it."""
    done = launcher("run", jobs, "--simulate", "2", "--quiet")
    assert done.status == 0, done.err
    return results(launcher.run)
