"""A pretend client of docker, or podman by its name, for what pulling asks: strict, no daemon.

    docker image inspect NAME    docker pull NAME    docker load -i FILE
    docker info --format X

Its images are files in the directory FAKE_ENGINE_STORE: the name with `/` as `+`, in it the id. A
name's last part says what goes wrong; the words and the statuses are those of docker's client 28
with daemon 20.10 and of podman 4.3, as they answered a registry on the loopback address.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys

from fake_engine import end, is_held, record, refuse

ENGINE = os.path.basename(sys.argv[0])
NOT_HERE = {
    "docker": "Error response from daemon: no such image: {0}: No such image: {0}:latest",
    "podman": "Error: inspecting object: {0}: image not known",
}
DAEMON = "Error response from daemon: "
READING = "Error: initializing source docker://{0}: reading manifest latest in {0}: "
PULLS = {
    "missing": "manifest unknown",
    "denied": "denied",
}
DOCKERS = {
    "nospace": "failed to register layer: ApplyLayer exit status 1 stdout:  stderr: write /f0:"
    " no space left on device",
    "network": DAEMON + 'Get "https://registry.example/v2/": dial tcp: lookup registry.example on'
    " 127.0.0.53:53: no such host",
    "strange": DAEMON + "it is a strange day",
}
PODMANS = {
    "nospace": "Error: writing blob: adding layer with blob: processing tar file(write /f0:"
    " no space left on device): exit status 1",
    "network": "Error: initializing source docker://{0}: pinging container registry"
    ' registry.example: Get "https://registry.example/v2/": dial tcp: lookup registry.example:'
    " no such host",
    "strange": "Error: it is a strange day",
}
FAILED = 125 if ENGINE == "podman" else 1


def main():
    record()
    broken()
    match sys.argv[1:]:
        case ["image", "inspect", name]:
            inspect(name)
        case ["pull", name]:
            pull(name)
        case ["load", "-i", path]:
            load(path)
        case _:
            refuse(f"no such command line: {sys.argv[1:]}")


def broken():
    """FAKE_ENGINE_DAEMON: `absent`, `forbidden` or `stopped`, as the daemon may be."""
    match os.environ.get("FAKE_ENGINE_DAEMON"):
        case "absent":
            where = "unix:///var/run/docker.sock. Is the docker daemon running?"
            end(f"Cannot connect to the Docker daemon at {where}", 1)
        case "forbidden":
            end("permission denied while trying to connect to the Docker daemon socket at"
                ' unix:///var/run/docker.sock: Get "http://%2Fvar%2Frun/v1.50/images/x/json":'
                " dial unix /var/run/docker.sock: connect: permission denied", 1)  # fmt: skip
        case "stopped":
            signal.pause()


def place(name):
    return os.path.join(os.environ["FAKE_ENGINE_STORE"], name.replace("/", "+"))


def inspect(name):
    try:
        with open(place(name)) as file:
            found = file.read()
    except FileNotFoundError:
        print("[]")
        end(NOT_HERE[ENGINE].format(name), FAILED)
    known = f"{name}@sha256:{'d' * 64}"
    digests = [] if name.startswith("sha256:") else [known]
    identifier = found if ENGINE == "docker" else found.partition(":")[2]
    print(json.dumps([{"Id": identifier, "RepoDigests": digests}], indent=4))


def keep(name):
    identifier = "sha256:" + hashlib.sha256(name.encode()).hexdigest()
    for each in (name, identifier):
        with open(place(each), "w") as file:
            file.write(identifier)
    return identifier


def pull(name):
    if name.startswith("docker://"):
        if ENGINE == "docker":
            end("invalid reference format", FAILED)
        name = name[len("docker://") :]
    word = name.rpartition("/")[2].partition(":")[0]
    if ENGINE == "docker":
        print("Using default tag: latest")
    else:
        print(f"Trying to pull {name}:latest...", file=sys.stderr)
    message = (DOCKERS if ENGINE == "docker" else PODMANS).get(word)
    if word in PULLS:
        message = (DAEMON if ENGINE == "docker" else READING) + PULLS[word]
    if message:
        sys.stdout.flush()
        end(message.format(name), FAILED)
    is_held()
    identifier = keep(name)
    print(name if ENGINE == "docker" else identifier)


def load(path):
    """An archive is a file with the names of its images, one a line."""
    with open(path) as file:
        names = file.read().split()
    if not names:
        end("Error processing tar file(exit status 1): unexpected EOF", FAILED)
    for name in names:
        keep(name)
        print(f"Loaded image: {name}")
