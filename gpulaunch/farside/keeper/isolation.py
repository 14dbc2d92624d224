"""Strict isolation: a /dev of the job's own, in which the other cards have no nodes.

The process that is to become the job isolates itself, so that its id, its parent, its signals and
its status stay what they are. What keeps a job from undoing it:

  an ordinary user  The user namespace, without which he could not do it either. The exec takes the
                    capabilities away that it gave; the kernel locks these mounts in any namespace
                    that the job makes for itself; and /proc/PID/root, ptrace, setns and mknod find
                    that outside of it the job has no rights.
  root              Nothing. It gets the mount namespace alone: in a user namespace of one id it
                    would be a stranger to all files but its own. It guards against accidents.

/proc is left alone: with anything mounted there, the kernel would allow no /proc to containers that
the job starts, and /proc/driver/nvidia gives no access to a card, it only names them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys

from ..wire import shown
from .kernel import libc
from .program import Refusal

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_REMOUNT = 1, 2, 1 << 5
MS_BIND, MS_REC, MS_SLAVE = 1 << 12, 1 << 14, 1 << 19


def isolate(hidden: list[bytes]) -> None:
    """Hide these paths below /dev from this process and its descendants. Raises Refusal."""
    try:
        enter_namespaces(os.geteuid(), os.getegid())
        # First of all: on most systems our mounts would otherwise appear in everybody's /dev.
        mount(None, b"/", None, MS_SLAVE | MS_REC)
        remake_dev(frozenset(hidden))
    except OSError as problem:
        why = why_no_isolation(problem)
        raise Refusal(f"strict isolation is not possible here: {why}") from None


def enter_namespaces(uid: int, gid: int) -> None:
    if uid == 0:
        unshare(CLONE_NEWNS)
        return
    unshare(CLONE_NEWNS | CLONE_NEWUSER)
    # A user may map only his own ids, to themselves. Other groups still count when files are
    # opened; setgroups has to be given up, as it could drop a group that a file denies access to.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def remake_dev(hidden: frozenset[bytes]) -> None:
    """Mount a new /dev of links and of single mounts for each node that is not hidden."""
    old = os.open(b"/dev", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mount(b"tmpfs", b"/dev", b"tmpfs", MS_NOSUID, b"mode=755")
        show_all_but(hidden, b"/proc/self/fd/%d" % old, b"/dev")
        mount(None, b"/dev", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
    finally:
        os.close(old)
    null = os.open(b"/dev/null", os.O_RDWR)
    os.dup2(null, 0)  # instead of the /dev/null that was opened outside
    os.close(null)


def show_all_but(hidden: frozenset[bytes], source: bytes, target: bytes) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            place = os.path.join(target, entry.name)
            if place in hidden:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), place)
            elif place == b"/dev/ptmx":
                os.symlink(b"pts/ptmx", place)
            elif not entry.is_dir(follow_symlinks=False):
                show_node(entry.path, place)
            elif any(path.startswith(place + b"/") for path in hidden):
                os.mkdir(place)
                os.chmod(place, stat.S_IMODE(entry.stat().st_mode))
                show_all_but(hidden, entry.path, place)
            else:
                show_directory(entry.path, place)


def show_node(source: bytes, place: bytes) -> None:
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        mount(source, place, None, MS_BIND)
    except FileNotFoundError:  # the node vanished meanwhile
        os.unlink(place)


def show_directory(source: bytes, place: bytes) -> None:
    """Mount a directory with what is mounted below it (/dev/shm, /dev/mqueue, /dev/hugepages).

    Pseudo-terminals are the exception: a ptmx node looks for them beside itself in the file system
    where it was made, and finds none if it is mounted alone. So ptmx becomes a link, as in
    containers, to an instance of devpts of the job's own.
    """
    os.mkdir(place)
    if place == b"/dev/pts" and not os.path.islink(os.path.dirname(source) + b"/ptmx"):
        mount(b"devpts", place, b"devpts", MS_NOSUID, b"newinstance,ptmxmode=0666,mode=620")
    else:
        mount(source, place, None, MS_BIND | MS_REC)


def unshare(flags: int) -> None:
    if libc.unshare(flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")


def mount(
    source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None
) -> None:
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"mount {shown(target)}")


def why_no_isolation(problem: OSError) -> str:
    """Return what forbids isolation here and what to do, in words.

    Sources: user_namespaces(7), the kernel's and Ubuntu's documentation of these settings.
    """
    code, uid = problem.errno, os.geteuid()
    if code in (errno.ENOSPC, errno.EUSERS) and problem.filename == "unshare":
        limits = {name: setting(f"user/max_{name}_namespaces") for name in ("user", "mnt")}
        told = ", ".join(f"user.max_{name}_namespaces is {value}" for name, value in limits.items())
        return f"the limit of namespaces is reached ({told}): an administrator can raise it"
    if code in (errno.EPERM, errno.EACCES):
        if uid and setting("kernel/unprivileged_userns_clone") == "0":
            name = "kernel.unprivileged_userns_clone"
            return (
                f"users may make no namespaces ({name} is 0): `sudo sysctl -w {name}=1` allows it"
            )
        if uid and setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
            name = "kernel.apparmor_restrict_unprivileged_userns"
            return (
                f"AppArmor lets users make no namespaces ({name} is 1): `sudo sysctl -w {name}=0`,"
                f" or a profile with `userns,` for {os.path.realpath(sys.executable)}, allows it"
            )
        if uid == 0:
            return (
                "root may mount nothing here, as in a container: start it with `--cap-add"
                " SYS_ADMIN --security-opt apparmor=unconfined`, or with the cards it is to use"
            )
        if filtered():
            return (
                "a seccomp filter, as containers have, allows no namespaces: run outside of it, or"
                " start it with `--security-opt seccomp=unconfined --security-opt"
                " apparmor=unconfined`"
            )
        if problem.filename == "unshare":
            return "this process may make no namespaces (in a chroot nobody may but root)"
    if code in (errno.EINVAL, errno.ENOSYS) and not os.path.exists("/proc/self/ns/user"):
        return "the kernel was built without user namespaces"
    return f"{problem.filename}: {problem.strerror}"


def setting(name: str) -> str:
    """Return a kernel setting's value; empty if there is no such setting."""
    try:
        with open(f"/proc/sys/{name}") as file:
            return file.read().strip()
    except OSError:
        return ""


def filtered() -> bool:
    with open("/proc/self/status", "rb") as file:
        return any(line.split() == [b"Seccomp:", b"2"] for line in file)


def try_isolation() -> str | None:
    """Return why jobs cannot be isolated here; None if they can. Changes this process's /dev."""
    try:
        isolate([])
    except Refusal as problem:
        return str(problem)
    return None
