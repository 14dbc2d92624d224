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

from gpulaunch.farside.keeper import isolation

INSIDE = 1000
UNSHARE = {"x86_64": 272, "aarch64": 97}  # the system call's number
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
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

    isolation.unshare(isolation.CLONE_NEWUSER | isolation.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{name(uid)} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{name(gid)} {gid} 1")


def make_nodes(names: list[str]) -> None:
    isolation.mount(None, b"/", None, isolation.MS_SLAVE | isolation.MS_REC)
    isolation.remake_dev(frozenset())
    isolation.mount(
        None, b"/dev", None, isolation.MS_REMOUNT | isolation.MS_BIND | isolation.MS_NOSUID
    )
    for name in names:
        node = Path("/dev", name)
        node.parent.mkdir(parents=True, exist_ok=True)
        node.write_text(f"{name}\n")


def refuse_unshare() -> None:
    """Four instructions: load the call's number; if it is unshare's, refuse; else allow."""
    number = UNSHARE[os.uname().machine]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, REFUSE), (0x06, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)):
        if isolation.libc.prctl(*call, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl {call[0]}")


if __name__ == "__main__":
    main()
