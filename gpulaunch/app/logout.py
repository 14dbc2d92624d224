"""Whether what this user leaves running outlives the user's logout: what systemd does then.

Sources: logind.conf(5), KillUserProcesses; loginctl(1), enable-linger; user@.service(5).
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

from gpulaunch.gpus.machine import DoctorFinding

ANSWER = 5.0
"""Seconds for systemd-logind to answer."""
_LINGERING = Path("/var/lib/systemd/linger")
_CGROUP = Path("/proc/self/cgroup")
_ASK = (
    "busctl",
    "get-property",
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
    "KillUserProcesses",
)


def ended_at_logout(
    cgroup: Path = _CGROUP,
    lingering: Path = _LINGERING,
    kills: Callable[[], bool] | None = None,
) -> str:
    """Return what ends this process's like when its user logs out; empty where nothing does.

    `kills` asks whether logind kills what a session has left.
    """
    place = _place(cgroup)
    if ".service" not in place and ".scope" not in place:
        return ""
    if "/user@" in place:
        return "" if lingers(lingering) else "systemd ends a user's services with the last logout"
    if "/session-" in place and os.geteuid() and (kills or _kills)():
        return "logind ends what a session has left (KillUserProcesses=yes)"
    return ""


def lingers(lingering: Path = _LINGERING) -> bool:
    """Tell whether this user's services begin at boot, and outlive a logout."""
    return (lingering / _user()).exists()


def how_to_stay(what: str) -> str:
    """Return what a person does so that a run is not ended so."""
    if what.startswith("logind"):
        return "loginctl enable-linger, and systemd-run --user --scope before the command"
    return "loginctl enable-linger"


def finding() -> DoctorFinding:
    """Return what `gpulaunch doctor` says of that."""
    what = ended_at_logout()
    if what:
        return DoctorFinding(
            "warning", f"a run that is left alone ends at logout: {what}", how_to_stay(what)
        )
    return DoctorFinding("ok", "a run that is left alone (--detach, queue) outlives the logout")


def _place(cgroup: Path) -> str:
    """Return this process's place among systemd's units; empty where there are none."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return ""
    return next(
        (line.split(":", 2)[2] for line in lines if line.startswith(("0::", "1:name="))), ""
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _kills() -> bool:
    try:
        told = subprocess.run(_ASK, capture_output=True, text=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.stdout.split() == ["b", "true"]
