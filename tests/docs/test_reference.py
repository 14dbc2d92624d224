"""The pages of the reference say what the code says."""

from __future__ import annotations

import re

import pytest

from gpulaunch import errors
from tests.docs.reference import FOLDER, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes_of_it_today(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name], "python -m tests.docs.reference"


def test_every_exit_status_is_named() -> None:
    text = (FOLDER / "exit-status.md").read_text()
    statuses = {value for value in vars(errors).values() if type(value) is int}
    assert statuses >= {0, 1, 2, 3, 4, 5, 124, 125, 126, 127}
    assert statuses <= {int(number) for number in re.findall(r"\b\d+\b", text)}
