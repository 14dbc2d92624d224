"""The process that brings one image here, for one engine. Nothing else of gpulaunch pulls.

The argument is a JSON object; each answer is one, on a line of its own:

    {"engine": "docker", "image": NAME, "pull": "missing", "known": "", "cache": DIRECTORY}
    {"said": "pulling"}
    {"said": "ready", "id": "sha256:...", "digest": "sha256:...", "pulled": true}
    {"said": "digest", "digest": "sha256:..."}
    {"said": "failed", "why": "docker cannot pull x: manifest unknown; `docker pull x` shows more"}

It says `pulling` when a pull begins, `ready` or `failed` once, and exits. Of a file it says `ready`
with an empty digest, then reads the file, which takes a while, at the lowest priority, and says
`digest` before it exits; nobody has to wait for that. It ends when its standard input does, and
with the launcher, and takes along all that it has started (`attendant.py`).

docker and podman: a pull has no time limit, because an image may be 30 GB and docker's client says
nothing while one layer comes. The question whether the image is here shows that the engine answers.

apptainer and singularity: the file of an image is in the cache directory, by a name that follows
from the image's address, and serves every run from then on. If two runs want it at once, the second
waits at a lock and finds the file. If the directory's file system has no locks, both pull, each
under a name of its own. A client that is interrupted removes what it has unpacked. After a SIGKILL
of everything the engine's own temporary directory (apptainer: /tmp/build-temp-*) is left, and in
the cache a file `.pulling-*`. The next pull of that image removes this file, except without locks:
then nobody can tell it from one that another run is making.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape, glob
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gpulaunch.agent.kernel import PR_SET_PDEATHSIG, prctl
from gpulaunch.base.text import clip
from gpulaunch.containers import client, images
from gpulaunch.core.model import ContainerEngine

PAUSES = (1.0, 5.0, 20.0)
"""Seconds before each further try, where the network has failed: a name server that restarts, a
registry that is overloaded. Engines try again themselves, within seconds."""
ANSWER_SECONDS = 60.0
"""Seconds for `image inspect`, which reads a few files. On a busy machine with thousands of images
it takes seconds; podman waits for its lock while another podman unpacks a layer."""
_CHUNK = 1 << 20
_LAST_LINES = 3
_LONGEST_QUOTE = 400
_NETWORK = re.compile(
    r"connection (?:refused|reset|timed)|no such host|could not resolve|name resolution|time-?out\b"
    r"|timed out|network is unreachable|no route to host|unexpected eof|request canceled"
    r"|context deadline exceeded|\b(?:status|code):? 5\d\d\b|50\d (?:internal|bad|service)",
    re.IGNORECASE,
)
"""What an engine's client writes if another try may succeed."""
_NOT_HERE = re.compile(r"no such image|image not known|no such object", re.IGNORECASE)


class PullRequest(Struct, frozen=True):
    """An image, and how it is to be had; `known`: its id, where this run had it before.

    `cache` is the directory for files that are made of images.
    """

    engine: ContainerEngine
    image: str
    pull: Literal["missing", "never", "always"]
    known: str
    cache: str


class ReadyImage(Struct, frozen=True):
    """An image that is here: what command lines name, and its digest where that is known.

    `pulled`: it was brought here just now. `file`: its content's digest is still to be read.
    """

    id: str
    digest: str = ""
    pulled: bool = False
    file: str = ""


class PullError(Exception):
    """An image that cannot be had; the text is the whole line."""


