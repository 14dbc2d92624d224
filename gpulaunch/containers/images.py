"""Reads how an image is spelled: what it is, and which engines can run it.

    ./boltz.sif    docker://name:tag    vllm/vllm-openai:latest    ─▶ Image(kind, name) ─▶ engines

Pure: nothing is looked at. Whether a file is there is the job file's business.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from gpulaunch.base.text import shortened
from gpulaunch.core.model import ContainerEngine

ImageKind: TypeAlias = Literal["sif", "archive", "sandbox", "name", "docker", "podman", "apptainer"]
"""What an image is: four kinds of files, and four of names.

`name` is a name alone, `docker` and `podman` one behind `docker://`, `podman://`; `apptainer` what
only that knows: `library://`, `oras://`, `shub://` and `docker-daemon:`. `sandbox` is a directory,
or a file whose name does not say what it is.
"""

_SUFFIXES: Mapping[str, ImageKind] = {
    **dict.fromkeys((".sif", ".simg", ".img"), "sif"),
    **dict.fromkeys((".tar", ".tar.gz", ".tar.xz"), "archive"),
}
_PATHS = ("/", "./", "../", "~/")
_SIF_ENGINES: tuple[ContainerEngine, ...] = ("apptainer", "singularity")
_ENGINES: Mapping[ImageKind, tuple[ContainerEngine, ...]] = {
    "sif": _SIF_ENGINES,
    "sandbox": _SIF_ENGINES,
    "archive": ("docker", "podman"),
    "apptainer": _SIF_ENGINES,
    "podman": ("podman",),
    "docker": ("docker", "podman", *_SIF_ENGINES),
    "name": ("docker", "podman", *_SIF_ENGINES),
}
_WORDS: Mapping[ImageKind, str] = {
    "sif": "an image file of apptainer's",
    "sandbox": "a directory, or a file without .tar at its end, which is apptainer's",
    "archive": "an archive, which docker and podman load",
    "apptainer": "an image that apptainer alone fetches",
    "podman": "podman's own by its podman://",
    "docker": "",
    "name": "",
}
"""Why not every engine runs an image of that kind."""

_NAMED: Mapping[str, ImageKind] = {
    "docker://": "docker",
    "podman://": "podman",
    **dict.fromkeys(("library://", "oras://", "shub://", "docker-daemon:"), "apptainer"),
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=/)")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_REGISTRY = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|(?!sha256:)[a-z0-9]+:[0-9a-f]{32,}")


class Image(Struct, frozen=True):
    """An image: what it is, and its name without `docker://` or `podman://`; a file's path."""

    kind: ImageKind
    name: str

    @property
    def is_file(self) -> bool:
        """Whether the name is a path on this machine; a directory counts."""
        return self.kind in ("sif", "archive", "sandbox")

    @property
    def engines(self) -> tuple[ContainerEngine, ...]:
        """The engines that can run it, the one to take first in front."""
        return _ENGINES[self.kind]


def read_image(text: str) -> Image:
    """Return what an image's text is. Raises ValueError, one line, for what names no image."""
    if not text.strip():
        raise ValueError("expected an image's name or file, found an empty text")
    if text.endswith(".sqsh"):
        raise ValueError(
            f"{shortened(text)} is an image of enroot, which gpulaunch does not run; name the image"
            " that it was made of, or a .sif file"
        )
    if text.startswith(_PATHS) or text in (".", "..", "~"):
        return Image(_kind_of_file(text), text)
    for scheme, kind in _NAMED.items():
        if text.startswith(scheme):
            return Image(kind, _named(text, scheme, kind))
    if scheme_found := _SCHEME.match(text):
        raise ValueError(
            f"{scheme_found.group()}// is not known here; expected a file's path, a name, or one"
            f" behind {', '.join(_NAMED)}"
        )
    if text.endswith(tuple(_SUFFIXES)):
        return Image(_kind_of_file(text), text)
    _check_name(text)
    return Image("name", text)


def why_not(text: str, engine: ContainerEngine) -> str:
    """Return why an engine cannot run an image; empty where it can. Raises as `read_image`."""
    image = read_image(text)
    if engine in image.engines:
        return ""
    can = " or ".join(image.engines)
    return f"{engine} cannot run {shortened(text)}, {_WORDS[image.kind]}; write {can}"


def _kind_of_file(path: str) -> ImageKind:
    found = (kind for suffix, kind in _SUFFIXES.items() if path.endswith(suffix))
    return next(found, "sandbox")


