"""Engines of containers for the tests in here, each started once for all of them.

Where one cannot be had, its tests are skipped with the reason; they fail where
GPULAUNCH_REQUIRE_DOCKER=1 or GPULAUNCH_REQUIRE_PODMAN=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from gpulaunch.engines import programs
from tests.containers.carried import Bench, bare_engine
from tests.containers.daemons import (
    RealEngine,
    Unavailable,
    another_user,
    real_docker,
    real_podman,
    short_folder,
)


@contextmanager
def had(engine: AbstractContextManager[RealEngine], requirement: str = "") -> Iterator[RealEngine]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(engine)
        except Unavailable as why:
            if requirement and os.environ.get(requirement) == "1":
                pytest.fail(f"{requirement}=1, and {why}")
            pytest.skip(str(why))
        yield made


@contextmanager
def rootless() -> Iterator[RealEngine]:
    with another_user() as account, real_podman(account) as engine:
        yield engine


@pytest.fixture(scope="session")
def docker() -> Iterator[RealEngine]:
    with had(real_docker(), "GPULAUNCH_REQUIRE_DOCKER") as engine:
        yield engine


@pytest.fixture(scope="session")
def podman_root() -> Iterator[RealEngine]:
    if os.geteuid() != 0:
        pytest.skip("the tests are not run as root")
    with had(real_podman(), "GPULAUNCH_REQUIRE_PODMAN") as engine:
        yield engine


@pytest.fixture(scope="session")
def podman_rootless() -> Iterator[RealEngine]:
    """Never required: a machine may not let users have containers, whatever is installed."""
    with had(rootless()) as engine:
        yield engine


ENGINES = ["bare", "docker", "podman_root", "podman_rootless"]


@pytest.fixture(params=ENGINES)
def bench(request: pytest.FixtureRequest) -> Bench:
    """Carriers on each engine in turns, and on none: `inside` runs beside them then."""
    return request.getfixturevalue(f"{request.param}_bench")  # type: ignore[no-any-return]


@pytest.fixture(params=ENGINES[1:])
def contained(request: pytest.FixtureRequest) -> Bench:
    """Carriers on each real engine in turns."""
    return request.getfixturevalue(f"{request.param}_bench")  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def keeper_program() -> Path:
    if not programs.PROGRAM.exists():
        pytest.skip("the keepers' program was not built here (no C compiler)")
    return programs.PROGRAM


@pytest.fixture(scope="session")
def bare_bench(request: pytest.FixtureRequest, keeper_program: Path) -> Iterator[Bench]:
    if os.environ.get("GPULAUNCH_TEST_SANITIZE"):
        keeper_program = request.getfixturevalue("sanitized")
    with short_folder() as folder:
        yield Bench(bare_engine(folder), keeper_program)


@pytest.fixture(scope="session")
def docker_bench(docker: RealEngine, keeper_program: Path) -> Bench:
    return Bench(docker, keeper_program)


@pytest.fixture(scope="session")
def podman_root_bench(podman_root: RealEngine, keeper_program: Path) -> Bench:
    return Bench(podman_root, keeper_program)


@pytest.fixture(scope="session")
def podman_rootless_bench(podman_rootless: RealEngine, keeper_program: Path) -> Bench:
    return Bench(podman_rootless, keeper_program)
