"""A pretend apptainer, and singularity by another name: strict, and without an image inside.

Command lines, from apptainer's cmd/internal/cli/pull.go and action_flags.go (tried: none; apptainer
cannot be installed here); everything else ends with status 2:

    apptainer pull DESTINATION URI, with a registry's URI or docker-daemon:NAME:TAG
    apptainer exec OPTION... IMAGE COMMAND [ARGUMENT...]

    --nv --cleanenv|-e --containall|-C --contain|-c --no-home --no-eval --no-umask --writable-tmpfs
    --bind|-B SOURCE[:TARGET[:OPTIONS]][,...]  --mount type=bind,source=...,destination=...[,ro]
    --pwd|--cwd DIRECTORY  --env NAME=VALUE[,...]  --no-mount WHAT[,...]

What it does, and where that is from:

- options end at the image (cobra, not interspersed); `--mount` and `--env` are CSV (mount.go; the
  flag is a map of strings), so that a comma has to be quoted; `--bind` is not (bind.go);
- a mount whose source is absent: `mount source X doesn't exist`, status 255 (container_linux.go);
- `--pwd` that cannot be entered: status 255 (process_linux.go);
- the environment: util/env/create.go. Without --cleanenv the caller's but for APPTAINER_* and
  SINGULARITY_*, LD_LIBRARY_PATH and PATH; with it TERM and the proxies' alone. Then APPTAINERENV_*
  and SINGULARITYENV_*, the first of these wins, and --env. HOME cannot be set so. The image's own
  variables give way to all these (conveyorPacker_oci.go);
- without --no-eval, or its variable APPTAINER_NO_EVAL (action_flags.go), a shell evaluates what
  APPTAINERENV_* and --env set (process_linux.go): a value with a dollar sign or a backquote is
  refused here, for it would not arrive;
- home and the working directory are mounted unless --no-home or --contain says no; /tmp is not,
  as on machines where the administrator took it out (`mount tmp = no`);
- descriptors are inherited (starter.c closes only its own); the engine stays as the parent, passes
  signals on where it has no terminal, and ends as its child did, by the same signal
  (monitor_linux.go, master_linux.go);
- what it prints while it pulls: client/oci/pull.go, build.go, conveyorPacker_oci.go, and as errors
  go-containerregistry's.
"""

from __future__ import annotations

import csv
import errno
import os
import signal
import sys
from contextlib import suppress

from fake_engine import MARKER, become, end, enter_mounts, image_at, is_held, record, refuse

FLAGS = {
    "--nv", "--cleanenv", "--containall", "--contain", "--no-home", "--no-eval", "--no-umask",
    "--writable-tmpfs",
}  # fmt: skip
VALUED = {"--bind", "--mount", "--pwd", "--env", "--no-mount"}
SHORT = {"-e": "--cleanenv", "-C": "--containall", "-c": "--contain", "-B": "--bind",
         "--cwd": "--pwd"}  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
PASSED = {"TERM", *PROXIES, *(name.upper() for name in PROXIES)}
PREFIXES = ("APPTAINERENV_", "SINGULARITYENV_")
SOURCE = "docker://"
REGISTRY = "https://registry.example/v2/{}/manifests/latest"
FAILURES = {
    "missing": "MANIFEST_UNKNOWN: manifest unknown; unknown tag=latest",
    "denied": "DENIED: requested access to the resource is denied",
    "network": "dial tcp: lookup registry.example on 127.0.0.53:53: no such host",
}


def fatal(message):
    end(f"FATAL:   {message}", 255)


def main():
    record()
    match sys.argv[1:]:
        case ["pull", target, uri]:
            pull(target, uri)
        case ["exec", *rest]:
            execute(*options(rest))
        case _:
            refuse(f"no such command line: {sys.argv[1:]}")


# ── pull ────────────────────────────────────────────────────────────────────────────────────────


def pull(target, uri):
    local = uri.startswith("docker-daemon:")
    transport, separator, name = uri.partition(":" if local else "://")
    if not separator or not (local or transport in ("docker", "library", "oras", "shub")):
        fatal(f"Unsupported transport type: {transport}")
    if os.path.exists(target):
        fatal(f'Image file already exists: "{target}" - will not overwrite')
    word = name.rpartition("/")[2].partition(":")[0]
    oci = "While making image from oci registry: error fetching image to cache"
    if word in FAILURES:
        at = "" if word == "network" else f"GET {REGISTRY.format(word)}: "
        fatal(f"{oci}: failed to get checksum for {uri}: {at}{FAILURES[word]}")
    print("INFO:    Converting OCI blobs to SIF format", file=sys.stderr)
    print("INFO:    Starting build...", file=sys.stderr)
    print("INFO:    Fetching OCI image...", file=sys.stderr, flush=True)
    is_held()
    print("INFO:    Extracting OCI image...", file=sys.stderr)
    print("INFO:    Creating SIF file...", file=sys.stderr, flush=True)
    full = f"{oci}: while building SIF from layers: while creating SIF: while creating container"
    try:
        if word == "nospace":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(target, "xb") as file:
            file.write(MARKER)
            if word == "large":
                file.write(b" " * (8 << 20))
    except OSError as error:
        fatal(f"{full}: write {target}: {error.strerror.lower()}")


