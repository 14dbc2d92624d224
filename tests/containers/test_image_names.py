"""How images are named, by people and for engines; what is heard of a pull; what errors mean."""

from __future__ import annotations

import pytest

from gpulaunch.containers.image_names import (
    apptainer_uri,
    bare,
    digest_among,
    file_name,
    host,
    is_file,
    loaded,
    pulled_as,
)
from gpulaunch.containers.progress import PERIOD, ProgressPace, PullProgress

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("lab/tool:2", "lab/tool:2"),
        ("docker://lab/tool:2", "lab/tool:2"),
        ("podman://registry.example/lab/tool", "registry.example/lab/tool"),
        (f"docker://lab/tool@{A}", f"lab/tool@{A}"),
    ],
)
def test_docker_and_podman_take_a_name_without_its_scheme(image: str, name: str) -> None:
    assert bare(image) == name


def test_podman_alone_is_told_that_a_name_is_of_docker_s_registry() -> None:
    assert pulled_as("podman", "docker://lab/tool") == "docker://lab/tool"
    assert pulled_as("podman", "podman://lab/tool") == "lab/tool"
    assert pulled_as("podman", "lab/tool") == "lab/tool"
    assert pulled_as("docker", "docker://lab/tool") == "lab/tool"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("tool", ""),
        ("lab/tool:2", ""),
        ("tool.v2:1", ""),
        ("registry.example/lab/tool:2", "registry.example"),
        ("docker://registry.example:5000/tool", "registry.example:5000"),
        ("localhost/tool", "localhost"),
        ("docker-daemon:lab/tool:2", ""),
    ],
)
def test_a_name_begins_with_a_host_where_it_looks_like_one(image: str, expected: str) -> None:
    assert host(image) == expected


@pytest.mark.parametrize(
    ("image", "uri"),
    [
        ("lab/tool:2", "docker://lab/tool:2"),
        ("docker://lab/tool:2", "docker://lab/tool:2"),
        ("library://lab/tool", "library://lab/tool"),
        ("oras://registry.example/tool:1", "oras://registry.example/tool:1"),
        ("shub://lab/tool", "shub://lab/tool"),
        ("docker-daemon:tool:latest", "docker-daemon:tool:latest"),
        ("docker-daemon:lab/tool:2", "docker-daemon:lab/tool:2"),
    ],
)
def test_apptainer_pulls_from_an_address(image: str, uri: str) -> None:
    assert apptainer_uri(image) == uri


def test_a_file_is_named_by_its_absolute_path() -> None:
    assert is_file("/data/tool.sif")
    assert not is_file("lab/tool")
    assert not is_file("docker://lab/tool")


def test_files_of_images_have_readable_names_and_one_for_each_address() -> None:
    uris = [
        "docker://lab/tool:2",
        "docker://lab/tool:3",
        "docker://other/tool:2",
        f"docker://t@{A}",
    ]
    names = [file_name(uri) for uri in uris]
    assert len(set(names)) == len(names)
    assert names[0].startswith("tool-2-")
    assert names[3].startswith("t-")
    assert all(name.endswith(".sif") for name in names)
    assert file_name("docker://" + "x" * 4000).count("x") == 60


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("Loaded image: lab/tool:2\n", ["lab/tool:2"]),
        (f"Loaded image ID: {A}\n", [A]),
        (f"Loaded image: {A}\n", [A]),
        ("Loaded image(s): localhost/a:1,localhost/b:1\n", ["localhost/a:1", "localhost/b:1"]),
        ("Loaded image: a:1\nLoaded image: b:1\nLoaded image: a:1\n", ["a:1", "b:1"]),
        ("", []),
    ],
)
def test_what_was_loaded_is_read_from_what_the_client_prints(output: str, names: list[str]) -> None:
    assert loaded(output) == names


@pytest.mark.parametrize(
    ("entries", "image", "digest"),
    [
        ([], "lab/tool", ""),
        ([f"lab/tool@{A}"], "lab/tool:2", A),
        ([f"mirror.example/tool@{A}", f"lab/tool@{B}"], "lab/tool:2", B),
        ([f"mirror.example/tool@{A}", f"registry.example/lab/tool@{B}"], "lab/tool", B),
        ([f"mirror.example/tool@{A}", f"a.example:5000/tool@{B}"], "a.example:5000/tool:1", B),
        ([f"mirror.example/tool@{A}", f"lab/tool@{B}"], "/data/tool.tar", A),
    ],
)
def test_an_image_has_the_digest_of_the_registry_that_it_was_named_by(
    entries: list[str], image: str, digest: str
) -> None:
    assert digest_among(entries, image) == digest


# ── Progress ────────────────────────────────────────────────────────────────────────────────────


def heard(text: str) -> list[str]:
    progress = PullProgress()
    return [said for line in text.splitlines() if (said := progress.heard(line))]


def test_of_docker_the_layers_that_are_here_are_counted() -> None:
    lines = """\
Using default tag: latest
latest: Pulling from lab/tool
f89328afeb59: Pulling fs layer
3ac1b0d5e17a: Already exists
bd960fb25bfc: Pulling fs layer
bd960fb25bfc: Waiting
f89328afeb59: Verifying Checksum
f89328afeb59: Download complete
f89328afeb59: Pull complete
bd960fb25bfc: Retrying in 5 seconds
bd960fb25bfc: Download complete
bd960fb25bfc: Pull complete
Digest: sha256:992f2b93c7d08a0dfc8012015c3639b175834f28429dff4dea1d0fd349801ec6
Status: Downloaded newer image for lab/tool:latest
"""
    assert heard(lines) == [
        "1 of 2 layers, 1 unpacked",
        "1 of 3 layers, 1 unpacked",
        "1 of 3 layers, 1 unpacked",
        "2 of 3 layers, 1 unpacked",
        "2 of 3 layers, 2 unpacked",
        "2 of 3 layers, 2 unpacked",
        "3 of 3 layers, 2 unpacked",
        "3 of 3 layers, 3 unpacked",
    ]


def test_of_podman_the_layers_that_have_begun_are_counted() -> None:
    one, two = "cf539bae3a2c" + "0" * 52, "3ac1b0d5e17a" + "0" * 52
    lines = f"""\
Trying to pull registry.example/tool:latest...
Getting image source signatures
Copying blob sha256:{one}
Copying blob sha256:{two}
Copying blob {one[:12]} done
Copying config sha256:{one}
Writing manifest to image destination
"""
    assert heard(lines) == [
        "layer 1",
        "layer 2",
        "layer 2",
        "every layer is here, writing the image",
    ]


def test_of_apptainer_the_steps_are_told() -> None:
    assert heard("INFO:    Extracting OCI image...\n") == ["extracting OCI image"]


def test_a_pull_is_told_of_once_a_second_and_only_what_is_new() -> None:
    pace = ProgressPace()
    assert pace.lets("1 of 3 layers", 0.0)
    assert not pace.lets("2 of 3 layers", 0.5 * PERIOD)
    assert not pace.lets("1 of 3 layers", 2 * PERIOD)
    assert not pace.lets("", 2 * PERIOD)
    assert pace.lets("3 of 3 layers", 2 * PERIOD)
