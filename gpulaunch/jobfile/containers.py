"""Reads `container:` as typed, finds its files, and says what does not go with a container.

    container: IMAGE                                        ─▶ Container, as typed
    container: {image:, engine:, mounts:, args:, user:, pull:}    └─ placed ─▶ with absolute paths

Which engine runs it is not chosen here: that depends on what is installed where the job runs.
"""

from __future__ import annotations

import os.path
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from msgspec.structs import replace

from gpulaunch.containers import images, options
from gpulaunch.containers.engines import HERE
from gpulaunch.core.model import Container, ContainerEngine, Job, Mount
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import keys, scalar
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.suggest import did_you_mean
from gpulaunch.jobfile.tree import Plain

ENGINES: tuple[ContainerEngine, ...] = get_args(ContainerEngine)
PULLS = ("missing", "never", "always")
# fmt: off
SYSTEM = frozenset({
    "/", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/proc", "/sys", "/dev", "/boot",
    "/run", "/var",
})
# fmt: on
"""Directories that a mount may not hide: without the image's own, nothing in it starts."""

_KEYS = ("image", "engine", "mounts", "args", "user", "pull")
_EXPECTED = "an image like vllm/vllm-openai:latest or ./image.sif, or {image: ..., mounts: [...]}"
_MOUNT_KEYS = ("source", "target", "read_only")
_A_MOUNT = "SOURCE, SOURCE:TARGET, SOURCE:TARGET:ro, or {source: ..., target: ..., read_only: true}"
_USER = re.compile(r"[0-9]{1,10}(:[0-9]{1,10})?")
_OWN_PYTHON = "it is of this machine, and a container has a Python of its own"
_NOT_INSIDE: Mapping[str, str] = {
    "python": _OWN_PYTHON,
    "venv": _OWN_PYTHON,
    "conda": _OWN_PYTHON,
    "modules": "they change programs and libraries of this machine, and a container has its own"
    " (what brings the engine itself is loaded before gpulaunch)",
    "preload": "a Python of this machine imports the modules, and a container has its own",
    "worker": "a Python of this machine calls the function, and a container has its own: write"
    " run:, or worker: {run: [...]} with a program in the container",
}
"""Why a field does not go with a container."""

Find = Callable[[str, str], str]
"""Looks a file up: (its kind, what was typed) -> its absolute path. Raises FieldError."""


def container(value: Plain) -> Container:
    """Convert the field's value; files stay as they were typed. Raises FieldError.

    A mount without a target has an empty one.
    """
    if isinstance(value, str):
        return Container(_image(value))
    if not isinstance(value, dict):
        raise FieldError(f"expected {_EXPECTED}, found {v.found(value)}")
    gather = ErrorCollector()
    keys(value, _KEYS, gather)
    part = partial(gather.part, value)
    image = part("image", _image, "")
    if value.get("image") is None:
        gather.bads.append(FieldError("image: is missing: an image's name or file"))
    engine = part("engine", _engine, None)
    if image and engine:
        gather.take(("engine",), partial(_check_engine, image), engine)
    made = Container(
        image=image,
        engine=engine,
        mounts=part("mounts", _mounts, ()),
        args=part("args", partial(_args, _candidates(image, engine)), ()),
        user=part("user", _user, ""),
        pull=part("pull", lambda plain: _one_of(scalar(plain), PULLS), "missing"),
    )
    gather.done()
    return made


def _image(value: Plain) -> str:
    text = scalar(value, "an image's name or file")
    images.read_image(text)
    return text


def _one_of(text: str, words: Sequence[str]) -> Any:
    if text not in words:
        near = did_you_mean(text, words)
        known = f"{', '.join(words[:-1])} or {words[-1]}"
        raise FieldError(f"expected {known}, found {v.found(text)}{near}")
    return text


def _engine(value: Plain) -> ContainerEngine:
    made: ContainerEngine = _one_of(scalar(value, f"one of {', '.join(ENGINES)}"), ENGINES)
    return made


def _check_engine(image: str, engine: ContainerEngine) -> None:
    if why := images.why_not(image, engine):
        raise FieldError(f"{why}, or leave engine: out")


