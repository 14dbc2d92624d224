"""Images of apptainer and singularity: files, given or made of a registry's image once.

A file that was made is in the cache directory, by a name that follows from the image's address, and
serves every run from then on. Two runs that want it at once: the second waits at a lock, and finds
the file. Where the directory's file system has no locks, both pull, each under a name of its own.

A client that is interrupted removes what it has unpacked. After a SIGKILL of everything the
engine's own temporary directory (apptainer: /tmp/build-temp-*) is left, and in the cache a file
`.pulling-*`, which the next pull of that image removes; without locks nobody can tell it from one
that another run is making, and it stays.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape, glob

from msgspec import Struct

from gpulaunch.containers import image_names, pull_failures
from gpulaunch.containers.engine_calls import DiskFullError, EngineCalls, ReadyImage
from gpulaunch.containers.pull_failures import PullError


class PullLock(Struct):
    """How the lock of a file was had: `held`: at all; `waited`: after another run's end."""

    held: bool = False
    waited: bool = False


def have(calls: EngineCalls) -> ReadyImage:
    """Return the image's file, made where it has to be. Raises PullError."""
    request = calls.request
    if image_names.is_file(request.image):
        return _given(request.image)
    if request.known and os.path.exists(request.known):
        return _file(request.known)
    uri = image_names.apptainer_uri(request.image)
    path = os.path.join(request.cache, image_names.file_name(uri))
    if os.path.exists(path) and request.pull != "always":
        return _file(path)
    if request.pull == "never":
        raise PullError(pull_failures.never(request.engine, request.image, ""))
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
        except DiskFullError:
            why = pull_failures.disk_full(request.engine, request.image, request.cache)
            raise PullError(why) from None
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
            calls.tell("waiting for another run, which pulls it")
            fcntl.flock(fd, fcntl.LOCK_EX)
            lock.held = lock.waited = True
        except OSError:
            pass  # no locks here: see the module
        yield lock
    finally:
        os.close(fd)
