"""Programs as if they had been exported on another card, written without one.

Exported on the CPU; then every device record in the file is replaced, by other means than those
that are tested: text by text, not by reading the pickles.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

CPU = b"X\x03\x00\x00\x00cpu"


def baked(program: bytes, card: str = "cuda:1", keep: tuple[str, ...] = ()) -> bytes:
    """The file with `card` in place of the CPU; members that end as in `keep` are left alone."""
    kind, _, index = card.partition(":")
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(program)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if member.endswith(".json") and not member.endswith(keep or ("-",)):
                content = json.dumps(_document(json.loads(content), kind, int(index))).encode()
            elif content[:2] == b"PK" and not member.endswith(keep or ("-",)):
                content = _saved(content, card)
            new.writestr(member, content)
    return out.getvalue()


def _document(value: Any, kind: str, index: int) -> Any:
    if isinstance(value, list):
        return [_document(one, kind, index) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "cpu" and set(value) <= {"type", "index"}:
        return {"type": kind, "index": index}
    new = {key: _document(one, kind, index) for key, one in value.items()}
    if "autocast" in str(value.get("target")):
        text = json.dumps(new["inputs"]).replace(
            '{"as_string": "cpu"}', f'{{"as_string": "{kind}"}}'
        )
        new["inputs"] = json.loads(text)
    return new


def _saved(content: bytes, card: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.namelist():
            inner = old.read(member)
            if member.endswith(".pkl"):
                inner = inner.replace(CPU, b"X" + len(card).to_bytes(4, "little") + card.encode())
            new.writestr(member, inner)
    return out.getvalue()
