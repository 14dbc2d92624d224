"""Commands whose work is no descendant of the job: what each is told instead of being a job."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from gpulaunch.containers.lines import image_in
from gpulaunch.jobfile.commands import daemon_of, plain

_ELSEWHERE = "runs on another machine; gpulaunch gives cards of this one"
_BY_NAME: Mapping[str, str] = {
    "salloc": "waits for Slurm's cards: gpulaunch gives those of this machine",
    "ssh": _ELSEWHERE,
    "sshpass": _ELSEWHERE,
    "watch": "runs it again and again, and never ends: write the command as a job",
}
_BY_DAEMON: Mapping[str, str] = {
    "terminal": "{} starts it in another terminal, and ends while it goes on outside of the job:"
    " write the command in its quotes as a job",
    "container": "{} has a daemon run it, outside of the job, on cards of its own choice: write"
    " what runs in it as a job, with container: {}",
    "later": "{} has a daemon start it later, outside of the job: write the command as a job",
    "queue": "hands the work to another batch system: write what it runs as a job",
    "systemd": "has systemd run it, outside of the job: write the command as a job",
}


def why_outside(words: Sequence[str]) -> str:
    """Return why what a command starts would not end with its job, in words; else empty."""
    first, *arguments = [word.strip("\"'") for word in words] or [""]
    name = posixpath.basename(first)
    kind, _ = daemon_of(name, arguments)
    image = image_in([name, *map(plain, words[1:])]) or "IMAGE"
    return _BY_NAME.get(name) or _BY_DAEMON.get(kind, "").format(name, image)
