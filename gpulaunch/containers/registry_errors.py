"""What an engine's messages mean when an image cannot be had. Pure: its words in, a value out.

The messages are those of docker's client 28 with daemon 20.10 and of podman 4.3, as they print them
for a registry that answers so; of go-containerregistry, which apptainer uses since 1.4, and of
containers/image, which it and singularity used before.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Trouble: TypeAlias = Literal[
    "space",
    "socket",
    "daemon",
    "certificate",
    "rate",
    "platform",
    "login",
    "denied",
    "absent",
    "name",
    "short",
    "network",
    "other",
]
"""What keeps an image away: its disk is full, the daemon's socket is not for this user, no daemon
answers, TLS, too many pulls, none for this machine, a login is wanted, no access, no such image or
tag, no name of an image, a name without a registry, no connection, anything else."""

# In this order: "pull access denied ..., repository does not exist" is said of images that may be
# there, and what goes wrong on the way to a registry may name what was asked there.
_KNOWN: tuple[tuple[Trouble, str], ...] = (
    ("space", r"no space left on device|disk quota exceeded"),
    ("socket", r"permission denied while trying to connect|dial unix [^ ]+ connect: permission"),
    (
        "daemon",
        r"cannot connect to the docker daemon|is the docker daemon running|error during connect"
        r"|cannot connect to podman|unable to connect to podman",
    ),
    (
        "certificate",
        r"x509:|certificate|server gave http response to https client"
        r"|does not look like a tls handshake",
    ),
    ("rate", r"toomanyrequests|too many requests|rate limit|\bcode:? 429\b"),
    (
        "platform",
        r"no matching manifest for|no image found in (?:manifest list|image index)"
        r"|no child with platform|cannot be used on this platform|not match the specified platform",
    ),
    (
        "login",
        r"unauthorized|authentication required|\bcode:? 401\b|no basic auth credentials"
        r"|incorrect username or password|unable to retrieve auth token",
    ),
    ("denied", r"(?<!permission )\bdenied\b|\bforbidden\b|\bcode:? 403\b"),
    (
        "absent",
        r"manifest[ _]unknown|name[ _]unknown|not known to registry|\bcode:? 404\b|404 not found"
        r"|: not found\b|no such image|image not known|no such object",
    ),
    (
        "name",
        r"invalid reference format|invalid image name|invalid image reference|bad uri"
        r"|unsupported transport|could not parse reference|must be lowercase",
    ),
    ("short", r"did not resolve to an alias"),
    (
        "network",
        r"connection refused|no such host|could not resolve|name resolution|time-?out\b|timed out"
        r"|network is unreachable|no route to host|connection reset|unexpected eof|proxyconnect"
        r"|context deadline exceeded|request canceled|connection timed|\bstatus:? 5\d\d\b"
        r"|internal server error|bad gateway|service unavailable|\bcode:? 5\d\d\b"
        r"|curl: \((?:5|6|7|18|28|35|52|55|56|92)\)",
    ),
)
_PATTERNS = tuple((trouble, re.compile(pattern, re.IGNORECASE)) for trouble, pattern in _KNOWN)
_ABSENT_HERE = re.compile(r"no such image|image not known|no such object", re.IGNORECASE)
# Each engine's own beginning of the line that says why it ends.
_PREFIX = re.compile(
    r"^\s*(?:Error response from daemon: |Error: |FATAL:\s+|\[ERROR\] |ERROR:\s+)+", re.MULTILINE
)
_DAEMON_AT = re.compile(r"daemon(?: socket)? at (\S+?)[.:]?(?:\s|$)")


def trouble_of(said: str) -> Trouble:
    """Return what an engine's client, which failed, means by what it wrote."""
    return next((trouble for trouble, known in _PATTERNS if known.search(said)), "other")


def is_not_here(said: str) -> bool:
    """Tell whether `image inspect` failed since this machine does not have the image."""
    return _ABSENT_HERE.search(said) is not None


def last_words(said: str) -> str:
    """Return the line that says why the client ended, without its beginning; or ""."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if _PREFIX.match(line)]
    return _PREFIX.sub("", (errors or lines or [""])[-1]).strip()


def daemon_address(said: str) -> str:
    """Return the address at which docker's client looked for its daemon, or ""."""
    found = _DAEMON_AT.search(said)
    return found.group(1) if found else ""
