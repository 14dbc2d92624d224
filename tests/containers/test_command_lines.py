"""The engines' command lines, as their manual pages have them."""

from __future__ import annotations

import csv
import io

import pytest

from gpulaunch.containers.engines import (
    ContainerLine,
    ContainerName,
    UserInside,
    apptainer_line,
    client_line,
    own_paths,
)
from gpulaunch.core.model import Mount

ODD = "/data/a, b:c \"d\" 'e'\nf"
NOBODY = UserInside()
CALLED = ContainerName("gpulaunch-a.1-0", {"gpulaunch.run": "r"})


def client(engine: str = "docker", user: UserInside = NOBODY, **line: object) -> list[str]:
    made = ContainerLine("img", **line)  # type: ignore[arg-type]
    return client_line(engine, made, CALLED, user, "/k/keeper", "/run/containers/a.1")  # type: ignore[arg-type]


def test_options_stand_before_the_image_and_what_runs_in_it_behind() -> None:
    line = client(cards=("--gpus", '"device=GPU-a"'), args=("--memory=2g",))
    at = line.index("img")
    assert line[at + 1 :] == ["inside", "/.gpulaunch/link/socket"]
    assert {"--gpus", '"device=GPU-a"', "--memory=2g", "--rm", "--pull=never"} <= set(line[:at])
    assert line[:2] == ["docker", "run"]
    assert "--name=gpulaunch-a.1-0" in line
    assert "--label=gpulaunch.run=r" in line


def test_a_job_has_the_machines_network_and_as_much_shared_memory() -> None:
    assert {"--network=host", "--shm-size=123"} <= set(client(shared_memory=123))


def test_a_jobs_memory_is_its_containers_and_swap_is_no_more() -> None:
    assert {"--memory=5b", "--memory-swap=5b"} <= set(client(memory=5))
    assert not [word for word in client() if "memory" in word]


@pytest.mark.parametrize(
    ("args", "left_out"),
    [
        (("--network", "none"), "--network=host"),
        (("--net=mine",), "--network=host"),
        (("--shm-size=8g",), "--shm-size=67108864"),
        (("--ipc=host",), "--shm-size=67108864"),
        (("--memory=2g",), "--memory=5b"),
        (("-m", "2g"), "--memory=5b"),
    ],
)
def test_what_args_choose_is_not_chosen_for_them(args: tuple[str, ...], left_out: str) -> None:
    assert left_out not in client(args=args, memory=5)


def mounts_in(line: list[str]) -> list[list[str]]:
    fields = [word.partition("=")[2] for word in line if word.startswith("--mount=")]
    return [next(csv.reader(io.StringIO(text, newline=""))) for text in fields]


def test_any_path_can_be_mounted() -> None:
    seen = mounts_in(client(mounts=(Mount(ODD, ODD), Mount("/w", "/weights", True))))
    assert seen[-2:] == [
        ["type=bind", f"source={ODD}", f"destination={ODD}"],
        ["type=bind", "source=/w", "destination=/weights", "readonly"],
    ]


def test_the_keepers_program_and_the_way_to_it_are_there_to_be_read() -> None:
    assert mounts_in(client())[:2] == [
        ["type=bind", "source=/k/keeper", "destination=/.gpulaunch/keeper", "readonly"],
        ["type=bind", "source=/run/containers/a.1", "destination=/.gpulaunch/link", "readonly"],
    ]


@pytest.mark.parametrize(
    ("engine", "user", "expected"),
    [
        ("docker", UserInside("7:8", (9,)), ["--user=7:8", "--userns=host", "--group-add=9"]),
        ("docker", UserInside("0:0"), ["--user=0:0", "--userns=host"]),
        ("docker", UserInside(), []),
        ("podman", UserInside("0:0"), ["--user=0:0"]),
        (
            "podman",
            UserInside("7:8", (9,), True),
            ["--user=7:8", "--userns=keep-id", "--group-add=keep-groups"],
        ),
        ("podman", UserInside("7:8", (), True), ["--user=7:8", "--userns=keep-id"]),
    ],
)
def test_files_made_inside_belong_to_the_user(
    engine: str, user: UserInside, expected: list[str]
) -> None:
    options = ("--user", "--userns", "--group-add")
    assert [word for word in client(engine, user) if word.startswith(options)] == expected


def test_apptainer_stands_before_the_program() -> None:
    mounts = (Mount("/work", "/work"), Mount("/w", "/weights", True))
    line = ContainerLine("/i/a.sif", mounts, ("--nv",), ("--writable-tmpfs",))
    assert apptainer_line("apptainer", line, "/work/here") == [
        *("apptainer", "exec", "--cleanenv", "--nv"),
        *("--bind", "/work:/work", "--bind", "/w:/weights:ro"),
        *("--pwd", "/work/here", "--writable-tmpfs", "/i/a.sif"),
    ]


def test_apptainer_is_told_of_an_odd_path_by_its_other_option() -> None:
    line = apptainer_line("singularity", ContainerLine("/i/a.sif", (Mount(ODD, ODD, True),)), "/")
    fields = next(csv.reader(io.StringIO(line[line.index("--mount") + 1], newline="")))
    assert fields == ["type=bind", f"source={ODD}", f"destination={ODD}", "ro"]


# ── mounts ────────────────────────────────────────────────────────────────────────────────────────


def at(path: str) -> Mount:
    return Mount(path, path)


def test_a_directory_appears_at_its_own_path() -> None:
    assert own_paths(["/data/in", "/work"]) == (at("/work"), at("/data/in"))


def test_what_is_below_a_shown_directory_needs_no_mount_of_its_own() -> None:
    assert own_paths(["/work/run/out/a.1", "/work", "/work/run"]) == (at("/work"),)


def test_a_path_that_only_begins_alike_is_another_one() -> None:
    assert own_paths(["/work", "/workshop"]) == (at("/work"), at("/workshop"))


def test_an_added_mount_that_shows_something_else_there_is_kept_inside() -> None:
    added = [Mount("/big/weights", "/work/models", True)]
    assert own_paths(["/work"], added) == (at("/work"), *added)


def test_read_only_below_a_writable_directory_is_kept() -> None:
    added = [Mount("/work/models", "/work/models", True)]
    assert own_paths(["/work"], added) == (at("/work"), *added)


def test_what_lies_below_another_ones_target_is_mounted_again() -> None:
    added = [Mount("/elsewhere", "/work")]
    assert own_paths(["/work/run"], added) == (*added, at("/work/run"))


def test_an_added_mount_takes_the_place_of_the_jobs_own() -> None:
    assert own_paths(["/work"], [Mount("/copy", "/work")]) == (Mount("/copy", "/work"),)


def test_the_root_directory_shows_everything() -> None:
    assert own_paths(["/", "/work"]) == (at("/"),)


def test_outer_mounts_come_before_inner_ones() -> None:
    added = [Mount("/x", "/a/b/c"), Mount("/y", "/a")]
    assert own_paths(["/a/b"], added) == (Mount("/y", "/a"), at("/a/b"), Mount("/x", "/a/b/c"))
