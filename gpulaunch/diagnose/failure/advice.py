"""Words hints: one or two lines on what a person can do about a failure."""

from __future__ import annotations

from typing import NoReturn

from gpulaunch.core.causes import Advice, DisksFull, Hint, MemoryUse, Quoted
from gpulaunch.diagnose.failure.classes import advice_for
from gpulaunch.text import size

_NAMED = {
    # Where bash finds no `module` or `ml`, which are functions: nothing is to be installed.
    "no_modules": (
        "A login shell defines `module`, and the job's shell was not given it. Name the file that "
        "does, for all jobs: defaults: {env: {BASH_ENV: /etc/profile.d/modules.sh}} (Lmod's may be "
        "lmod.sh or z00_lmod.sh there)."
    ),
    # Where a shell that is not bash finds none.
    "not_bash": (
        "`module` is a function of bash, and this is another shell (sh is dash on Debian, Ubuntu), "
        "which is given no functions, by BASH_ENV neither. Have bash run it: #!/bin/bash in the "
        "script's first line, or bash in the place of sh."
    ),
    # Nothing inside a program can tell of a SIGKILL: whom to ask instead.
    "killed": (
        "SIGKILL is sent, and not by gpulaunch: by the kernel or systemd-oomd for want of memory "
        "(dmesg -T | grep -i 'killed process'; journalctl -u systemd-oomd; memory.events of its "
        "cgroup), a container's or scheduler's limit, or a person (kill -9)."
    ),
    "queue_refused": "Check what Slurm is told: engine: and gpus: in the job file, and --slurm",
    "queue_time": (
        "Write timeout:, which becomes --time; without it the partition's own limit holds."
    ),
    "queue_memory": "Slurm gives what --mem asks for: engine: {slurm: {extra: [--mem=64G]}}.",
}


def advice(hints: Advice) -> str:
    """Return the hints as text; empty for none."""
    return " ".join(filter(None, map(_words, hints)))


def _words(hint: Hint | DisksFull | MemoryUse | Quoted) -> str:
    match hint:
        case Quoted(text):
            return text
        case Hint(name):
            return _NAMED.get(name) or advice_for(name)
        case DisksFull(paths):
            return f"Full: {', '.join(paths)}."
        case MemoryUse():
            return _memory(hint)
    never: NoReturn = hint
    raise AssertionError(never)


def _memory(use: MemoryUse) -> str:
    """`It asked for 2 GiB more; the card has 23.7 GiB; 20.8 GiB were its own.`"""
    parts = []
    if use.asked is not None:
        parts.append(f"it asked for {size(use.asked)} more")
    if use.total is not None:
        parts.append(f"the card has {size(use.total)}")
    if use.own is not None:
        parts.append(f"{size(use.own)} were its own")
    if use.others:
        who = f" (PID {', '.join(map(str, use.pids[:3]))})" if use.pids else ""
        parts.append(f"{size(use.others)} other processes'{who}")
    return f"{parts[0][0].upper()}{'; '.join(parts)[1:]}." if parts else ""
