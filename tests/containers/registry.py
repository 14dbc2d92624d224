"""A registry of images on the loopback address, as docker and podman ask one (OCI distribution).

A name's last part says what happens: `tool` is there, with some layers; `arm` only for another
machine; of the others each is refused in its own way, and any other name is unknown.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LAYERS = 5
LARGE = 24 << 20
"""Bytes of the one layer of `large`."""
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
REFUSALS = {
    "denied": (403, "DENIED", "requested access to the resource is denied"),
    "login": (401, "UNAUTHORIZED", "authentication required"),
    "rate": (429, "TOOMANYREQUESTS", "You have reached your pull rate limit."),
    "broken": (500, "UNKNOWN", "internal"),
}
ABSENT = (404, "MANIFEST_UNKNOWN", "manifest unknown")


class Store:
    """Blobs by their digests; manifests by name and by digest."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self._image("tool", [_layer(number, 1000) for number in range(LAYERS)])
        self._image("large", [_layer(0, LARGE)])
        arm = self._image("arm64", [_layer(9, 1000)], "arm64")
        only = {**_described(arm, _MANIFEST), "platform": {"architecture": "arm64", "os": "linux"}}
        self._add("arm", {"schemaVersion": 2, "mediaType": _LIST, "manifests": [only]})

    def _image(self, name: str, layers: list[bytes], machine: str = "amd64") -> bytes:
        packed = [gzip.compress(layer, 1, mtime=0) for layer in layers]
        config = json.dumps(
            {
                "architecture": machine,
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
            }
        ).encode()
        for blob in (config, *packed):
            self.blobs[digest(blob)] = blob
        return self._add(
            name,
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _described(config, "application/vnd.docker.container.image.v1+json"),
                "layers": [
                    _described(blob, "application/vnd.docker.image.rootfs.diff.tar.gzip")
                    for blob in packed
                ],
            },
        )

    def _add(self, name: str, manifest: dict[str, Any]) -> bytes:
        content = json.dumps(manifest).encode()
        self.manifests[name] = self.manifests[digest(content)] = content
        return content


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _described(content: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(content), "digest": digest(content)}


def _layer(number: int, length: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo(f"file{number}")
        entry.size = length
        archive.addfile(entry, io.BytesIO(random.Random(number).randbytes(length)))
    return out.getvalue()


class Registry:
    """A running registry: its address, and a gate before the blobs."""

    def __init__(self, address: str, store: Store) -> None:
        self.address = address
        self.store = store
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()

    def digest(self, name: str) -> str:
        return digest(self.store.manifests[name])


@contextmanager
def serving() -> Iterator[Registry]:
    """Serve until the block is left. Clear `open`, and whoever asks for a blob waits."""
    store = Store()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    registry = Registry(f"127.0.0.1:{server.server_port}", store)
    server.registry = registry  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        registry.open.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        registry: Registry = self.server.registry  # type: ignore[attr-defined]
        match self.path.strip("/").split("/"):
            case ["v2"]:
                self._answer(200, b"{}")
            case ["v2", *_, name, "manifests", reference]:
                self._manifest(registry.store, name, reference)
            case ["v2", *_, "blobs", reference]:
                registry.asked.set()
                registry.open.wait()
                self._answer(200, registry.store.blobs[reference], "application/octet-stream")

    do_HEAD = do_GET

    def _manifest(self, store: Store, name: str, reference: str) -> None:
        found = store.manifests.get(reference if ":" in reference else name)
        if found is not None and name not in REFUSALS:
            self._answer(200, found, json.loads(found)["mediaType"], digest(found))
            return
        status, code, message = REFUSALS.get(name, ABSENT)
        self._answer(status, json.dumps({"errors": [{"code": code, "message": message}]}).encode())

    def _answer(
        self, status: int, body: bytes, kind: str = "application/json", its_digest: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if its_digest:
            self.send_header("Docker-Content-Digest", its_digest)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="pretend"')
        self.end_headers()
        if self.command == "GET":
            try:
                self.wfile.write(body)
            except OSError:  # a client that was killed
                self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""