# ── exec ────────────────────────────────────────────────────────────────────────────────────────


def options(words):
    """The options, the image, the command."""
    found = []
    words = list(words)
    while words and words[0].startswith("-"):
        word, equals, value = words.pop(0).partition("=")
        name = SHORT.get(word, word)
        if name in FLAGS and not equals:
            found.append((name, ""))
        elif name in VALUED:
            if not equals and not words:
                refuse(f"flag needs an argument: {word}")
            found.append((name, value if equals else words.pop(0)))
        else:
            refuse(f"unknown flag: {word}")
    if len(words) < 2:
        refuse("exec wants an image and a command")
    return found, words[0], words[1:]


def execute(found, image, command):
    flags = {name for name, _ in found}
    content = image_at(image)
    if content is None and not os.path.isdir(image):
        why = (
            "image format not recognized" if os.path.exists(image) else "no such file or directory"
        )
        fatal(f"could not open image {image}: {why}")
    content = content or {}
    if "fails" in content:
        fatal(content["fails"])
    environ = environment(found, content.get("env", {}))
    mounts = [*defaults(flags), *mounted(found)]
    for source, _, _ in mounts:
        if not os.path.exists(source):
            fatal(f"container creation failed: mount source {source} doesn't exist")
    folder = next((value for name, value in reversed(found) if name == "--pwd"), os.getcwd())
    enter_mounts(mounts)
    try:
        os.chdir(folder)
    except OSError as error:
        fatal(f"failed to set working directory: chdir {folder}: {error.strerror.lower()}")
    run(command, environ)


def defaults(flags):
    contained = flags & {"--contain", "--containall"}
    home = os.environ.get("HOME", "/")
    if not contained and "--no-home" not in flags and os.path.isdir(home) and home != "/":
        yield home, home, False
    if not contained and os.getcwd() != "/":
        yield os.getcwd(), os.getcwd(), False


def mounted(found):
    for name, value in found:
        if name == "--bind":
            for part in value.split(","):
                source, _, rest = part.partition(":")
                target, _, how = rest.partition(":")
                yield absolute(source), absolute(target or source), how == "ro"
        elif name == "--mount":
            yield mount_of(value)


def mount_of(text):
    (fields,) = csv.reader([text], strict=True)
    keys = dict(field.partition("=")[::2] for field in fields)
    if keys.pop("type", "") != "bind":
        refuse(f"--mount wants type=bind: {text}")
    source, target = keys.pop("source", ""), keys.pop("destination", "")
    read_only = keys.pop("ro", None) is not None
    if keys or not source or not target:
        refuse(f"--mount wants source= and destination=, and may have ro: {text}")
    return absolute(source), absolute(target), read_only


def absolute(path):
    if not path.startswith("/"):
        refuse(f"a mount's paths are absolute: {path}")
    return path


def environment(found, of_image):
    flags = {name for name, _ in found}
    clean = bool(flags & {"--cleanenv", "--containall"})
    environ = {"LANG": "C"} if clean else {}
    for name, value in os.environ.items():
        own = name.startswith(("APPTAINER_", "SINGULARITY_", *PREFIXES, "FAKE_ENGINE_"))
        own = own or name in ("HOME", "PATH", "LD_LIBRARY_PATH")
        if name in PASSED if clean else not own:
            environ[name] = value
    environ["HOME"] = os.environ.get("HOME", "/")
    environ["PATH"] = PATH
    for name, value in of_image.items():
        environ.setdefault(name, value)
    engine = os.path.basename(sys.argv[0]).upper()
    kept = "--no-eval" in flags or os.environ.get(f"{engine}_NO_EVAL") == "1"
    for name, value in given(found).items():
        if name == "HOME":
            print(f"WARNING: Overriding {name} environment variable is not permitted",
                  file=sys.stderr)  # fmt: skip
            continue
        if not kept and ("$" in value or "`" in value):
            refuse(f"a shell would evaluate the value of {name}: --no-eval")
        environ[name] = value
    return {**environ, f"{engine}_CONTAINER": "pretend.sif"}


def given(found):
    variables = {}
    for prefix in reversed(PREFIXES):
        for name, value in os.environ.items():
            if name.startswith(prefix):
                variables[name[len(prefix) :]] = value
    for name, value in found:
        if name == "--env":
            for field in next(csv.reader([value], strict=True)):
                key, equals, text = field.partition("=")
                if not equals:
                    refuse(f"--env {value!r}: {field} must be formatted as key=value")
                variables[key] = text
    return variables


def run(command, environ):
    """Be the parent that the engine is, until the command has ended, and end as it did."""
    passed = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
        become(command, environ)
        fatal(f'"{command[0]}": executable file not found in $PATH')
    for number in passed:
        with suppress(OSError):  # libc keeps some for itself
            signal.signal(number, lambda number, _: forward(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


def forward(child, number):
    with suppress(ProcessLookupError):
        os.kill(child, number)
