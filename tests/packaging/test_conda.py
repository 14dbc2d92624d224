"""The conda recipe asks for what pyproject.toml asks for; CI's dry run of a release builds it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpulaunch import __version__
from tests.packaging.support import ROOT

BUILDING = {"python", "pip"}
"""What a build needs in conda's way of it, beside the backend."""


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    text = Path(ROOT / ".ci/conda/recipe.yaml").read_text()
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def said(requirements: Iterable[str]) -> set[str]:
    """Each as `name >=1.2`, however it was written."""
    read = map(Requirement, requirements)
    return {f"{canonicalize_name(each.name)} {each.specifier}".strip() for each in read}


def test_it_asks_for_what_the_distribution_asks_for(recipe: dict[str, Any]) -> None:
    of_base = [line for line in distribution("gpulaunch").requires or () if "extra ==" not in line]
    python = f"python {distribution('gpulaunch').metadata['Requires-Python']}"
    assert said(recipe["requirements"]["run"]) == said([*of_base, python])


def test_it_builds_with_what_the_distribution_is_built_with(recipe: dict[str, Any]) -> None:
    (line,) = (
        line for line in (ROOT / "pyproject.toml").read_text().splitlines()
        if line.startswith("requires = [")
    )  # fmt: skip
    backend = yaml.safe_load(line.partition(" = ")[2].partition(" #")[0])
    assert said(recipe["requirements"]["host"]) == said(backend) | BUILDING


def test_it_is_of_this_version_and_has_its_command_and_licences(recipe: dict[str, Any]) -> None:
    made = distribution("gpulaunch")
    assert recipe["context"]["version"] == __version__
    entry_points = [f"{one.name} = {one.value}" for one in made.entry_points]
    assert recipe["build"]["python"]["entry_points"] == entry_points
    assert recipe["about"]["license"] == made.metadata["License-Expression"]
    assert recipe["about"]["license_file"] == made.metadata.get_all("License-File")
    assert recipe["about"]["summary"] == made.metadata["Summary"]
