"""The Pythons of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

VERSIONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]


def python(version: str) -> str:
    places = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
        Path(f"/usr/bin/python{version}"),
    ]
    for place in places:
        if place.exists():
            return str(place)
    pytest.skip(f"no Python {version} here")
