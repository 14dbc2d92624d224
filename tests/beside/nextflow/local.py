"""Runs tasks as Nextflow's local executor does. Simulated: no line of Nextflow's own runs.

It does what Nextflow's wrapper, LocalTaskHandler, AcceleratorTracker and TaskProcessor of
26.08.0-edge do, for what is used here: one process's settings, no staging, no containers.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

BASH = ("/bin/bash", "-ue")
WRAPPER = """\
#!/bin/bash
# Stands in for the script in which Nextflow wraps a task: .command.run.
set -ue

end_tree() {{
    local child
    for child in $(ps -o pid= --ppid "$1"); do end_tree "$child"; done
    kill "$1" 2>/dev/null || true
}}
tell_status() {{
    local status=$?
    [ "$ended" = 0 ] || status=$ended
    printf %s "$status" >.exitcode
    exit "$status"
}}
launch() {{
    {launch}
}}

if [ "${{1:-}}" = traced ]; then # it is started in this way by `launch`, and would measure
    status=0
    {script} || status=$?
    echo measured >.command.trace
    exit "$status"
fi
ended=0 pid=
trap tell_status EXIT
trap 'set +e; [ -z "$pid" ] || end_tree "$pid"' TERM INT USR2
trap "" USR1
touch .command.begin
set +u
{before}
set -u +e
launch >.command.out 2>.command.err &
pid=$!
wait "$pid" || ended=$?
cat .command.out .command.err
"""
"""In it a directive's text stands where Nextflow puts it, and a process is ended as there."""


class Settings(NamedTuple):
    """A process's directives. `traced`: metrics are asked for, as with -with-trace."""

    before_script: str = ""
    shell: tuple[str, ...] = BASH
    accelerator: int = 0
    traced: bool = False


class Task:
    """A task in a directory of its own: started with `submit`, ended with `kill`."""

    def __init__(self, directory: Path, script: str, settings: Settings) -> None:
        self.directory = directory
        self._settings = settings
        self._shebang(script)
        self.process: subprocess.Popen[bytes] | None = None

    def _shebang(self, script: str) -> None:
        """TaskProcessor.normalizeScript and fetchInterpreter."""
        if not script.startswith("#!"):
            shell = " ".join(self._settings.shell)
            first = shell if shell.startswith("/") else f"/usr/bin/env {shell}"
            script = f"#!{first}\n{script}"
        self._interpreter = script.splitlines()[0][2:]
        self._script = script

    def submit(self, environ: Mapping[str, str], accelerators: Sequence[str] = ()) -> None:
        """LocalTaskHandler.submit, with the ids that the AcceleratorTracker gave."""
        self.directory.mkdir(parents=True)
        (self.directory / ".command.sh").write_text(self._script)
        (self.directory / ".command.run").write_text(self._wrapper())
        mask = {"CUDA_VISIBLE_DEVICES": ",".join(accelerators)} if accelerators else {}
        with (self.directory / ".command.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*BASH, ".command.run"],
                cwd=self.directory,
                env={**environ, **mask},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _wrapper(self) -> str:
        script = f"{self._interpreter} {self.directory}/.command.sh"
        shell = "/bin/bash" if self._settings.shell == BASH else " ".join(self._settings.shell)
        traced = f"{shell} {self.directory}/.command.run traced"
        launch = traced if self._settings.traced else script
        return WRAPPER.format(before=self._settings.before_script, launch=launch, script=script)

    def kill(self) -> None:
        """LocalTaskHandler.killTask."""
        assert self.process is not None
        subprocess.run(["bash", "-c", f"kill -TERM {self.process.pid}"], check=False)

    def wait(self, seconds: float = 240) -> int:
        """What Nextflow takes for the exit status."""
        assert self.process is not None
        self.process.communicate(timeout=seconds)
        status = self.process.returncode
        return status if status >= 0 else 128 - status  # as Java's Process has it

    def end(self) -> None:
        """Leave nothing of it, whatever state it is in."""
        if self.process is None:
            return
        with suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self.process.pid).children(recursive=True):
                one.kill()
        self.process.kill()
        self.process.communicate()

    def text(self, name: str) -> str:
        return (self.directory / name).read_text()


def accelerators(environ: Mapping[str, str]) -> list[str]:
    """AcceleratorTracker.create: the cards that it gives out, from its own mask alone."""
    return [each for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]


def setting(config: Path, name: str, profile: str = "") -> str:
    """A text from `withLabel: 'gpu'` of a configuration, by the name that it has there."""
    text = config.read_text()
    part = text[text.index(profile + " {") if profile else 0 :]
    found = re.search(rf"withLabel: 'gpu' \{{[^\0]*?{name} = '([^']*)'", part)
    assert found
    return found[1]