def main() -> None:
    """Bring the image; arguments: the launcher's PID, the request in JSON."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):  # the launcher died before that
        os._exit(1)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    request = msgspec.json.decode(sys.argv[3], type=PullRequest)
    try:
        image = have(EngineCalls(request, lambda: _say("pulling")))
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
        return _of_daemon(calls)
    return _as_file(calls)


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


class EngineCalls:
    """Runs clients for one image. `begins` is called when a pull begins; tests hand in `pause`."""

    def __init__(
        self,
        request: PullRequest,
        begins: Callable[[], object],
        pause: Callable[[float], object] = time.sleep,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.request = request
        self.engine = request.engine
        self.begins = begins
        self._pause = pause
        self._answer_seconds = answer_seconds

    def needs_engine(self) -> None:
        """Raise PullError if the program of the engine is not here."""
        if shutil.which(self.engine) is None:
            raise PullError(
                f"{self.engine} is not installed here: there is no program `{self.engine}` in PATH"
            )

    def ask(self, *arguments: str) -> client.ClientEnd:
        """Ask the engine something that it answers at once. Raises PullError."""
        try:
            return self.run(*arguments, seconds=self._answer_seconds)
        except client.ClientSilentError:
            who = "docker's daemon" if self.engine == "docker" else self.engine
            raise PullError(
                f"{who} has not answered for {self._answer_seconds:.0f} s:"
                f" `{self.engine} ps` shows whether it does again"
            ) from None

    def run(self, *arguments: str, seconds: float | None = None) -> client.ClientEnd:
        """Run a client to its end. Raises PullError if it cannot be run, and ClientSilentError."""
        try:
            return client.run([self.engine, *arguments], seconds)
        except OSError as error:  # no room for another process, or for its descriptors
            raise PullError(
                f"{self.engine} cannot be started: {error.strerror or error};"
                " `gpulaunch retry` once this machine has room"
            ) from None

    def pull(self, image: str, *arguments: str) -> None:
        """Pull, again if the network failed. Raises PullError."""
        self.begins()
        for pause in (*PAUSES, None):
            end = self.run(*arguments)
            if not end.status:
                return
            if pause is None or not is_of_network(end.words):
                break
            self._pause(pause)
        raise self.failed(f"pull {image}", end, f"pull {arguments[-1]}")

    def failed(self, what: str, end: client.ClientEnd, arguments: str) -> PullError:
        """Return the error of a client that failed, in its own words.

        `arguments`: the command line of the engine by which a person sees more.
        """
        lines = [line.strip() for line in end.words.splitlines() if line.strip()]
        said = " / ".join(lines[-_LAST_LINES:])
        if len(said) > _LONGEST_QUOTE:  # the cause stands at the end
            said = f"...{said[-_LONGEST_QUOTE:]}"
        hint = f"`{self.engine} {arguments}` shows more"
        return PullError(f"{self.engine} cannot {what}: {said or 'it said nothing'}; {hint}")


def is_of_network(words: str) -> bool:
    """Tell whether a client failed because of the network, so that another try may succeed."""
    return _NETWORK.search(words) is not None


# ── docker, podman ────────────────────────────────────────────────────────────────────────────────


def _of_daemon(calls: EngineCalls) -> ReadyImage:
    """Return the image, pulled or loaded if it has to be. Raises PullError."""
    request = calls.request
    calls.needs_engine()
    if request.known and (here := _find(calls, request.known)) is not None:
        return here
    if images.is_file(request.image):
        return _loaded(calls, request.image)
    name, as_pulled = images.bare(request.image), images.pulled_as(request.engine, request.image)
    here = _find(calls, name)  # for `always` too: a pull does not tell a silent engine
    if here is not None and request.pull != "always":
        return here
    if request.pull == "never":
        raise _never(request, name, f"`{request.engine} pull {as_pulled}` once, or leave")
    calls.pull(name, "pull", as_pulled)
    return _brought(calls, name)


def _never(request: PullRequest, name: str, how: str) -> PullError:
    why = f"`pull: never`, and {request.engine} does not have {name}: {how} `pull:` out"
    return PullError(why)


def _find(calls: EngineCalls, name: str) -> ReadyImage | None:
    """Return the image if the engine has it. Raises PullError if that cannot be told."""
    end = calls.ask("image", "inspect", name)
    if end.status and _NOT_HERE.search(end.err):
        return None
    if end.status or not (found := _first(end.out)):
        raise calls.failed(f"look for {name}", end, f"image inspect {name}")
    own = images.bare(calls.request.image)
    digest = images.digest_among(found.get("RepoDigests") or [], own)
    return ReadyImage(_whole_id(found["Id"]), digest)


def _loaded(calls: EngineCalls, path: str) -> ReadyImage:
    """Load an archive; if its image is here already, that changes nothing."""
    if not os.path.exists(path):
        raise PullError(f"there is no file {path}")
    calls.begins()
    end = calls.run("load", "-i", path)
    names = images.loaded(end.out)
    if end.status or not names:
        raise calls.failed(f"load {path}", end, f"load -i {path}")
    brought = {image.id: image for image in (_brought(calls, name) for name in names)}
    if len(brought) > 1:
        raise PullError(
            f"{path} holds {len(names)} images ({clip(', '.join(names), _LONGEST_QUOTE)}):"
            f" `{calls.engine} load -i {path}` once, and name one of them"
        )
    return next(iter(brought.values()))


def _brought(calls: EngineCalls, name: str) -> ReadyImage:
    here = _find(calls, name)
    if here is None:
        raise PullError(f"{calls.engine} has brought {name}, and does not have it: try again")
    return ReadyImage(here.id, here.digest, pulled=True)


def _first(text: str) -> dict[str, Any]:
    """Return the first of the images in a list of JSON; empty where there is none."""
    try:
        found = json.loads(text)
        return dict(found[0]) if "Id" in found[0] else {}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


def _whole_id(identifier: str) -> str:
    """Return an id with its kind, which docker tells and podman leaves out, and both take."""
    return identifier if ":" in identifier else f"sha256:{identifier}"


# ── apptainer, singularity ────────────────────────────────────────────────────────────────────────


class PullLock(Struct):
    """How the lock of a file was had: `held`: at all; `waited`: after another run's end."""

    held: bool = False
    waited: bool = False


