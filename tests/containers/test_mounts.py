"""Which directories of this machine a container shows, and where."""

from __future__ import annotations

from gpulaunch.containers.mounts import own_paths
from gpulaunch.core.model import Mount


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