def _candidates(image: str, engine: ContainerEngine | None) -> Sequence[ContainerEngine]:
    if engine is not None:
        return (engine,)
    return images.read_image(image).engines if image else ENGINES


# ── parts ───────────────────────────────────────────────────────────────────────────────────────


def _args(engines: Sequence[ContainerEngine], value: Plain) -> tuple[str, ...]:
    """Return the options of the engine: a list, or words as a shell would read them."""
    listed = isinstance(value, list)
    words = tuple(converted(scalar, value)) if isinstance(value, list) else _words(scalar(value))
    if words and not words[0].startswith("-"):
        raise FieldError(
            f"expected options of the engine like --ipc=host, found {v.found(words[0])}; the"
            " command and its arguments go into run:",
            (0,) if listed else (),
        )
    bads = [
        FieldError(why, (number,) if listed else ()) for number, why in options.kept(words, engines)
    ]
    if bads:
        bads[0].also = tuple(bads[1:])
        raise bads[0]
    return words


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise FieldError(f"not what a shell could read: {str(error).lower()}") from None


def _user(value: Plain) -> str:
    text = scalar(value, "caller, image, UID or UID:GID")
    if text not in ("caller", "image") and not _USER.fullmatch(text):
        raise FieldError(
            f"expected caller (your own, the default), image, UID or UID:GID, found {v.found(text)}"
        )
    return "" if text == "caller" else text


def _mounts(value: Plain) -> tuple[Mount, ...]:
    given = value if isinstance(value, list) else [value]
    return tuple(converted(_mount, given))


def _mount(value: Plain) -> Mount:
    if isinstance(value, str):
        return _typed_mount(value)
    if not isinstance(value, dict):
        raise FieldError(f"expected {_A_MOUNT}, found {v.found(value)}")
    gather = ErrorCollector()
    keys(value, _MOUNT_KEYS, gather)
    if value.get("source") is None:
        gather.bads.append(FieldError("source: is missing: a file or directory of this machine"))
    part = partial(gather.part, value)
    made = Mount(
        part("source", _source, ""),
        part("target", lambda plain: _target(scalar(plain)), ""),
        part("read_only", lambda plain: v.boolean(scalar(plain)), False),
    )
    gather.done()
    return made


def _typed_mount(text: str) -> Mount:
    parts = text.split(":")
    read_only = len(parts) > 1 and parts[-1] == "ro"
    if len(parts) > 1 and parts[-1] in ("ro", "rw"):
        parts.pop()
    if len(parts) > 2:
        raise FieldError(
            f"expected SOURCE:TARGET or SOURCE:TARGET:ro, found {v.found(text)}; a path with colons"
            " goes into {source: ..., target: ...}"
        )
    return Mount(_source(parts[0]), _target(parts[1]) if len(parts) > 1 else "", read_only)


def _source(value: Plain) -> str:
    text = scalar(value, "a file or directory of this machine")
    if not text.strip():
        raise FieldError("expected a file or directory of this machine, found an empty text")
    return text


def _target(text: str) -> str:
    """Return where a mount appears, without `.`, `..` and a slash at its end."""
    if not text.startswith("/"):
        raise FieldError(f"expected an absolute path in the container, found {v.found(text)}")
    path = posixpath.normpath("/" + text.lstrip("/"))
    _check_target(path)
    return path


def _check_target(path: str) -> None:
    if path in SYSTEM:
        raise FieldError(
            f"a mount at {path} would hide the image's own, and with it the programs that the job"
            " runs; mount at a directory of its own"
        )
    if path == HERE or path.startswith(HERE + "/"):
        raise FieldError(f"gpulaunch has its own files at {HERE} in a container; choose another")


# ── the files ───────────────────────────────────────────────────────────────────────────────────


def placed(made: Container, find: Find) -> Container:
    """Return the container with its files' absolute paths. Raises FieldError, with the path."""
    gather = ErrorCollector()
    image = made.image
    if images.read_image(image).is_file:
        image = gather.take(("image",), partial(find, "image"), image, image)
    mounts = gather.take((), lambda given: converted(_placed(find), given, "mounts"), made.mounts)
    gather.done()
    _check_apart(mounts)
    return replace(made, image=image, mounts=tuple(mounts))