def _as_file(calls: EngineCalls) -> ReadyImage:
    """Return the image's file, made if it has to be. Raises PullError."""
    request = calls.request
    if images.is_file(request.image):
        return _given(request.image)
    if request.known and os.path.exists(request.known):
        return _file(request.known)
    uri = images.apptainer_uri(request.image)
    path = os.path.join(request.cache, images.file_name(uri))
    if os.path.exists(path) and request.pull != "always":
        return _file(path)
    if request.pull == "never":
        raise _never(request, request.image, "leave")
    calls.needs_engine()
    try:
        os.makedirs(request.cache, mode=0o700, exist_ok=True)
        return _pulled(calls, uri, path)
    except OSError as error:
        why = f"no images can be put into {request.cache}: {error.strerror}"
        raise PullError(why) from None


def _given(path: str) -> ReadyImage:
    if not os.path.exists(path):
        raise PullError(f"there is no file {path}")
    if not os.access(path, os.R_OK):
        raise PullError(f"you may not read {path}")
    return _file(path)


def _file(path: str, pulled: bool = False) -> ReadyImage:
    content = path if os.path.isfile(path) else ""  # a directory has none of its own
    return ReadyImage(path, pulled=pulled, file=content)


def _pulled(calls: EngineCalls, uri: str, path: str) -> ReadyImage:
    request = calls.request
    folder, name = os.path.split(path)
    with _alone(f"{path}.lock", calls) as lock:
        if os.path.exists(path) and (lock.waited or request.pull != "always"):
            return _file(path)
        if lock.held:  # else another run may be making one of them
            _remove(glob(os.path.join(escape(folder), f".pulling-*-{escape(name)}")))
        # Other machines, which may share the directory, have processes of the same number.
        own = f"{os.getpid()}-{os.urandom(4).hex()}"
        draft = os.path.join(folder, f".pulling-{own}-{name}")
        try:
            calls.pull(request.image, "pull", draft, uri)
            os.rename(draft, path)
        finally:
            _remove([draft])
        return _file(path, pulled=True)


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


@contextmanager
def _alone(path: str, calls: EngineCalls) -> Iterator[PullLock]:
    """Be the only run that makes this file, where there are locks; give how that was had."""
    lock = PullLock()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.held = True
        except BlockingIOError:
            calls.begins()  # another run pulls it
            fcntl.flock(fd, fcntl.LOCK_EX)
            lock.held = lock.waited = True
        except OSError:
            pass  # no locks here: see the module
        yield lock
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
