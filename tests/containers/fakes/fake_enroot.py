"""A pretend enroot: strict, and without an image inside.

Command lines, from enroot.in and doc/cmd/{import,start}.md; everything else ends with status 2:

    enroot import -o FILE URI
    enroot start OPTION... IMAGE COMMAND [ARGUMENT...]

    --rw|-w  --root|-r  --mount|-m SOURCE:TARGET[:FSTYPE[:OPTIONS]]  --env|-e NAME[=VALUE]
    --rc FILE

What it does, and where that is from:

- a mount has no white space and no colon within a path, for each colon becomes a blank of an fstab
  (src/runtime.sh); `\\040` stands for a blank there, as in fstab(5). An absent source ends it;
- the environment is the image's and what --env names, nothing else: `enroot-switchroot` clears it
  (bin/common.h). `--env NAME` takes the caller's value. A line feed in a value begins another line
  of the environment's file, quotes around a value and blanks before it go, ENROOT_* are dropped
  (`common::envfmt`): what would not arrive is refused here. A login sets HOME, SHELL, USER,
  LOGNAME, TERM and PATH where they are not set;
- a login changes to HOME, and the image's /etc/rc to the image's directory: `/` here; --rc puts
  another file in the place of that (`runtime::_do_rc`), which a shell reads with the command as its
  arguments;
- descriptors above 2 are closed (enroot-switchroot.c), and a shell executes the command, a process
  that takes the engine's place: there is no parent;
- URIs: `docker://[USER@][REGISTRY#]IMAGE[:TAG]`; a host without its `#`, which only new versions
  take, is refused (src/docker.sh); messages and statuses from there, `common::curl` and curl(1).
"""

from __future__ import annotations

import os
import pwd
import re
import sys

from fake_engine import MARKER, become, end, enter_mounts, image_at, is_held, record, refuse

URI = re.compile(r"docker://(?:[^@#]+@)?(?:([^#/@]+)#)?([a-z0-9/._-]+)(?::[A-Za-z0-9._-]+)?")
NAMED = {"--mount": "--mount", "-m": "--mount", "--env": "--env", "-e": "--env", "--rc": "--rc"}
FLAGS = {"--rw": "--rw", "-w": "--rw", "--root": "--root", "-r": "--root"}
CODES = {"missing": "404 Not Found", "denied": "403 Forbidden", "login": "401 Unauthorized"}


def fail(message):
    end(f"[ERROR] {message}", 1)


def info(message):
    print(f"[INFO] {message}", file=sys.stderr, flush=True)


def main():
    record()
    match sys.argv[1:]:
        case ["import", "-o", target, uri]:
            fetch(target, uri)
        case ["start", *rest]:
            start(*options(rest))
        case _:
            refuse(f"no such command line: {sys.argv[1:]}")


def fetch(target, uri):
    parts = URI.fullmatch(uri)
    if parts is None:
        fail(f"Invalid image reference: {uri}")
    registry, name = parts.groups()
    if registry is None and "." in name.partition("/")[0]:
        refuse(f"old versions want docker://HOST#NAME: {uri}")
    if os.path.exists(target):
        fail(f"File already exists: {target}")
    info("Querying registry for permission grant")
    word = name.rpartition("/")[2]
    if word == "network":
        end("curl: (6) Could not resolve host: registry.example", 6)
    info("Authenticating with user: <anonymous>")
    info("Fetching image manifest list")
    if word in CODES:
        url = f"https://registry.example/v2/{name}/manifests/latest"
        fail(f"URL {url} returned error code: {CODES[word]}")
    info("Downloading 12 missing layers...")
    is_held()
    info("Extracting image layers...")
    info("Creating squashfs filesystem...")
    if word == "nospace":
        end("Write failed because No space left on device\n"
            "FATAL ERROR: Failed to write to output filesystem", 1)  # fmt: skip
    with open(target, "xb") as file:
        file.write(MARKER)


def options(words):
    """The options, the image, the command."""
    found = []
    words = list(words)
    while words and words[0].startswith("-"):
        word, equals, value = words.pop(0).partition("=")
        if word in FLAGS and not equals:
            found.append((FLAGS[word], ""))
        elif word in NAMED:
            if not equals and not words:
                refuse(f"{word} wants a value")
            found.append((NAMED[word], value if equals else words.pop(0)))
        else:
            refuse(f"unknown option: {word}")
    if len(words) < 2:
        refuse("start wants an image and a command")
    return found, words[0], words[1:]


def start(found, image, command):
    content = image_at(image)
    if content is None:
        fail(f"No such file or directory: {image}")
    if "fails" in content:
        fail(content["fails"])
    environ = environment(found, content.get("env", {}))
    enter_mounts([mount_of(value) for name, value in found if name == "--mount"])
    os.chdir("/")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for name, value in found:
        if name == "--rc":
            become(["/bin/sh", value, *command], environ)
    become(command, environ)
    end(f"/bin/sh: 1: exec: {command[0]}: not found", 127)


def mount_of(text):
    if not re.fullmatch(r"[^\s]+(:[^\s]+)*", text):
        fail(f"Invalid argument: {text}")
    source, target, *rest = (part.replace("\\040", " ") for part in text.split(":"))
    kind, how = (*rest, "none", "")[:2] if rest else ("none", "bind")
    if kind != "none" or not source.startswith("/") or not target.startswith("/"):
        refuse(f"a mount is SOURCE:TARGET[:none:OPTIONS], of absolute paths: {text}")
    if not os.path.exists(source):
        end(f"enroot-mount: failed to mount: {source} at {target}: No such file or directory", 1)
    return source, target, "ro" in how.split(",")


def environment(found, of_image):
    environ = dict(of_image)
    for option, text in found:
        if option == "--env":
            name, equals, value = text.partition("=")
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                fail(f"Invalid argument: {text}")
            value = value if equals else os.environ.get(name, "")
            if (
                "\n" in value
                or value[:1] + value[-1:] in ('""', "''")
                or name.startswith("ENROOT_")
            ):
                refuse(f"{name} would not arrive as it is: {value!r}")
            environ[name] = value
    entry = pwd.getpwuid(os.getuid())
    login = {"TERM": "dumb", "HOME": entry.pw_dir, "SHELL": entry.pw_shell, "USER": entry.pw_name,
             "LOGNAME": entry.pw_name, "PATH": "/usr/local/bin:/usr/bin:/bin"}  # fmt: skip
    return {**login, **environ}
