"""The process that brings one image here, for one engine. Nothing else of gpulaunch pulls.

The argument is a JSON object; each answer is one, on a line of its own:

    {"engine": "docker", "image": NAME, "pull": "missing", "known": "", "cache": DIRECTORY}
    {"said": "progress", "text": "3 of 12 layers"}
    {"said": "ready", "id": "sha256:...", "digest": "sha256:...", "pulled": true}
    {"said": "digest", "digest": "sha256:..."}
    {"said": "failed", "why": "docker's daemon does not answer: ..."}

It says `ready` or `failed` once, and exits. Of a file it says `ready` with an empty digest, then
reads the file, which takes a while, at the lowest priority, and says `digest` before it exits;
nobody has to wait for that. It ends when its standard input does, and with the launcher, and takes
along all that it has started (`attendant.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

import msgspec

from gpulaunch.containers import daemon_images, file_images
from gpulaunch.containers.engine_calls import EngineCalls, PullRequest, ReadyImage
from gpulaunch.containers.pull_failures import PullError
from gpulaunch.farside.kernel import PR_SET_PDEATHSIG, prctl

_CHUNK = 1 << 20


def main() -> None:
    """Bring the image; arguments: the launcher's PID, the request in JSON."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):  # the launcher died before that
        os._exit(1)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    request = msgspec.json.decode(sys.argv[3], type=PullRequest)
    try:
        image = have(EngineCalls(request, lambda text: _say("progress", text=text)))
    except PullError as error:
        _say("failed", why=str(error))
    else:
        _say("ready", id=image.id, digest=image.digest, pulled=image.pulled)
        if image.file and (digest := digest_of(image.file)):
            _say("digest", digest=digest)
    os._exit(0)  # the thread waits for a launcher that has no more to say


def have(calls: EngineCalls) -> ReadyImage:
    """Return the image that the request names, brought here where needed. Raises PullError."""
    if calls.request.engine in ("docker", "podman"):
        return daemon_images.have(calls)
    return file_images.have(calls)


def digest_of(path: str) -> str:
    """Return the digest of a file's content, read while nobody else wants the CPU or the disk.

    "" where it cannot be read to its end.
    """
    with suppress(OSError):
        # The kernel gives such a process the idle class of input and output as well.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    content = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                content.update(chunk)
    except OSError:
        return ""
    return f"sha256:{content.hexdigest()}"


def _say(said: str, **what: Any) -> None:
    try:
        os.write(sys.stdout.fileno(), json.dumps({"said": said, **what}).encode() + b"\n")
    except OSError:  # the launcher is gone
        os._exit(1)


def _end_with_launcher() -> None:
    with suppress(OSError):  # a socket may say so that its other end is gone
        while os.read(sys.stdin.fileno(), 4096):
            pass
    os._exit(1)


if __name__ == "__main__":
    main()
