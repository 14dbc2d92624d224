"""A module program, and what the shells of people who have it hand on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModuleProgram:
    """`home` is what MODULESHOME names; `files` has modulefiles."""

    name: str
    home: Path
    files: Path

    @property
    def named(self) -> dict[str, str]:
        """What every shell hands on: where the program and its modulefiles are."""
        return {"MODULESHOME": str(self.home), "MODULEPATH": str(self.files)}

    @staticmethod
    def without(environ: Mapping[str, str]) -> dict[str, str]:
        """The environment without what another module program left in it."""
        gone = ("BASH_FUNC_", "LMOD_", "MODULE", "LOADEDMODULES", "_LM", "BASH_ENV")
        return {name: text for name, text in environ.items() if not name.startswith(gone)}

    def login(self, environ: Mapping[str, str], *lines: str) -> dict[str, str]:
        """The environment that a login bash hands on, which has read the program's own file."""
        script = "\n".join([f". {self.home}/init/bash", *lines, "env -0"])
        told = subprocess.run(
            ["bash", "-c", script],
            env={**environ, **self.named},
            check=True,
            capture_output=True,
        )
        pairs = (pair.split(b"=", 1) for pair in told.stdout.split(b"\0") if pair)
        return {os.fsdecode(name): os.fsdecode(text) for name, text in pairs}
