"""How images are spelled: what each text is, which engines run it, and what is no image's name."""

from __future__ import annotations

import re

import pytest

from gpulaunch.containers.images import Image, ImageKind, read_image, why_not

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
}


@pytest.mark.parametrize("text", SPELLED)
def test_an_image_is_told_by_its_spelling(text: str) -> None:
    kind, engines = SPELLED[text]
    image = read_image(text)
    assert (image.kind, image.engines) == (kind, engines)
    assert image.is_file == (kind in ("sif", "sandbox", "squashfs", "archive"))


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
