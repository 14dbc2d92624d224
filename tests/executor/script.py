"""Scripts and interactive sessions in a process of their own, which has this tree to import."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.helpers import goes_along

ROOT = Path(__file__).parents[2]


def environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


def begun(
    script: Path, text: str, *args: object, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    script.write_text(textwrap.dedent(text))
    return started(script, *args, env=env)


def started(
    script: Path, *args: object, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), *map(str, args)],
        env=environ(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )


def run(
    script: Path, text: str, *args: object, env: Mapping[str, str] | None = None
) -> tuple[str, str, int]:
    """Standard output, standard error, and status."""
    process = begun(script, text, *args, env=env)
    out, err = process.communicate(timeout=120)
    return out, err, process.returncode


def executed(script: Path, *args: object) -> tuple[str, str, int]:
    """The same of a script that is there."""
    process = started(script, *args)
    out, err = process.communicate(timeout=120)
    return out, err, process.returncode


def typed(text: str, *options: str) -> tuple[str, str, int]:
    """The same through standard input: a `__main__` without a file."""
    done = subprocess.run(
        [sys.executable, *options],
        input=textwrap.dedent(text),
        env=environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout, done.stderr, done.returncode
