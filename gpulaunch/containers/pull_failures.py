"""Words why an image cannot be had: one line each, with what to do. Pure.

The lines are shown as they are, where a job that needs the image has failed.
"""

from __future__ import annotations

from gpulaunch.containers.image_names import host, is_from_docker
from gpulaunch.containers.registry_errors import Trouble, daemon_address, last_words, trouble_of
from gpulaunch.text import clip

_LONGEST_QUOTE = 300


class PullError(Exception):
    """An image that cannot be had; the text is the whole line."""


def cannot_pull(engine: str, image: str, output: str, machine: str, tries: int = 1) -> str:
    """Return why the engine could not pull the image, by what its client wrote.

    `machine`: this one's architecture. `tries`: how often it was tried.
    """
    quote = clip(last_words(output), _LONGEST_QUOTE) or "it said nothing"
    trouble = trouble_of(output)
    from_docker = is_from_docker(image)
    if (general := _of_engine(trouble, "docker" if from_docker else engine, output)) is not None:
        return general
    if from_docker:  # no registry is asked: a login is no help
        return f"{engine} cannot take {image} from docker: {quote}"
    login = how_to_log_in(engine, image)
    lines: dict[Trouble, str] = {
        "certificate": f"{engine} does not trust the registry of {image} ({quote}):"
        f" its certificate authority has to be made known to {engine}",
        "rate": f"the registry of {image} allows no more pulls for now:"
        f" try again later, or log in, which may allow more ({login})",
        "platform": f"{image} is not made for this machine ({machine}): choose another tag",
        "login": f"the registry of {image} wants a login: {login}, and try again",
        "denied": f"the registry does not give {image} away: it does not exist (check the name),"
        f" or it is private: {login}, and try again",
        "absent": f"there is no image {image}: its registry does not know that name or tag;"
        " check how it is spelled",
        "name": f"{image} is no image's name that {engine} takes: {quote}",
        "short": f"{engine} does not know which registry {image} is of: name it, as in"
        f" HOST/{image}, or docker://{image} for docker's own",
        "network": f"the registry of {image} cannot be reached ({quote}):"
        f" tried {tries} times; check the network, then `gpulaunch retry`",
    }
    return lines.get(trouble, f"{engine} cannot pull {image}: {quote}")


def _of_engine(trouble: Trouble, engine: str, output: str) -> str | None:
    """Return what is wrong with the engine itself, whatever the image; None: nothing."""
    if trouble == "socket":
        return f"you may not use {engine}: join the group {engine} and log in anew, or use podman"
    if trouble == "daemon":
        at = daemon_address(output)
        where = f" at {at}" if at else ""
        return (
            f"{engine}'s daemon{where} does not answer: is it running? (systemctl status {engine})"
        )
    return None


def how_to_log_in(engine: str, image: str) -> str:
    """Return the command, in backquotes, that makes the engine known to the image's registry."""
    registry = host(image)
    if engine in ("docker", "podman"):
        return f"`{engine} login{registry and ' ' + registry}`"
    word = "registry" if engine == "apptainer" else "remote"
    return f"`{engine} {word} login --username USER docker://{registry or 'HOST'}`"


def disk_full(engine: str, image: str, folder: str) -> str:
    """Return the line for a full disk. `folder`: where the engine keeps images, where known."""
    if engine in ("docker", "podman"):
        where = f" ({folder})" if folder else ""
        look = f"`{engine} system df` shows what takes it"
        return f"the disk of {engine}'s images{where} is full: no room for {image}; {look}"
    places = f"${engine.upper()}_CACHEDIR, ${engine.upper()}_TMPDIR"
    return f"a disk is full while {engine} pulls {image}: one of {folder}, {places}"


def never(engine: str, image: str, missing: str) -> str:
    """Return the line for an image that is not here and is not to be pulled.

    `missing`: the command line that brings it, or "".
    """
    how = f"`{missing}` once, or leave" if missing else "leave"
    return f"`pull: never`, and {engine} does not have {image}: {how} `pull:` out"


def silent(engine: str, seconds: float) -> str:
    """Return the line for an engine that says nothing when it is asked for an image."""
    who = "docker's daemon" if engine == "docker" else engine
    return f"{who} has not answered for {seconds:.0f} s: `{engine} ps` shows whether it does again"


def not_installed(engine: str) -> str:
    """Return the line for an engine that is not here."""
    return f"{engine} is not installed here: there is no program `{engine}` in PATH"


def cannot_start(engine: str, reason: str) -> str:
    """Return the line for a machine that has no room for the engine's client."""
    return f"{engine} cannot be started: {reason}; `gpulaunch retry` once this machine has room"


def cannot_load(engine: str, path: str, output: str) -> str:
    """Return why an archive could not be loaded."""
    if (general := _of_engine(trouble_of(output), engine, output)) is not None:
        return general
    quote = clip(last_words(output).rstrip(":"), _LONGEST_QUOTE) or "it said nothing"
    return f"{engine} cannot load {path}: {quote}"


def several_images(engine: str, path: str, names: list[str]) -> str:
    """Return the line for an archive with more than one image."""
    return (
        f"{path} holds {len(names)} images ({clip(', '.join(names), _LONGEST_QUOTE)}):"
        f" `{engine} load -i {path}` once, and name one of them"
    )
