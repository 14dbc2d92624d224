"""What engines' messages mean, as they were printed, and the line that is made of each."""

from __future__ import annotations

import pytest

from gpulaunch.containers import pull_failures
from gpulaunch.containers.registry_errors import (
    Trouble,
    daemon_address,
    is_not_here,
    last_words,
    trouble_of,
)

DOCKER = "Error response from daemon: "
PODMAN = "Error: initializing source docker://registry.example/x:latest: "
READING = PODMAN + "reading manifest latest in registry.example/x: "
GET = 'Get "https://registry.example/v2/": '
APPTAINER = (
    "FATAL:   While making image from oci registry: error fetching image to cache: failed to get"
    " checksum for docker://registry.example/x: "
)
MESSAGES: list[tuple[Trouble, str]] = [
    ("absent", DOCKER + "manifest unknown"),
    ("absent", DOCKER + "manifest for lab/x:9 not found: manifest unknown: manifest unknown"),
    ("absent", DOCKER + "name unknown"),
    ("absent", DOCKER + 'failed to resolve reference "lab/x:9": lab/x:9: not found'),
    ("absent", READING + "manifest unknown"),
    ("absent", READING + "name unknown"),
    ("absent", APPTAINER + "GET https://x.example: MANIFEST_UNKNOWN: manifest unknown"),
    ("absent", APPTAINER + "Error reading manifest 1 in x.example/x: manifest unknown"),
    ("absent", "[ERROR] URL https://x.example/v2/x returned error code: 404 Not Found"),
    (
        "denied",
        DOCKER + "pull access denied for x, repository does not exist or may require 'docker"
        " login': denied: requested access to the resource is denied",
    ),
    ("denied", DOCKER + "denied"),
    ("denied", READING + "requested access to the resource is denied"),
    ("denied", APPTAINER + "GET https://x.example: DENIED: requested access is denied"),
    ("denied", "[ERROR] URL https://x.example/v2/x returned error code: 403 Forbidden"),
    ("login", DOCKER + "unauthorized"),
    ("login", DOCKER + 'Head "https://x.example/v2/x": unauthorized: authentication required'),
    ("login", READING + "unauthorized"),
    ("login", APPTAINER + "UNAUTHORIZED: authentication required; [map[Action:pull]]"),
    ("login", "[ERROR] URL https://x.example/v2/x returned error code: 401 Unauthorized"),
    ("rate", DOCKER + "toomanyrequests: You have reached your pull rate limit."),
    ("rate", APPTAINER + "TOOMANYREQUESTS: You have reached your pull rate limit."),
    ("rate", "[ERROR] URL https://x.example/v2/x returned error code: 429 "),
    ("space", "failed to register layer: ApplyLayer exit status 1 stdout:  stderr: write /f0: no"
     " space left on device"),
    ("space", DOCKER + "write /var/lib/docker/tmp/GetImageBlob1: no space left on device"),
    ("space", "Write failed because No space left on device\nFATAL ERROR: Failed to write"),
    ("space", "Error: writing blob: write /x: disk quota exceeded"),
    ("daemon", "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"),
    ("daemon", 'error during connect: Get "http://%2Fx/v1.50/images/x/json": EOF'),
    ("daemon", "Cannot connect to Podman. Please verify your connection to the Linux system"),
    (
        "socket",
        "permission denied while trying to connect to the Docker daemon socket at unix:///x: Get"
        ' "http://%2Fx": dial unix /x: connect: permission denied',
    ),
    ("certificate", DOCKER + GET + "x509: certificate signed by unknown authority"),
    ("certificate", PODMAN + "tls: first record does not look like a TLS handshake"),
    ("certificate", DOCKER + GET + "http: server gave HTTP response to HTTPS client"),
    ("certificate", "curl: (60) SSL certificate problem: unable to get local issuer certificate"),
    ("platform", "no matching manifest for linux/amd64 in the manifest list entries"),
    (
        "platform",
        "Error: choosing an image from manifest list docker://x: no image found in manifest list"
        ' for architecture amd64, variant "", OS linux',
    ),
    ("platform", APPTAINER + "no child with platform linux/amd64 in index"),
    ("name", DOCKER + "invalid reference format: repository name must be lowercase"),
    ("name", 'Error: Invalid image name "BAD/x", expected colon-separated transport:reference'),
    ("short", 'Error: short-name "x" did not resolve to an alias and no unqualified-search'),
    ("name", "[ERROR] Invalid image reference: docker://BAD"),
    ("network", DOCKER + GET + "dial tcp 10.0.0.1:443: connect: connection refused"),
    ("network", DOCKER + GET + "dial tcp: lookup registry.example: no such host"),
    ("network", DOCKER + GET + "net/http: TLS handshake timeout"),
    ("network", DOCKER + GET + "net/http: request canceled while waiting for connection"),
    ("network", DOCKER + GET + "dial tcp 10.0.0.1:443: i/o timeout"),
    ("network", DOCKER + "received unexpected HTTP status: 500 Internal Server Error"),
    ("network", "error pulling image configuration: download failed after attempts=6: unexpected"
     " EOF"),
    ("network", "Error: parsing image configuration: unexpected EOF"),
    ("network", "curl: (6) Could not resolve host: registry.example"),
    ("network", "[ERROR] URL https://x.example/v2/x returned error code: 503 Service Unavailable"),
    ("other", DOCKER + "it is a strange day"),
    ("other", ""),
]  # fmt: skip


