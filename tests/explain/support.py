"""Programs run twice, as they are and with the injection, by every Python that is here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulaunch.diagnose.explain import INJECT

FAKE = Path(__file__).parent / "faketorch"
REPORT = re.compile(r"^gpulaunch explain: .*?^gpulaunch explain: end of the report\n", re.M | re.S)
# Torch mixed up by hand, in a form that every Python shows alike.
MIXING = "torch.ones(3, device='cuda:0') + torch.ones(3)"


def pythons(*versions: str) -> list[str]:
    """One interpreter of each version; this one where there is no other."""
    found = [
        str(path)
        for version in versions
        for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))[-1:]
    ]
    return found or [sys.executable]


ALL = pythons("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
ENDS = [ALL[0], ALL[-1]] if len(ALL) > 1 else ALL


@dataclass(frozen=True)
class Done:
    """How a program ended and what it said; the reports are taken out of `err`."""

    status: int
    out: str
    err: str
    reports: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A directory with programs in it."""

    path: Path

    def file(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def run(
        self,
        argv: Sequence[str],
        python_path: Sequence[str | Path] = (FAKE,),
        environ: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Done:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path),
            "PYTHONPATH": os.pathsep.join(map(str, python_path)),
            **(environ or {}),
        }
        done = subprocess.run(
            argv,
            cwd=self.path,
            env={name: value for name, value in env.items() if value},
            input=stdin,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Done(
            done.returncode,
            done.stdout,
            REPORT.sub("", done.stderr),
            tuple(REPORT.findall(done.stderr)),
        )

    def both(
        self,
        argv: Sequence[str],
        python_path: Sequence[str | Path] = (FAKE,),
        environ: Mapping[str, str] | None = None,
        stdin: str = "",
        inject: str = INJECT,
    ) -> tuple[str, ...]:
        """The reports, once the program was seen to do the same with the injection as without."""
        bare = self.run(argv, python_path, environ, stdin)
        explained = self.run(argv, (inject, *python_path), environ, stdin)
        assert not bare.reports
        assert (explained.out, explained.err, explained.status) == (bare.out, bare.err, bare.status)
        return explained.reports
