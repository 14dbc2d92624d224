"""Three users under the machine's limits: real launchers on pretend cards, in namespaces.

The machine's configuration is root's, in an /etc that only these launchers see. How many cards a
user has is read from the leases themselves, all the time.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpulaunch.gpus.lease import leases_of
from tests.cli.launcher import COMMAND, Launcher
from tests.gpus.fake import FakeDriver
from tests.helpers import own_network, wait_until

USERS = {"ann": 65001, "bob": 65002, "cid": 65003}
LAB = 65100
CONFIG = """\
limits:
  users: {default: 1, ann: 3}
  groups: {lab: 2}
gpus: {never: [7], last: [0]}
"""
LIMITS = {"ann": 3, "bob": 2, "cid": 1}
PLACE = "/etc/gpulaunch/config.yaml"
LIST = "\n".join(["jobs:", "  - name: j", "    matrix: {n: %s}", "    run: sleep 0.05"])


class Box:
    """A machine of eight cards, its configuration, and a launcher of each user."""

    def __init__(self, path: Path, driver: FakeDriver) -> None:
        self.path = path
        self.etc = path / "etc"
        self.driver = driver
        for index in range(8):
            driver.card(index)
        (self.etc / "gpulaunch").mkdir(parents=True)
        (self.etc / "gpulaunch" / "config.yaml").write_text(CONFIG)
        names = "".join(f"{n}:x:{u}:{u}::{path / n}:/bin/sh\n" for n, u in USERS.items())
        (self.etc / "passwd").write_text(Path("/etc/passwd").read_text() + names)
        lab = f"lab:x:{LAB}:bob\n"
        (self.etc / "group").write_text(Path("/etc/group").read_text() + lab)
        for name in ("ld.so.cache", "ld.so.conf", "nsswitch.conf", "localtime"):
            if Path("/etc", name).exists():
                shutil.copy(Path("/etc", name), self.etc / name)

    def launcher(self, user: str, name: str = "work") -> Launcher:
        """gpulaunch of this user, in a directory of its own."""
        home, uid = self.path / user, USERS[user]
        work = home / name
        work.mkdir(parents=True, exist_ok=True)
        for each in (home, work):
            os.chown(each, uid, uid)
        groups = f"--groups={LAB}" if user == "bob" else "--clear-groups"
        rights = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", groups, *rights]
        within = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
        there = f"mount --bind '{self.etc}' /etc && exec \"$@\""
        environ = {
            **self.driver.environ,
            "HOME": str(home),
            "USER": user,
            "XDG_CONFIG_HOME": str(home / "xdg"),
            "XDG_STATE_HOME": str(home / "state"),
        }
        return Launcher(work, environ, [*within, there, "sh", *become, *COMMAND])


@pytest.fixture
def box(tmp_path: Path, driver: FakeDriver) -> Iterator[Box]:
    if os.geteuid() or not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        pytest.skip("other users and namespaces are root's, with unshare and setpriv")
    for uid in USERS.values():
        with pytest.raises(KeyError):
            pwd.getpwuid(uid)
    with own_network():
        yield Box(tmp_path, driver)


class Watch:
    """Counts each user's leases, all the time, in a thread.

    A lease counts that is the user's in two readings: of two leases that are looked at one after
    the other, the second may have been taken after the first was given back. The name `count/UID`
    is left to the launchers: they would count without it if another user, as root is, held it.
    """

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self.looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            for user, uid in USERS.items():
                both = set(leases_of(uid)) & set(leases_of(uid))
                self.most[user] = max(self.most[user], len(both))
                self.looks += 1


@contextmanager
def started(launcher: Launcher, *argv: str) -> Iterator[subprocess.Popen[str]]:
    with launcher.begun(*argv) as process:
        yield process


def test_no_user_ever_holds_more_than_the_limit_over_many_starts(box: Box) -> None:
    with ExitStack() as stack:
        watch = stack.enter_context(Watch())
        begun = []
        for user in USERS:
            for n in range(3):
                launcher = box.launcher(user, f"run{n}")
                launcher.file("jobs.yaml", LIST % list(range(8)))
                begun.append(stack.enter_context(started(launcher, "run", "jobs.yaml", "-q")))
            execs = box.launcher(user, "execs")
            count = str(LIMITS[user])
            for _ in range(2):
                argv = ("exec", "-g", count, "--", "sleep", "0.1")
                begun.append(stack.enter_context(started(execs, *argv)))
        said = [process.communicate(timeout=240) for process in begun]
    assert [process.returncode for process in begun] == [0] * len(begun), said
    assert dict(watch.most) == LIMITS, f"in {watch.looks} looks"
    assert watch.looks > 100


def test_a_launcher_at_its_limit_says_why_and_a_killed_one_frees_its_share(box: Box) -> None:
    first, second = box.launcher("ann", "first"), box.launcher("ann", "second")
    third = box.launcher("ann", "third")
    first.file("jobs.yaml", (LIST % [1, 2, 3]).replace("sleep 0.05", "sleep 1000"))
    second.file("jobs.yaml", LIST % [1])
    with (
        Watch() as watch,
        started(first, "run", "jobs.yaml", "-q") as killed,
        ExitStack() as stack,
    ):
        wait_until(lambda: len(leases_of(USERS["ann"])) == 3)
        waiting = stack.enter_context(started(second, "run", "jobs.yaml", "-q"))
        beside = stack.enter_context(started(third, "exec", "--", "true"))
        why = (
            f"your launchers may hold 3 at once ({PLACE}:2), and hold them, all of them in other"
            " launchers"
        )
        wait_until(lambda: why in second("status", "--json").out)
        assert why in json.loads(second("status", "--json").out)["jobs"][0]["reason"]
        assert len(leases_of(USERS["ann"])) == 3
        pid = json.loads(first("ps", "--json").out)["runs"]
        (supervisor,) = (run["pid"] for run in pid if str(first.path) in (run["dir"] or ""))
        os.kill(supervisor, signal.SIGKILL)
        assert waiting.wait(60) == 0
        assert beside.wait(60) == 0
        killed.wait(60)
    assert beside.stderr is not None
    assert watch.most["ann"] == 3


def test_a_job_that_is_wider_than_the_limit_is_refused_with_its_place(box: Box) -> None:
    cid = box.launcher("cid")
    cid.file("jobs.yaml", 'jobs:\n  - {gpus: 2, run: "true"}\n')
    limit = f"(all your launchers together may hold 1 card at once: {PLACE}:2)"
    for command in ("run", "check"):
        result = cid(command, "jobs.yaml")
        assert result.status == 2
        assert "jobs.yaml:2:12: jobs[0].gpus: needs 2 cards, the run has 1 " + limit in result.err
    for argv, status in (
        (("exec", "-g", "2", "--no-wait", "--", "true"), 125),
        (("hold", "-g", "2", "--no-wait", "--", "true"), 125),
        (("run", "one.yaml", "--gpus", "2"), 3),
    ):
        cid.file("one.yaml", 'jobs:\n  - {run: "true"}\n')
        result = cid(*argv)
        assert (result.status, limit in result.err) == (status, True), result
    bob = box.launcher("bob")
    assert f"may hold 2 cards at once: {PLACE}:3)" in bob("exec", "-g", "3", "--", "true").err


def test_a_card_never_to_be_used_is_not_used_and_the_last_one_comes_last(box: Box) -> None:
    ann = box.launcher("ann")
    ann.file("jobs.yaml", 'jobs:\n  - {gpus: 3, run: echo "$GPULAUNCH_GPU_INDEX" > cards}\n')
    assert ann("run", "jobs.yaml", "-q").status == 0
    assert (ann.path / "cards").read_text() == "1,2,3\n"
    refused = ann("run", "jobs.yaml", "--new", "--gpus", "5,6,7")
    assert refused.status == 2
    assert f"GPU 7 is never to be used here: {PLACE}:4 says so" in refused.err
    told = ann("check", "jobs.yaml").err
    assert f"GPU 7 is never used ({PLACE}:4)" in told
    assert f"GPU 0 is used last ({PLACE}:4)" in told
    assert f"your launchers may hold 3 cards at once: {PLACE}:2" in told
    cards = json.loads(ann("gpus", "--json").out)["gpus"]
    assert cards[7]["outside"] == f"{PLACE}:4"
    assert cards[0]["last"] == f"{PLACE}:4"
    assert "used last: " in ann("gpus").out
    assert ann("exec", "--gpus", "0,", "--", "true").status == 0
    (ann.path.parent / "xdg" / "gpulaunch").mkdir(parents=True)
    (ann.path.parent / "xdg" / "gpulaunch" / "config.yaml").write_text("gpus: {never: [6]}\n")
    refused = ann("exec", "--gpus", "6,7", "--", "true")
    assert "GPU 6 is never to be used here" in refused.err
    assert "GPU 7 is never" in ann("exec", "--gpus", "7,", "--", "true").err
