"""How an attempt's command is wrapped for each engine: its line, its variables, its record."""

from __future__ import annotations

import json
import os
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpulaunch.core.model import Container, ContainerEngine, Demand, Gpu, Job, Mount, WarnPolicy
from gpulaunch.engines.command import NodeSlots
from gpulaunch.engines.contained import CardsInside, Containing, caches_of, cards_inside, wrapped
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.environment import AttemptPlace, Delta
from gpulaunch.gpus.discover import simulated

CARD = Gpu("GPU-aaaa", 3, "0000:03:00.0", "H100", 80 << 30)
INSIDE = {
    "CUDA_VISIBLE_DEVICES": "3",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GPULAUNCH_RUN_ID": "r",
    "GPULAUNCH_JOB": "a b",
    "GPULAUNCH_ATTEMPT": "2",
    "HF_HOME": "/hf-secret",
    "PATH": "/opt/bin",
}
ARGV = ("python", "x.py")


@pytest.fixture
def wrap(tmp_path: Path) -> Any:
    def make(
        engine: ContainerEngine, gpus: tuple[Gpu, ...] = (CARD,), **more: Any
    ) -> tuple[tuple[str, ...], Delta]:
        (tmp_path / "cache").mkdir(exist_ok=True)
        job = Job("a b", ARGV, demand=Demand(gpus=len(gpus)), cwd="/work")
        container = Container("img", **more.pop("container", {}))
        run = str(tmp_path / "run")
        place = AttemptPlace(gpus, "index", "s", 1, run="r", run_dir=run, attempt=2, out=f"{run}/o")
        made = Containing(
            replace(job, **more.pop("job", {})),
            container,
            replace(place, **more.pop("place", {})),
            ImageHere(engine, "sha256:1234"),
            str(tmp_path / "cache"),
            f"{run}/containers/a b.2",
            **more,
        )
        return wrapped(made, ARGV, INSIDE)

    return make


