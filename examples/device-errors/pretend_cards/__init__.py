"""Pretend cards for a torch that sees none, so that these examples run on any machine.

`setup` puts this package into .env/lib/.../site-packages, with a line in a .pth file that imports
it; the programs do not know of it. Nothing happens until a program has imported torch, and nothing
at all where torch then sees a card. Otherwise `cards.py` is installed, which says so on standard
error.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterTorch:
    """Waits on the import path, so that an interpreter without torch pays nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_look(module: ModuleType) -> None:
            load(module)
            if not module.cuda.is_available():
                install()

        spec.loader.exec_module = load_and_look  # type: ignore[method-assign]
        return spec


def install() -> None:
    """As a part of torch, whose place it takes in tracebacks: no line of it is the program's."""
    place = os.path.join(os.path.dirname(__file__), "cards.py")
    spec = importlib.util.spec_from_file_location("torch.pretend_cards", place)
    assert spec is not None
    assert spec.loader is not None
    cards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cards)
    cards.install()


sys.meta_path.insert(0, AfterTorch())
