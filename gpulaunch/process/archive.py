"""Packs the programs that nodes of a cluster run into one file, which any Python from 3.8 on runs.

One file is one look for a file system over a network, and is there as a whole or not at all. Beside
each module it holds its code as this Python compiles it; another version compiles for itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import sys
import zipfile
from pathlib import Path

from gpulaunch import farside

FOLDER = Path(farside.__file__).parent
_NEEDED = ("*.py", "node/*.py")
_UNCHECKED_HASH = (1).to_bytes(4, "little")
"""A .pyc's flags, by which its code is taken without a look at its source (PEP 552)."""


def archived(before: bytes = b"", folder: Path = FOLDER) -> bytes:
    """Return the archive; `before` itself if it is one of these modules by this Python."""
    sources = {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in _NEEDED
        for path in sorted(folder.glob(pattern))
    }
    told = repr((sys.implementation.cache_tag, sys.hexversion, sources))
    mark = hashlib.sha256(told.encode()).hexdigest().encode()
    if before.endswith(mark):
        return before
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, source in sources.items():
            code = compile(source, str(folder / name), "exec", dont_inherit=True)
            head = (
                importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
            )
            for kind, content in (("", source), ("c", head + marshal.dumps(code))):
                archive.writestr(zipfile.ZipInfo(name + kind), content)
        archive.comment = mark
    return data.getvalue()
