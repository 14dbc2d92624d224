"""The pages of the reference say what the code says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from click.testing import CliRunner

from gpulaunch.base import errors
from gpulaunch.cli import cli
from tests.docs.reference import FOLDER, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes_of_it_today(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name], "python -m tests.docs.reference"


def test_every_exit_status_is_explained() -> None:
    statuses = {value for value in vars(errors).values() if type(value) is int}
    assert statuses >= {0, 1, 2, 3, 4, 5, 124, 125, 126, 127}
    assert statuses == {*errors.OF_A_RUN, *errors.OF_HOLD} - {130, 129, 143}


@pytest.mark.parametrize(
    ("command", "statuses"),
    [("run", errors.OF_A_RUN), ("exec", errors.OF_EXEC), ("hold", errors.OF_HOLD)],
)
def test_help_lists_the_exit_statuses_line_by_line(
    command: str, statuses: Mapping[int, str]
) -> None:
    told = CliRunner().invoke(cli, [command, "--help"]).output
    lines = [line.split(maxsplit=1) for line in told.splitlines()]
    assert all([str(status), meaning] in lines for status, meaning in statuses.items())
    assert "{statuses}" not in told