def _named(text: str, scheme: str, kind: ImageKind) -> str:
    """Return the name behind a scheme; apptainer's own names keep theirs."""
    name = text.removeprefix(scheme)
    if kind != "apptainer":
        _check_name(name)
        return name
    if not name or any(char.isspace() for char in name):
        raise ValueError(f"expected {scheme}NAME, without spaces, found {shortened(text)}")
    return text


# ── names ───────────────────────────────────────────────────────────────────────────────────────


def _check_name(name: str) -> None:
    """Raise ValueError with all that is wrong with `[REGISTRY[:PORT]/]PATH[:TAG][@DIGEST]`."""
    wrong = next(_wrong(name), "")
    if wrong:
        example = "like vllm/vllm-openai:latest, or a file's path (./image.sif)"
        raise ValueError(f"expected an image's name {example}, found {shortened(name)}: {wrong}")


def _wrong(name: str) -> Iterator[str]:
    """Yield what is wrong with a name, the clearest first."""
    if not name:
        yield "there is none"
    if any(char.isspace() for char in name):
        yield "a name has no spaces; the command goes into run:, options into args:"
    if "#" in name:
        yield "a registry stands before a /, not before a #"
    if len(name) > 255:
        yield "a name has at most 255 characters"
    rest, at, digest = name.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        yield "behind @ stands sha256: and 64 hexadecimal digits"
    path, colon, tag = _split_tag(rest)
    if colon and not _TAG.fullmatch(tag):
        yield f"a tag is letters, digits, _ . and -, found {shortened(tag)}"
    first, slash, others = path.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        if not _REGISTRY.fullmatch(first):
            yield f"{shortened(first)} is no registry's HOST or HOST:PORT"
        path = others
    if path != path.lower():
        yield f"a name is in lower case: {path.lower()}"
    if not all(map(_PART.fullmatch, path.split("/"))):
        yield "a name is letters and digits, with single . _ or - and / between them"


def _split_tag(name: str) -> tuple[str, str, str]:
    """Return the name, the colon before its tag, if there is one, and the tag."""
    path, colon, tag = name.rpartition(":")
    return (path, colon, tag) if colon and "/" not in tag else (name, "", "")


# ── what each engine calls an image ───────────────────────────────────────────────────────────────

_OF_DAEMONS = ("docker://", "podman://")
_FROM_DOCKER = "docker-daemon:"
_LOADED = re.compile(r"^Loaded image(?:\(s\))?(?: ID)?: (.+)$", re.MULTILINE)
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH = 60


def is_file(image: str) -> bool:
    """Tell whether a file or directory is named: a job file's are absolute by now."""
    return image.startswith("/")


def is_from_docker(image: str) -> bool:
    """Tell whether docker's daemon, and no registry, has the image for another engine."""
    return image.startswith(_FROM_DOCKER)


def bare(image: str) -> str:
    """Return the name as docker and podman take it: without `docker://`."""
    for prefix in _OF_DAEMONS:
        if image.startswith(prefix):
            return image[len(prefix) :]
    return image


def pulled_as(engine: str, image: str) -> str:
    """Return the name as docker's or podman's `pull` takes it.

    podman keeps `docker://`, which tells it the registry of a name without a host: without that it
    knows only those that its administrator listed.
    """
    return image if engine == "podman" and image.startswith("docker://") else bare(image)


def apptainer_uri(image: str) -> str:
    """Return the address that `apptainer pull` takes; a name alone is one of `docker://`."""
    return image if "://" in image or is_from_docker(image) else f"docker://{image}"


def file_name(uri: str) -> str:
    """Return the name of an image's file among those that were pulled: one for each address."""
    last = uri.rpartition("/")[2].partition("@")[0]
    readable = _ODD.sub("-", last)[:_NAME_LENGTH].strip(".-") or "image"
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return f"{readable}-{digest}.sif"


def loaded(output: str) -> list[str]:
    """Return the names or ids that `docker load` or `podman load` printed, each once."""
    names = [name.strip() for line in _LOADED.findall(output) for name in line.split(",")]
    return list(dict.fromkeys(filter(None, names)))


def digest_among(repo_digests: list[str], image: str) -> str:
    """Return the `sha256:...` by which the image's own registry knows it, or ""."""
    by_name = dict(entry.partition("@")[::2] for entry in reversed(repo_digests))
    repository = re.sub(r"(:[^:/]*)?(@.*)?$", "", image)
    own = [name for name in by_name if name == repository or name.endswith(f"/{repository}")]
    return next((by_name[name] for name in [*own, *reversed(by_name)]), "")
