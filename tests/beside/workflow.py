"""Jobs of other people's workflow tools, each behind `gpulaunch exec`, and what they leave."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from gpulaunch.gpus.lease import holders
from tests.cli.launcher import Launcher

JOB = """\
import json, os, sys, time
begun = time.monotonic()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
record = {"card": os.environ["CUDA_VISIBLE_DEVICES"], "begun": begun, "ended": time.monotonic()}
with open(sys.argv[1], "w") as file:
    json.dump(record, file)
"""
"""A program for a card, which writes where and when it ran, once its second word's file exists."""


def records(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in files]


def assert_no_card_twice(found: list[dict[str, Any]]) -> None:
    for card in {record["card"] for record in found}:
        spans = sorted((one["begun"], one["ended"]) for one in found if one["card"] == card)
        for (_, ended), (begun, _) in pairwise(spans):
            assert ended <= begun, f"two at once on card {card}"


@contextmanager
def begun(tool: Launcher, *words: str) -> Iterator[Popen[str]]:
    """The tool in a session of its own, of which nothing lives on afterwards."""
    with tool.begun(*words) as process:
        try:
            yield process
        finally:
            for left in of_session(process.pid):
                with suppress(psutil.NoSuchProcess):
                    left.kill()


def of_session(leader: int) -> list[psutil.Process]:
    """The processes that were started in a session, the leader among them, and live."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def launchers(leader: int) -> list[psutil.Process]:
    """Those of a session's processes that are `gpulaunch exec`, as launcher or as what waits.

    A launcher looks at the cards by a child process, which has the same command line. The child is
    left out.
    """
    found = list(filter(is_launcher, of_session(leader)))
    pids = {process.pid for process in found}
    return [process for process in found if process.ppid() not in pids]


def at_work(leader: int) -> list[psutil.Process]:
    """Return the processes of a session that run `JOB`: each has a card."""
    return [process for process in of_session(leader) if is_job(process)]


def is_job(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return "job.py" in words and "exec" not in words


def is_launcher(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()[:12]
    except psutil.NoSuchProcess:
        return False
    waits = words[:1] != [] and words[0].startswith("gpulaunch exec")  # its title, one text
    return waits or ("exec" in words and any("gpulaunch" in word for word in words))


def leased(environ: dict[str, str]) -> dict[str, object]:
    """Who holds which of the test's cards."""
    return dict(holders(environ["GPULAUNCH_LEASED"]))
