"""Run a program as an ordinary user, whoever runs the tests, in a /dev with pretend nodes.

    python ordinary.py [--forbidden] [--node NAME]... -- PROGRAM ...

In a user namespace where root's id is called 1000, root has an ordinary user's rights, and still
his own files. `--forbidden`: no further namespace can be made. `--node nvidia0` is a file whose
text is its name; so many of them are cards that can be opened.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gpulaunch.process import keeper

INSIDE = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--forbidden", action="store_true")
    parser.add_argument("--node", action="append", default=[])
    parser.add_argument("program", nargs="+")
    asked = parser.parse_args()
    become_ordinary()
    if asked.node:
        make_nodes(asked.node)
    if asked.forbidden:
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.execvp(asked.program[0], asked.program)


def become_ordinary() -> None:
    uid, gid = os.geteuid(), os.getegid()
    keeper.unshare(keeper.CLONE_NEWUSER | keeper.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid or INSIDE} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid or INSIDE} {gid} 1")


def make_nodes(names: list[str]) -> None:
    keeper.mount(None, b"/", None, keeper.MS_SLAVE | keeper.MS_REC)
    keeper.remake_dev(frozenset())
    keeper.mount(None, b"/dev", None, keeper.MS_REMOUNT | keeper.MS_BIND | keeper.MS_NOSUID)
    for name in names:
        node = Path("/dev", name)
        node.parent.mkdir(parents=True, exist_ok=True)
        node.write_text(f"{name}\n")


if __name__ == "__main__":
    main()
