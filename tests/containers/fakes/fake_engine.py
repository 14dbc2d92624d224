"""What the pretend engines share. Standard library alone: they run as programs of their own.

An image is a file that begins with MARKER, then at most one object in JSON: `env`, the variables
that the image sets; `fails`, the message with which the engine cannot start it.

What the tests tell a pretend engine, by variables of its environment:

    FAKE_ENGINE_RECORD  a file: each call's arguments are added to it, a JSON list a line
    FAKE_ENGINE_HIDES   directories, with `:` between them, that are empty inside but for mounts
    FAKE_ENGINE_HOLD    a FIFO: a pull, once begun, waits until its other end is opened
    FAKE_ENGINE_PIDS    a file: a pull adds its PID and that of a child which ignores interrupts
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from contextlib import suppress

MARKER = b"gpulaunch fake image\n"
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def refuse(message, status=2):
    """End as nothing real does: the command line is none that gpulaunch is to use."""
    end(f"{os.path.basename(sys.argv[0])} (pretend): {message}", status)


def end(message, status):
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    os._exit(status)


def record():
    if path := os.environ.get("FAKE_ENGINE_RECORD"):
        line = json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\n"
        with open(path, "a") as file:
            file.write(line)


def image_at(path):
    """What an image says of itself; None: it is none."""
    try:
        with open(path, "rb") as file:
            if file.read(len(MARKER)) != MARKER:
                return None
            return json.loads(file.read() or b"{}")
    except OSError:
        return None


def become(command, environ):
    """Execute a command in this process's place; return where it cannot be."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.execvpe(command[0], command, environ)


def is_held():
    """Begin what may be killed, as a pull that takes long: see FAKE_ENGINE_HOLD and ..._PIDS."""
    child = 0
    if path := os.environ.get("FAKE_ENGINE_PIDS"):
        child = os.fork()
        if not child:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.setsid()
            time.sleep(600)
            os._exit(0)
        with open(path, "a") as file:
            file.write(f"{os.getpid()} {child}\n")
    if path := os.environ.get("FAKE_ENGINE_HOLD"):
        with open(path, "rb"):
            pass
    if child:
        os.kill(child, signal.SIGKILL)


# ── What is seen inside ─────────────────────────────────────────────────────────────────────────


def enter_mounts(mounts):
    """Leave in the hidden directories what is mounted there: (source, target, read only), ...

    Without FAKE_ENGINE_HIDES nothing is hidden, and a mount must be at its own path.
    """
    hidden = [path for path in os.environ.get("FAKE_ENGINE_HIDES", "").split(":") if path]
    if not hidden:
        for source, target, _ in mounts:
            if os.path.realpath(source) != os.path.realpath(target):
                refuse(f"{target} is {source} inside: that needs FAKE_ENGINE_HIDES")
        return
    _own_namespace()
    held = [(os.open(source, os.O_PATH), target, ro) for source, target, ro in mounts]
    _mount(b"none", "/", None, MS_REC | MS_PRIVATE)
    for path in hidden:
        _mount(b"none", path, b"tmpfs", 0)
    for fd, target, read_only in sorted(held, key=lambda mount: mount[1].count("/")):
        source = f"/proc/self/fd/{fd}"
        if not os.path.lexists(target) and not any(_is_below(target, path) for path in hidden):
            refuse(f"{target} is neither there nor below FAKE_ENGINE_HIDES")
        _mount_point(target, os.path.isdir(source))
        _mount(source.encode(), target, None, MS_BIND | MS_REC)
        if read_only:
            _mount(b"none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
        os.close(fd)


def _is_below(path, folder):
    return os.path.normpath(path).startswith(os.path.normpath(folder) + "/")


def _mount_point(target, is_folder):
    if os.path.lexists(target):
        return
    os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
    if not is_folder:
        with open(target, "x"):
            pass


def _own_namespace():
    """Root needs no user namespace, and anybody else may have one."""
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if uid else 0)):
        refuse(f"FAKE_ENGINE_HIDES needs mount namespaces: {os.strerror(ctypes.get_errno())}")
    if uid:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                           ("gid_map", f"{gid} {gid} 1")):  # fmt: skip
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)


def _mount(source, target, kind, flags):
    if _libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), None):
        error = os.strerror(ctypes.get_errno())
        refuse(f"cannot mount {os.fsdecode(source)} at {target}: {error}")
