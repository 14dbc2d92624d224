"""Run a program as an ordinary user, whoever runs the tests, in a /dev with pretend nodes.

    python ordinary.py [--forbidden] [--filtered] [--as-root] [--node NAME]... -- PROGRAM ...

In a user namespace where root's id is called 1000, root has an ordinary user's rights, and still
his own files. `--forbidden`: no further namespace can be made. `--filtered`: a seccomp filter
refuses to make any, as containers' do; with `--as-root` to a root, as theirs is. `--node nvidia0`
is a file whose text is its name; so many of them are cards that can be opened.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import struct
from pathlib import Path

INSIDE = 1000
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_REMOUNT = 1, 2, 1 << 5
MS_BIND, MS_REC, MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
UNSHARE = {"x86_64": 272, "aarch64": 97}  # the system call's number
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LIBC = ctypes.CDLL(None, use_errno=True)
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--forbidden", action="store_true")
    parser.add_argument("--filtered", action="store_true")
    parser.add_argument("--as-root", action="store_true")
    parser.add_argument("--node", action="append", default=[])
    parser.add_argument("program", nargs="+")
    asked = parser.parse_args()
    become(0 if asked.as_root else INSIDE)
    if asked.node:
        make_nodes(asked.node)
    if asked.forbidden:
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    if asked.filtered:
        refuse_unshare()
    os.execvp(asked.program[0], asked.program)


def become(inside: int) -> None:
    """Root's ids are called `inside` from here on, and where it is 0, everybody's."""
    uid, gid = os.geteuid(), os.getegid()

    def name(number: int) -> int:
        return number if number and inside else inside

    call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{name(uid)} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{name(gid)} {gid} 1")


def make_nodes(names: list[str]) -> None:
    """A /dev of this process's own, with all that the other has, and these."""
    mount(b"none", b"/", None, MS_SLAVE | MS_REC)
    old = os.open("/dev", os.O_RDONLY | os.O_DIRECTORY)
    mount(b"tmpfs", b"/dev", b"tmpfs", MS_NOSUID, b"mode=755")
    for entry in os.scandir(f"/proc/self/fd/{old}"):
        place = os.path.join("/dev", entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
            continue
        if entry.is_dir():
            os.mkdir(place)
        else:
            Path(place).touch()
        mount(os.fsencode(entry.path), os.fsencode(place), None, MS_BIND | MS_REC)
    os.close(old)
    for name in names:
        node = Path("/dev", name)
        node.parent.mkdir(parents=True, exist_ok=True)
        node.write_text(f"{name}\n")


def mount(
    source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None
) -> None:
    call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def call(name: str, *arguments: object) -> None:
    if getattr(LIBC, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)


def refuse_unshare() -> None:
    """Four instructions: load the call's number; if it is unshare's, refuse; else allow."""
    number = UNSHARE[os.uname().machine]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, REFUSE), (0x06, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)


if __name__ == "__main__":
    main()