class SharedContainers:
    """The containers of a list with their files found: equal ones are looked at once, and shared.

    `find`: (kind, whether a job before this one may make it, what was typed) -> its absolute path.
    """

    def __init__(self, find: Callable[[str, bool, str], str]) -> None:
        self._find = find
        self._placed: dict[tuple[Container, bool], Container] = {}
        self._with_input: dict[tuple[Container, str], Container] = {}

    def placed(self, made: Container, later: bool) -> Container:
        """Return the container with its files' absolute paths. Raises FieldError."""
        if (made, later) not in self._placed:
            found = placed(made, lambda kind, text: self._find(kind, later, text))
            self._placed[made, later] = found
        return self._placed[made, later]

    def with_input(self, made: Container, directory: str) -> Container:
        """Return the container with a mount of the directory of its job's input, if that is there.

        Where it is one of the system's, or a mount is to appear there, none is added.
        """
        if (made, directory) not in self._with_input:
            taken = directory in SYSTEM or any(one.target == directory for one in made.mounts)
            added = () if taken or not os.path.isdir(directory) else (Mount(directory, directory),)
            self._with_input[made, directory] = replace(made, mounts=(*added, *made.mounts))
        return self._with_input[made, directory]


def _placed(find: Find) -> Callable[[Mount], Mount]:
    def place(mount: Mount) -> Mount:
        source = find("mount", mount.source)
        if not mount.target:
            _check_target(source)
        return replace(mount, source=source, target=mount.target or source)

    return place


def _check_apart(mounts: Sequence[Mount]) -> None:
    """Raise FieldError where two mounts would appear at the same place."""
    seen: set[str] = set()
    for number, mount in enumerate(mounts):
        if mount.target in seen:
            raise FieldError(f"{mount.target} is another mount's target", ("mounts", number))
        seen.add(mount.target)


# ── what does not go with it ────────────────────────────────────────────────────────────────────


def check(fields: Mapping[str, Any], cwd: str, inherits: Callable[[str], bool]) -> None:
    """Check what a job's container stands beside. Raises FieldError.

    `cwd`: the job's directory, an absolute path. `inherits` tells of a field whether it comes from
    `defaults:`.
    """
    gather = ErrorCollector()
    for field, why in _NOT_INSIDE.items():
        if _is_of_the_machine(field, fields.get(field)):
            gather.bads.append(_beside(field, why, inherits(field), inherits("container")))
    if cwd in SYSTEM:
        why = f"{cwd} would hide the image's own in the container; write a directory of yours"
        gather.bads.append(FieldError(why, ("cwd",)))
    gather.done()


def _beside(field: str, why: str, inherited: bool, container_inherited: bool) -> FieldError:
    """Return the error for a field beside `container:`; whichever is from `defaults:` can go."""
    if inherited and not container_inherited:
        message = f"{field}: in defaults: {why}; write {field}: null in this job"
        return FieldError(message, ("container",))
    leave = "" if field == "worker" else ": leave it out"
    null = ", or write container: null in this job" if container_inherited and not inherited else ""
    return FieldError(f"{why}{leave}{null}", (field,), key=True)


def _is_of_the_machine(field: str, value: Any) -> bool:
    """Tell whether a field asks for something of this machine: a worker by its function."""
    return bool(getattr(value, "function", "")) if field == "worker" else bool(value)


def why_not(job: Job, engine: ContainerEngine) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for everything that this engine cannot do for the job's container."""
    if job.container is None or engine in ("docker", "podman"):
        return
    if job.isolation == "strict":
        yield (
            "isolation",
            f"{engine} shows a container every device node of the machine: leave it out, or run"
            " the container with docker or podman, which show a job its own cards only",
        )
    if job.container.user:
        yield (
            "container",
            f"{engine} runs as you, and files made inside are yours: leave user: out, or run the"
            " container with docker or podman",
        )