@pytest.mark.parametrize(("trouble", "message"), MESSAGES)
def test_a_message_means_a_trouble(trouble: Trouble, message: str) -> None:
    assert trouble_of(message) == trouble


def test_a_warning_of_the_client_s_own_files_means_nothing() -> None:
    warning = "WARNING: Error loading config file: open /x/config.json: permission denied\n"
    assert trouble_of(warning + DOCKER + "manifest unknown") == "absent"


def test_digits_of_a_digest_mean_nothing() -> None:
    assert trouble_of("Copying blob sha256:401429403404500\nError: it is a strange day") == "other"


@pytest.mark.parametrize(
    "message",
    [
        "Error: No such image: lab/x",
        "Error response from daemon: no such image: x: No such image: x:latest",
        "Error: inspecting object: x: image not known",
        "Error: No such object: x",
    ],
)
def test_an_image_that_is_not_here_is_told_from_every_other_failure(message: str) -> None:
    assert is_not_here(message)
    assert not is_not_here("Cannot connect to the Docker daemon at unix:///x.")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("Error response from daemon: denied\n", "denied"),
        ("Trying to pull x...\nError: it failed\n * dir: no\n", "it failed"),
        (
            "INFO:    Starting build...\nFATAL:   While making image: no\n\n",
            "While making image: no",
        ),
        ("[INFO] Fetching\n[ERROR] No such file: x\n", "No such file: x"),
        ("something\nat the end\n\n", "at the end"),
        ("", ""),
    ],
)
def test_the_line_that_says_why_is_found(said: str, line: str) -> None:
    assert last_words(said) == line


def test_the_daemon_s_address_is_in_its_message() -> None:
    assert daemon_address("Cannot connect to the Docker daemon at unix:///x.sock. Is ...") == (
        "unix:///x.sock"
    )
    assert daemon_address("error during connect: EOF") == ""


def line(engine: str, output: str, image: str = "registry.example/x", tries: int = 4) -> str:
    return pull_failures.cannot_pull(engine, image, output, "x86_64", tries)


@pytest.mark.parametrize(
    ("engine", "output", "expected"),
    [
        (
            "docker",
            DOCKER + "manifest unknown",
            "there is no image registry.example/x: its registry does not know that name or tag;"
            " check how it is spelled",
        ),
        (
            "podman",
            READING + "denied",
            "the registry does not give registry.example/x away: it does not exist (check the"
            " name), or it is private: `podman login registry.example`, and try again",
        ),
        (
            "apptainer",
            APPTAINER + "UNAUTHORIZED: authentication required",
            "the registry of registry.example/x wants a login: `apptainer registry login --username"
            " USER docker://registry.example`, and try again",
        ),
        (
            "singularity",
            APPTAINER + "UNAUTHORIZED: authentication required",
            "the registry of registry.example/x wants a login: `singularity remote login --username"
            " USER docker://registry.example`, and try again",
        ),
        (
            "docker",
            DOCKER + "toomanyrequests: You have reached your pull rate limit.",
            "the registry of registry.example/x allows no more pulls for now: try again later, or"
            " log in, which may allow more (`docker login registry.example`)",
        ),
        (
            "docker",
            "no matching manifest for linux/amd64 in the manifest list entries",
            "registry.example/x is not made for this machine (x86_64): choose another tag",
        ),
        (
            "docker",
            DOCKER + GET + "x509: certificate signed by unknown authority",
            "docker does not trust the registry of registry.example/x (Get"
            ' "https://registry.example/v2/": x509: certificate signed by unknown authority): its'
            " certificate authority has to be made known to docker",
        ),
        (
            "docker",
            "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
            "docker's daemon at unix:///x does not answer: is it running?"
            " (systemctl status docker)",
        ),
        (
            "docker",
            "permission denied while trying to connect to the Docker daemon socket at unix:///x",
            "you may not use docker: join the group docker and log in anew, or use podman",
        ),
        (
            "podman",
            "Error: it is a strange day\n",
            "podman cannot pull registry.example/x: it is a strange day",
        ),
        (
            "podman",
            'Error: short-name "lab/x" did not resolve to an alias and no unqualified-search',
            "podman does not know which registry registry.example/x is of: name it, as in"
            " HOST/registry.example/x, or docker://registry.example/x for docker's own",
        ),
        ("docker", "", "docker cannot pull registry.example/x: it said nothing"),
    ],
)
def test_each_trouble_is_one_line_with_what_to_do(engine: str, output: str, expected: str) -> None:
    assert line(engine, output) == expected


def test_of_an_image_of_docker_s_no_registry_is_spoken() -> None:
    own = "docker-daemon:lab/x:1"
    assert line("apptainer", "FATAL:   No such image: lab/x:1\n", own) == (
        "apptainer cannot take docker-daemon:lab/x:1 from docker: No such image: lab/x:1"
    )
    silent = "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"
    assert line("apptainer", silent, own).endswith("(systemctl status docker)")


def test_whatever_an_engine_says_the_line_is_one() -> None:
    for _, message in MESSAGES:
        assert "\n" not in line("docker", message)
    assert len(line("docker", "Error: " + "x" * 10_000)) < 400
