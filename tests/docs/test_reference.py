"""The pages of the reference say what the code says."""

from __future__ import annotations

import re

import pytest

from gpulaunch import errors
from gpulaunch.digest.status import status_json
from tests.docs.reference import FOLDER, pages
from tests.views.screen import Paths
from tests.views.test_status import busy

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes_of_it_today(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name], "python -m tests.docs.reference"


def test_every_exit_status_is_named() -> None:
    text = (FOLDER / "exit-status.md").read_text()
    statuses = {value for value in vars(errors).values() if type(value) is int}
    assert statuses >= {0, 1, 2, 3, 4, 5, 124, 125, 126, 127}
    assert statuses <= {int(number) for number in re.findall(r"\b\d+\b", text)}


def test_every_member_of_the_status_is_explained() -> None:
    told = status_json(busy().ledger, Paths(), "running", {})
    objects = {
        "run": told["run"],
        "gpus": told["gpus"][0],
        "jobs": told["jobs"][0],
        "attempts": told["jobs"][0]["attempts"][0],
    }
    text = (FOLDER / "status-json.md").read_text()
    for name, found in objects.items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        assert re.findall(r"`(\w+)`", " ".join(cells)) == list(found), name
