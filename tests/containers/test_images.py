"""How images are spelled: what each text is, which engines run it, and what is no image's name."""

from __future__ import annotations

import re

import pytest

from gpulaunch.containers.images import (
    Image,
    ImageKind,
    apptainer_uri,
    bare,
    digest_among,
    file_name,
    is_file,
    loaded,
    pulled_as,
    read_image,
    why_not,
)

SIF = ("apptainer", "singularity")
ANY = ("docker", "podman", "apptainer", "singularity")
SHA = "0" * 64
SPELLED: dict[str, tuple[ImageKind, tuple[str, ...]]] = {
    "alphafold3.sif": ("sif", SIF),
    "images/a.simg": ("sif", SIF),
    "/data/with space/a.img": ("sif", SIF),
    "./sandbox": ("sandbox", SIF),
    "../sandbox/": ("sandbox", SIF),
    "~/sandbox": ("sandbox", SIF),
    "library://lab/tools/a:1.0": ("apptainer", SIF),
    "oras://host/a:1": ("apptainer", SIF),
    "shub://lab/a": ("apptainer", SIF),
    "docker-daemon:boltz:latest": ("apptainer", SIF),
    "/images/a.squashfs": ("sandbox", SIF),
    "a.tar": ("archive", ("docker", "podman")),
    "a.oci.tar": ("archive", ("docker", "podman")),
    "./a.tar.gz": ("archive", ("docker", "podman")),
    "~/a.tar.xz": ("archive", ("docker", "podman")),
    "podman://boltz": ("podman", ("podman",)),
    "docker://host:5000/lab/a:1": ("docker", ANY),
    "boltz": ("name", ANY),
}
NAMES = [
    "alphafold3",
    "vllm/vllm-openai:latest",
    "vllm/vllm-openai:v0.9.1-CUDA",
    "localhost/a",
    "localhost:5000/a:1",
    "registry.example:5000/lab/tools/a_b.c-d__e--f:1.0_x",
    "Registry.Example/a",
    "[::1]:5000/a",
    f"a@sha256:{SHA}",
    f"a:1@sha256:{SHA}",
    f"sha256:{SHA}",
    "0123456789ab",
]
WRONG = {
    "": "found an empty text",
    " ": "found an empty text",
    "AlphaFold3": "'AlphaFold3': a name is in lower case: alphafold3",
    "host.example/Lab/a:1": "a name is in lower case: lab/a",
    "a b": "a name has no spaces",
    "vllm/vllm-openai:latest --model x": "a name has no spaces; the command goes into run:",
    "docker://host#lab/a": "a registry stands before a /, not before a #",
    "a:": "a tag is letters, digits, _ . and -, found ''",
    "a:1/b:-x": "found '-x'",
    "a@sha256:12": "behind @ stands sha256: and 64 hexadecimal digits",
    "a@": "behind @ stands sha256:",
    "-it": "a name is letters and digits, with single . _ or - and / between them",
    "a//b": "a name is letters and digits",
    "a..b": "a name is letters and digits",
    "a/": "a name is letters and digits",
    "{{image}}": "a name is letters and digits",
    "h.x:port/a": "'h.x:port' is no registry's HOST or HOST:PORT",
    "a" * 256: "at most 255 characters",
    "docker://": "there is none",
    "podman://A": "a name is in lower case",
    "library://": "expected library://NAME",
    "docker-daemon:": "expected docker-daemon:NAME",
    "oras://a b": "without spaces",
    "https://host/a.sif": "https:// is not known here; expected a file's path, a name",
    "oci-archive:/a.tar": "oci-archive:// is not known here",
    "./box.sqsh": "'./box.sqsh' is an image of enroot, which gpulaunch does not run",
}


@pytest.mark.parametrize("text", SPELLED)
def test_an_image_is_told_by_its_spelling(text: str) -> None:
    kind, engines = SPELLED[text]
    image = read_image(text)
    assert (image.kind, image.engines) == (kind, engines)
    assert image.is_file == (kind in ("sif", "sandbox", "archive"))


@pytest.mark.parametrize("text", NAMES)
def test_a_name_alone_is_an_images(text: str) -> None:
    assert read_image(text) == Image("name", text)


@pytest.mark.parametrize("text", WRONG)
def test_what_names_no_image_is_told_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(WRONG[text])) as caught:
        read_image(text)
    assert "\n" not in str(caught.value)


def test_the_scheme_that_says_only_the_engine_is_no_part_of_the_name() -> None:
    assert read_image("docker://a:1").name == "a:1"
    assert read_image("podman://a:1").name == "a:1"
    assert read_image("library://lab/a").name == "library://lab/a"


def test_an_engine_that_cannot_run_an_image_is_told_why() -> None:
    assert why_not("/x/a.sif", "apptainer") == ""
    assert why_not("/x/a.sif", "docker") == (
        "docker cannot run '/x/a.sif', an image file of apptainer's; write apptainer or singularity"
    )
    assert why_not("podman://a", "docker").endswith("podman's own by its podman://; write podman")
    assert why_not("a.tar", "apptainer").endswith("docker and podman load; write docker or podman")


# ── what each engine calls an image ───────────────────────────────────────────────────────────────

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
