from __future__ import annotations

import os
import socket
import threading

import pytest
from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.core.facts import Fact, Noted, RunClosed
from gpulaunch.journal import codec, liveness, manifest
from gpulaunch.journal.append import Journal
from gpulaunch.journal.liveness import (
    control_name,
    origin_of,
    refuse_elsewhere,
    require_dead_elsewhere,
    state_of,
)
from gpulaunch.journal.manifest import boot_id, hostname
from gpulaunch.journal.rundir import RunDir
from tests.journal.facts import added, opened

RUN = f"20261120-074215-{os.getpid():06x}-{threading.get_ident()}"


def record(
    rundir: RunDir,
    *facts: Fact,
    host: str | None = None,
    boot: str | None = None,
    engine: str = "local",
) -> None:
    made = manifest.collect(RUN, "fold", started="", command=["x"], job_file=None, engine=engine)
    epoch = replace(made.epochs[0], host=host or hostname(), boot=boot or boot_id())
    manifest.write(rundir.manifest, replace(made, epochs=(epoch,)))
    with Journal.create(rundir) as journal:
        journal.append([(fact, codec.now()) for fact in facts])


def bound() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(control_name(RUN))
    listener.listen()
    return listener


OPEN = (opened(run=RUN), added("a"))


def test_a_run_runs_as_long_as_its_supervisor_lives(rundir: RunDir) -> None:
    record(rundir, *OPEN)
    with bound():
        assert state_of(rundir) == "running"
    assert state_of(rundir) == "interrupted"


def test_a_run_that_ends_while_it_is_looked_at_was_not_interrupted(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(rundir, *OPEN)
    look = liveness.supervised

    def looked(run: str, owner: int) -> bool:
        with Journal.reopen(rundir) as journal:
            journal.append([(RunClosed("succeeded"), codec.now())])
        return look(run, owner)

    monkeypatch.setattr(liveness, "supervised", looked)
    assert state_of(rundir) == "succeeded"


@pytest.mark.parametrize("state", ["succeeded", "failed", "stopped"])
def test_a_closed_run_is_as_it_was_closed(rundir: RunDir, state: str) -> None:
    record(rundir, *OPEN, RunClosed(state))  # type: ignore[arg-type]
    assert state_of(rundir) == state


def test_a_run_that_was_taken_up_again_is_not_closed(rundir: RunDir) -> None:
    record(rundir, *OPEN, RunClosed("stopped"), replace(OPEN[0], epoch=2))
    assert state_of(rundir) == "interrupted"


def test_a_torn_last_line_does_not_close_a_run_nor_open_it(rundir: RunDir) -> None:
    record(rundir, *OPEN)
    closing = codec.encode(3, RunClosed("succeeded"), codec.now())
    for size in range(len(closing)):
        with open(rundir.events, "r+b") as file:
            file.write(b"")
            file.seek(0, os.SEEK_END)
            file.write(closing[:size])
        assert state_of(rundir) == "interrupted"
        with open(rundir.events, "r+b") as file:
            file.truncate(rundir.events.stat().st_size - size)
    with open(rundir.events, "ab") as file:
        file.write(closing + b'{"n":4,')
    assert state_of(rundir) == "succeeded"
    with open(rundir.events, "ab") as file:
        file.write(b"\n")
    assert state_of(rundir) == "succeeded"


def test_the_last_line_is_found_however_long_the_journal_is(rundir: RunDir) -> None:
    record(rundir, *OPEN, *[Noted("x" * 5000)] * 100, RunClosed("failed"))
    assert state_of(rundir) == "failed"


def test_a_run_that_died_before_its_first_line_is_interrupted(rundir: RunDir) -> None:
    record(rundir)
    assert state_of(rundir) == "interrupted"
    rundir.events.unlink()
    assert state_of(rundir) == "interrupted"


def test_without_a_manifest_the_journal_says_whose_run_it_is(rundir: RunDir) -> None:
    record(rundir, replace(OPEN[0], host=hostname()))
    rundir.manifest.unlink()
    assert origin_of(rundir).run == RUN
    with bound():
        assert state_of(rundir) == "running"


def test_a_directory_without_a_run_is_a_clear_line(rundir: RunDir) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        state_of(rundir)


def test_another_machine_s_run_is_refused_by_that_machine_s_name(rundir: RunDir) -> None:
    record(rundir, *OPEN, host="gpu-box-7", boot="another")
    with pytest.raises(UsageError, match=r"is a run of gpu-box-7.*go on with it on gpu-box-7"):
        refuse_elsewhere(rundir)
    assert state_of(rundir) == "running"


def test_a_run_on_slurm_is_taken_over_from_another_machine_once_its_launcher_is_dead(
    rundir: RunDir,
) -> None:
    record(rundir, *OPEN, host="login1", boot="another", engine="slurm")
    with pytest.raises(UsageError, match=r"on login1, or, .* resume --take-over"):
        refuse_elsewhere(rundir)
    with Journal.reopen(rundir), pytest.raises(UsageError, match="its launcher is alive"):
        require_dead_elsewhere(rundir)
    require_dead_elsewhere(rundir)


def test_a_run_whose_jobs_may_live_on_another_machine_is_not_taken_over(rundir: RunDir) -> None:
    record(rundir, *OPEN, host="gpu-box-7", boot="another")
    with pytest.raises(UsageError, match="may still run there"):
        require_dead_elsewhere(rundir)


@pytest.mark.parametrize(
    ("host", "boot"),
    [(None, "before the machine restarted"), ("its old name", None), (None, None)],
)
def test_this_machine_s_runs_are_taken_up(
    rundir: RunDir, host: str | None, boot: str | None
) -> None:
    record(rundir, *OPEN, host=host, boot=boot)
    refuse_elsewhere(rundir)
    assert state_of(rundir) == "interrupted"
