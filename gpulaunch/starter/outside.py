"""Commands whose work is no descendant of the job: what each is told instead of being a job."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

_TERMINAL = "starts it in another terminal, and ends while it goes on outside of the job: write the"
_TMUX = (
    "new new-session neww new-window splitw split-window send send-keys respawnp respawn-pane"
    " respawnw respawn-window run run-shell"
)
_DAEMON = "has a daemon run it, outside of the job, on cards of its own choice: write what runs in"
_LATER = "has a daemon start it later, outside of the job: write the command as a job"
_QUEUE = "hands the work to another batch system: write what it runs as a job"
_REASONS: Mapping[str, str] = {
    "tmux": f"tmux {_TERMINAL} command in its quotes as a job",
    "screen": f"screen {_TERMINAL} command in its quotes as a job",
    "docker": f"docker {_DAEMON} it as a job, or use apptainer exec --nv",
    "nerdctl": f"nerdctl {_DAEMON} it as a job, or use apptainer exec --nv",
    "docker-compose": f"docker-compose {_DAEMON} it as a job",
    "at": f"at {_LATER}",
    "batch": f"batch {_LATER}",
    "tsp": f"tsp {_LATER}",
    "pueue": f"pueue {_LATER}",
    "qsub": _QUEUE,
    "bsub": _QUEUE,
    "salloc": "waits for Slurm's cards: gpulaunch gives those of this machine",
    "systemd-run": "has systemd run it, outside of the job: write the command as a job",
    "ssh": "runs on another machine; gpulaunch gives cards of this one",
    "sshpass": "runs on another machine; gpulaunch gives cards of this one",
    "watch": "runs it again and again, and never ends: write the command as a job",
}
_SERVERS = ("docker", "nerdctl", "docker-compose", "tmux", "screen")
_STARTS = frozenset({"run", "exec", "start", "restart", "up", *_TMUX.split()})
_WORD = re.compile(r"[\"']")


def why_outside(words: Sequence[str]) -> str:
    """Why what a command starts would not end with its job, in words; empty where it would."""
    if not words:
        return ""
    program = posixpath.basename(words[0])
    if program == "screen":
        return "" if words[1:2] in (["-ls"], ["-list"]) else _REASONS[program]
    if program in _SERVERS and _STARTS.isdisjoint(_WORD.sub("", word) for word in words[1:]):
        return ""
    if program == "systemd-run" and "--scope" in words:
        return ""
    return _REASONS.get(program, "")
