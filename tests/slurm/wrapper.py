"""In the place of one of Slurm's programs: calls it, and fails in each way that wrappers do.

    python -I -S wrapper.py HERE PROGRAM ARGUMENTS...

HERE/trouble.json has the seed, the rate, the time until which there is trouble, and where each real
program is. Each program is in trouble of one kind for a while, as `histories.Trouble` has it.
Standard library alone, and one file: it is begun several times a second.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

FRENCH = "sbatch: erreur: Impossible de contacter le contr\u00f4leur\n"
KINDS = (
    "fails late", "fails late, as if for a dependency", "loses its answer", "is killed late",
    "fails before", "fails before, in another language", "does nothing", "is slow", "is too slow",
    "greets", "is cut", "is old",
)  # fmt: skip
SPELLS = (0.0, 1.0, 6.0)
"""Seconds for which a trouble lasts at most."""


def main() -> int:
    here, (program, *arguments) = Path(sys.argv[1]), sys.argv[2:]
    trouble = json.loads((here / "trouble.json").read_text())
    kind, chance = in_trouble(here, trouble, program)
    with (here / "calls").open("a") as calls:
        calls.write(f"{time.time():.2f} {program} {kind or 'fine'}: {' '.join(arguments)}\n")
    return failing(kind, chance, [trouble["programs"][program], *arguments], here)


def in_trouble(here: Path, trouble: dict[str, object], program: str) -> tuple[str, random.Random]:
    """The kind that holds now, empty for none; and what chance is to be taken from."""
    with (here / program).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        until, kind, count = json.loads(file.read() or '[0.0, "", 0]')
        chance = random.Random(f"{trouble['seed']} {program} {count}")
        now = time.time()
        if now >= until:
            kind = chance.choice(KINDS) if chance.random() < trouble["rate"] else ""  # type: ignore[operator]
            until = now + chance.choice(SPELLS) * chance.random()
        if now >= trouble["until"]:  # type: ignore[operator]
            kind = ""
        file.truncate(0)
        file.write(json.dumps([until, kind, count + 1]))
    return kind, chance


def failing(kind: str, chance: random.Random, argv: list[str], here: Path) -> int:
    if kind == "fails before":
        return said(1, "site: no ledger\n")
    if kind == "fails before, in another language":
        return said(1, FRENCH)
    if kind == "does nothing":
        return 0
    if kind in ("is slow", "is too slow"):
        time.sleep(chance.uniform(0, 1.5))
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    out = done.stdout
    remember(argv, out, here)
    if kind == "fails late":
        return said(1, "site: cannot write to the ledger: quota\n")
    if kind == "fails late, as if for a dependency":
        return said(1, "site: dependency on the ledger not met\n")
    if kind == "loses its answer":
        return 0
    if kind == "is killed late":
        os.kill(os.getpid(), 9)
    if kind == "is slow":
        time.sleep(chance.uniform(0, 1.5))
    if kind == "is too slow":
        time.sleep(600)
    if kind == "greets":
        out = b"Welcome to the cluster\n" + out
        sys.stderr.write("note: be kind\n")
    if kind == "is cut":
        out = out[: int(chance.random() * len(out))]
    if kind == "is old":
        out = as_before(argv, out, here, time.time() - chance.uniform(1, 8))
    sys.stderr.buffer.write(done.stderr)
    sys.stdout.buffer.write(out)
    return done.returncode


def said(status: int, words: str) -> int:
    sys.stderr.write(words)
    return status


def separator(argv: list[str]) -> bytes:
    """What stands between the fields, which is another one in each call."""
    forms = [word.partition("=")[2] for word in argv if word.startswith("--Format=")]
    return forms[0].split(",")[0].partition(":")[2].encode() if forms else b"\0"


def remember(argv: list[str], out: bytes, here: Path) -> None:
    if argv[0].endswith("squeue"):
        folder = here / "answers"
        folder.mkdir(exist_ok=True)
        draft = folder / f".{os.getpid()}"
        draft.write_bytes(out.replace(separator(argv), b"\0"))
        draft.rename(folder / f"{time.time():.3f}")


def as_before(argv: list[str], out: bytes, here: Path, at: float) -> bytes:
    """The last answer from before that time; the first of all where there is none."""
    if not argv[0].endswith("squeue"):
        return out
    names = sorted(name for name in os.listdir(here / "answers") if name[0] != ".")
    old = [name for name in names if float(name) <= at] or names[:1]
    return (here / "answers" / old[-1]).read_bytes().replace(b"\0", separator(argv))


if __name__ == "__main__":
    sys.exit(main())