def record_of(line: tuple[str, ...]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(Path(line[line.index("container") + 1]).read_text())
    return made


@pytest.mark.parametrize(("engine", "prefix"), [("apptainer", "APPTAINERENV_")])
def test_apptainer_gets_the_variables_by_its_prefix_and_the_mask_by_uuid(
    wrap: Any, engine: ContainerEngine, prefix: str
) -> None:
    line, changes = wrap(engine)
    assert line[:2] == (engine, "exec")
    assert line[-3:] == ("sha256:1234", *ARGV)
    assert changes.set[prefix + "CUDA_VISIBLE_DEVICES"] == "GPU-aaaa"
    assert changes.set[prefix + "HF_HOME"] == "/hf-secret"
    assert prefix + "CUDA_DEVICE_ORDER" not in changes.set
    assert "SINGULARITYENV_CUDA_VISIBLE_DEVICES" in changes.unset
    assert "PATH" not in changes.set, "the engine's own PATH is the caller's"


def test_nothing_in_a_value_is_evaluated_by_apptainer(wrap: Any) -> None:
    assert wrap("apptainer")[1].set["APPTAINER_NO_EVAL"] == "1"
    assert wrap("singularity")[1].set["SINGULARITY_NO_EVAL"] == "1"


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_carrier_gets_a_record_that_only_the_user_reads(
    wrap: Any, engine: ContainerEngine
) -> None:
    line, changes = wrap(engine, job={"warn": WarnPolicy(10, 30.0)})
    record = record_of(line)
    path = Path(line[line.index("container") + 1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert line[-2:] == ARGV
    assert (record["engine"], record["image"], record["cwd"]) == (engine, "img", "/work")
    assert record["warn"] == 10
    assert record["start"][:2] == [engine, "run"]
    assert record["start"][-3:] == ["sha256:1234", "inside", "/.gpulaunch/link/socket"]
    assert record["remove"][:3] == [engine, "rm", "--force"]
    assert record["name"] == record["remove"][-1]
    assert record["name"].startswith("gpulaunch-a_b.2-")
    assert "hf-secret" not in path.read_text(), "no value of a variable is written down"
    assert changes.set["GPULAUNCH_INSIDE_HF_HOME"] == "/hf-secret"
    assert "HF_HOME" not in changes.set
    assert changes.set["GPULAUNCH_JOB"] == "a b", "by which it is found if it outlives its keepers"


def test_a_run_s_open_directory_lets_nobody_in_to_its_containers(wrap: Any, tmp_path: Path) -> None:
    """A carrier opens its own folder to whoever the program is inside."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o755)
    before = os.umask(0o022)
    try:
        line, _ = wrap("docker", container={"user": "1234"})
    finally:
        os.umask(before)
    path = Path(line[line.index("container") + 1])
    assert path.parent.parent == tmp_path / "run" / "containers"
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def test_the_mask_is_not_applied_a_second_time(wrap: Any) -> None:
    record = record_of(wrap("docker")[0])
    assert "CUDA_VISIBLE_DEVICES" not in record["inside"]
    assert "CUDA_VISIBLE_DEVICES" in record["unset"], "an image may set one"
    assert "CUDA_DEVICE_ORDER" in record["inside"]


def test_without_cards_the_mask_is_empty(wrap: Any) -> None:
    line, changes = wrap("podman", ())
    assert "CUDA_VISIBLE_DEVICES" in record_of(line)["inside"]
    assert changes.set["GPULAUNCH_INSIDE_CUDA_VISIBLE_DEVICES"] == ""


def test_a_variable_that_env_removes_is_removed_from_the_images(wrap: Any) -> None:
    assert "OLD" in record_of(wrap("docker", own={"OLD": None})[0])["unset"]


def test_what_explains_errors_goes_before_the_images_own_search_path(wrap: Any) -> None:
    explained = {"job": {"explain": True}}
    assert record_of(wrap("docker", **explained)[0])["first"] == ["PYTHONPATH"]
    assert record_of(wrap("docker", own={"PYTHONPATH": "x"}, **explained)[0])["first"] == []
    assert record_of(wrap("docker")[0])["first"] == []


def test_home_is_where_an_ordinary_user_may_write(
    wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(os, "getegid", lambda: 1234)
    assert wrap("docker")[1].set["GPULAUNCH_INSIDE_HOME"] == "/tmp"
    for user in ("image", "0", "0:100"):
        assert "GPULAUNCH_INSIDE_HOME" not in wrap("docker", container={"user": user})[1].set
    other = wrap("docker", container={"user": "5000"})[1].set
    assert other["GPULAUNCH_INSIDE_HOME"] == "/tmp"
    assert "GPULAUNCH_INSIDE_USER" not in other  # the image may know that user's name


def test_what_env_removes_is_not_set_for_an_ordinary_user(
    wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    line, changes = wrap("docker", own={"HOME": None, "USER": None})
    assert not {"GPULAUNCH_INSIDE_HOME", "GPULAUNCH_INSIDE_USER"} & changes.set.keys()
    assert {"HOME", "USER"} <= set(record_of(line)["unset"])
    assert "GPULAUNCH_INSIDE_LOGNAME" in changes.set


def test_a_launch_that_did_not_come_about_leaves_nothing_in_the_way(wrap: Any) -> None:
    first = record_of(wrap("docker")[0])
    assert record_of(wrap("docker")[0]) == first


def test_the_jobs_directories_appear_at_their_own_paths(wrap: Any, tmp_path: Path) -> None:
    mounts = (Mount("/weights", "/models", True),)
    line, _ = wrap("apptainer", container={"mounts": mounts}, job={"batch": ("/in/a", "/in/b")})
    shown = [word for before, word in pairwise(line) if before == "--bind"]
    run = f"{tmp_path}/run"
    assert set(shown) >= {"/work:/work", f"{run}:{run}", "/in:/in", "/weights:/models:ro"}
    assert f"{run}/o:{run}/o" not in shown, "it is in the run's"


def test_on_a_cluster_the_node_fills_in_its_mask(wrap: Any) -> None:
    slots = NodeSlots.fresh(2)
    line, changes = wrap("apptainer", (), place={"slots": slots})
    assert "--nv" in line
    assert changes.set["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == slots.mask
    line, changes = wrap("apptainer", (), place={"slots": NodeSlots.fresh(0)})
    assert "--nv" not in line
    assert changes.set["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == ""


def test_compiler_caches_of_images_are_apart_and_on_a_cluster_the_runs() -> None:
    place = AttemptPlace((CARD,), "index", "s", 1, run_dir="/run")
    assert caches_of("a", place, "/c") != caches_of("b", place, "/c")
    assert caches_of("a", place, "/c").startswith("/c/containers/")
    assert caches_of("a", replace(place, slots=NodeSlots.fresh(1)), "/c").startswith("/run/cache/")


# ── The cards that a container sees ─────────────────────────────────────────────────────────────


ONE = Gpu("GPU-aaaa", 3, "0000:03:00.0", "H100", 80 << 30)
TWO = Gpu("GPU-bbbb", 1, "0000:01:00.0", "H100", 80 << 30)
MIG = Gpu("MIG-cccc", 0, "MIG-cccc", "1g.10gb", 10 << 30, mig=True)
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
VOID = "--env=NVIDIA_VISIBLE_DEVICES=void"
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("engine", "gpus", "expected"),
    [
        ("docker", [ONE], CardsInside(("--gpus", '"device=GPU-aaaa"'), inside=PCI)),
        ("docker", [ONE, TWO], CardsInside(("--gpus", '"device=GPU-aaaa,GPU-bbbb"'), inside=PCI)),
        ("docker", [MIG], CardsInside(("--gpus", '"device=MIG-cccc"'), inside=PCI)),
        ("docker", [], CardsInside((VOID,), inside=HIDDEN)),
        ("podman", [ONE], CardsInside(("--device=nvidia.com/gpu=GPU-aaaa", VOID), inside=PCI)),
        (
            "podman",
            [ONE, TWO],
            CardsInside(
                ("--device=nvidia.com/gpu=GPU-aaaa", "--device=nvidia.com/gpu=GPU-bbbb", VOID),
                inside=PCI,
            ),
        ),
        ("podman", [MIG], CardsInside(("--device=nvidia.com/gpu=MIG-cccc", VOID), inside=PCI)),
        ("podman", [], CardsInside((VOID,), inside=HIDDEN)),
        ("apptainer", [ONE], CardsInside(("--nv",), inside={"CUDA_VISIBLE_DEVICES": "GPU-aaaa"})),
        (
            "singularity",
            [ONE, TWO],
            CardsInside(("--nv",), inside={"CUDA_VISIBLE_DEVICES": "GPU-aaaa,GPU-bbbb"}),
        ),
        ("apptainer", [MIG], CardsInside(("--nv",), inside={"CUDA_VISIBLE_DEVICES": "MIG-cccc"})),
        ("apptainer", [], CardsInside(inside=HIDDEN)),
    ],
)
def test_a_container_is_shown_exactly_its_cards(
    engine: ContainerEngine, gpus: list[Gpu], expected: CardsInside
) -> None:
    assert cards_inside(engine, gpus) == expected


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", "singularity"])
def test_pretend_cards_are_shown_as_none_with_the_mask_as_outside(engine: ContainerEngine) -> None:
    made = cards_inside(engine, simulated(2, "run"))
    assert made.options == cards_inside(engine, []).options
    assert made.inside["CUDA_VISIBLE_DEVICES"].count(",") == 1


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", "singularity"])
def test_a_mask_of_numbers_from_outside_never_gets_in(engine: ContainerEngine) -> None:
    mask = cards_inside(engine, [ONE, TWO]).inside.get("CUDA_VISIBLE_DEVICES", "")
    assert not {"3", "1"} & set(mask.split(","))


def test_a_node_of_a_cluster_fills_its_mask_in() -> None:
    made = cards_inside("apptainer", [], mark="@mask@")
    assert made == CardsInside(("--nv",), inside={"CUDA_VISIBLE_DEVICES": "@mask@"})
