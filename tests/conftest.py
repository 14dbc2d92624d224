"""Fixtures for every suite, and what a plain `pytest` leaves out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpulaunch.engines import programs
from gpulaunch.engines.client import reap
from gpulaunch.jobfile.config import current
from gpulaunch.jobfile.config_model import NOTHING
from tests.cli.launcher import Launcher, OnDriver
from tests.durations import Durations, recorded
from tests.gpus.fake import FakeDriver, own_leases
from tests.helpers import wait_until
from tests.process.support import compiled

# The commands that tests start keep their compiled modules: compiling is half of such a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says something about the machine, nothing about the property.
with suppress(ImportError):  # tests/torch runs in an example's environment too, which lacks it
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """A plain `pytest` runs what a change needs; files and directories that are named run whole."""
    if current() is not NOTHING:
        pytest.exit("a configuration file would change what is tested: set XDG_CONFIG_HOME", 2)
    config.pluginmanager.register(Durations())
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if not named and not config.option.markexpr:
        config.option.markexpr = "not slow and not cluster"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a cluster and what is slow; the files that take longest begin first."""
    record = recorded()
    for item in items:
        if "slurm_here" in item.fixturenames:
            item.add_marker("cluster")
        file, _, test = item.nodeid.partition("::")
        if test.partition("[")[0] in record[file].slow:
            item.add_marker("slow")
    items.sort(key=lambda item: -record[item.nodeid.partition("::")[0]].clock)


@pytest.fixture(autouse=True)
def no_spawner_left() -> Iterator[None]:
    """Wait for the spawners that a test closed while their pairs lived.

    They are children of this process, which later tests may count.
    """
    yield
    wait_until(lambda: not reap(), 60)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """gpulaunch in an empty directory."""
    return Launcher(tmp_path)


@pytest.fixture
def keeper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The keepers' program, which sanitizers watch if GPULAUNCH_TEST_SANITIZE is set."""
    if os.environ.get("GPULAUNCH_TEST_SANITIZE"):
        monkeypatch.setattr(programs, "PROGRAM", request.getfixturevalue("sanitized"))
    if not programs.PROGRAM.exists():
        pytest.skip("the keepers' program was not built here (no C compiler)")
    return programs.find_keepers()


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keepers' program, which ends with words on standard error when it errs."""
    folder = programs.PROGRAM.parent
    return compiled(tmp_path_factory.mktemp("sanitized") / "keeper", sorted(folder.glob("*.c")))


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    """A pretend driver that has no card yet."""
    return FakeDriver(tmp_path)


@pytest.fixture
def on_cards(tmp_path: Path, driver: FakeDriver) -> Launcher:
    """gpulaunch in an empty directory, on the pretend driver's cards."""
    at = tmp_path / "work"
    at.mkdir()
    return Launcher(at, own_leases(driver))


@pytest.fixture
def not_simulated(tmp_path: Path, driver: FakeDriver) -> Launcher:
    """A launcher whose `--simulate N` finds the pretend driver's cards: for tests of either."""
    at = tmp_path / "work"
    at.mkdir()
    return OnDriver(at, driver)
