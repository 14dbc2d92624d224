"""Checks `notify:` before anything is started: what would keep messages from arriving.

Apprise itself reads the addresses, in a process of its own, while the caller does something else.
Nothing is sent, and nothing here says an address.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gpulaunch.digest import words
from gpulaunch.extras import missing
from gpulaunch.jobfile.notify_spec import Target, secret_in
from gpulaunch.jobfile.shell import first_program
from gpulaunch.notify.delivery import end, start

SECONDS = 20.0
_NAMES = {
    "finish": "finish",
    "first_failure": "first failure",
    "paused": "pause",
    "gpu_idle": "idle card",
}


class Concern(Struct, frozen=True):
    """`key`: the field of the target it is about. `wrong`: a mistake of the file, no warning."""

    target: Target
    key: str
    text: str
    wrong: bool = False


class Looking:
    """Starts to look at once; `concerns` waits for what comes of it. Close it in any case.

    `kept`: each run keeps a copy of the file that has the targets.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        environ: Mapping[str, str],
        base: Path,
        kept: bool = True,
    ) -> None:
        self._targets = targets
        self._environ = environ
        self._base = base
        self._kept = kept
        self._lack = missing("notify") if targets else ""
        self._addresses = {
            number: address
            for number, target in enumerate(targets)
            if (address := target.address(environ))
        }
        self._process: subprocess.Popen[bytes] | None = None
        if self._addresses and not self._lack:
            with suppress(OSError):  # processes are scarce: no mistake of the file
                self._process = start({"look": list(self._addresses.values())}, SECONDS)

    def __enter__(self) -> Looking:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end(self._process)

    def concerns(self) -> list[Concern]:
        """Return the concerns in the file's order. Blocks for the looks, SECONDS at most."""
        looks = self._looks()
        return [
            concern
            for number, target in enumerate(self._targets)
            for concern in self._of(target, *looks.get(number, ("", False)))
        ]

    def _looks(self) -> dict[int, tuple[str, bool]]:
        """Return for each checked address why it would fail, and whether the address is wrong."""
        try:
            said = self._process.communicate(timeout=SECONDS)[0] if self._process else b""
            found = json.loads(said)["looks"]
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            return dict.fromkeys(self._addresses, ("it could not be looked at", False))
        return dict(zip(self._addresses, map(tuple, found), strict=True))

    def _of(self, target: Target, why: str, wrong: bool) -> Iterator[Concern]:
        if target.run is not None:
            if lack := self._lacks(target.run):
                yield Concern(target, "run", lack)
        elif self._lack:
            yield Concern(target, "to", f"telling an address needs {self._lack}", wrong=True)
        elif target.variable:
            if target.variable not in self._environ:
                text = f"{target.variable} is not set in this environment: nobody is told"
                yield Concern(target, "to", text)
            elif why or not self._environ[target.variable]:
                said = why or "it is empty"
                yield Concern(target, "to", f"the address in {target.variable}: {said}")
        else:
            if why:
                yield Concern(target, "to", why, wrong)
            if self._kept and secret_in(target.to or ""):
                yield Concern(
                    target,
                    "to",
                    "a password or token in the file, of which each run keeps a copy; put the"
                    " address into a variable and write env:NAME",
                )

    def _lacks(self, run: str | tuple[str, ...]) -> str:
        """Return why a command could not be started, as far as known; else ""."""
        program = first_program(run, self._environ) if isinstance(run, str) else run[0]
        if not program:
            return ""
        if "/" in program:
            there = self._base / program
            found = there.is_file() and os.access(there, os.X_OK)
        else:
            found = shutil.which(program, path=self._environ.get("PATH")) is not None
        return "" if found else f"there is no program {words.visible(program)} here"


def describe(target: Target) -> str:
    """`notify[0] (env:NTFY_URL) on finish, first failure, every 50 failures`."""
    when = [said for name, said in _NAMES.items() if name in target.on]
    if target.every:
        when.append("every failure" if target.every == 1 else f"every {target.every} failures")
    return f"{target.name} on {', '.join(when)}"
