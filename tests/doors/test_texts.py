"""Job files, configuration, typed fields, arguments of tools: a mistake for what is wrong."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.jobfile.config_file import read_file
from gpulaunch.jobfile.fields import DEFAULTS
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text, typed_defaults
from gpulaunch.mcp.arguments import understood
from gpulaunch.mcp.tools import TOOLS
from tests.doors.spoilt import ODD, SEED, count, dumped, messages, values

GOOD = Path(__file__).parents[1] / "jobfile" / "good"
CONFIG: dict[str, Any] = {
    "gpus": {"never": ["GPU-1"], "last": ["0"]},
    "free_below": "2GB",
    "runs": "/data/runs",
    "notify": [{"to": "json://localhost"}],
    "slurm": {"account": "lab"},
    "lease_dir": "/run/lock",
    "limits": {"users": {"ann": 2}, "groups": {"lab": 4}},
}


def real_files() -> list[Any]:
    return [yaml.load(path.read_text(), yaml.BaseLoader) for path in sorted(GOOD.glob("*.yaml"))]


def test_a_job_file_with_any_value_is_a_list_or_its_mistakes() -> None:
    rng = random.Random(SEED)
    for spoilt in values(rng, real_files(), count(300)):
        with suppress(UsageError):
            load_text(dumped(spoilt), Surroundings({}), name="j", base=GOOD)


def test_configuration_with_any_value_is_read_or_its_mistakes_are(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for line in messages([CONFIG], count(300)):
        path.write_bytes(line)
        for is_machine in (True, False):
            read_file(str(path), is_machine)


def test_a_default_that_is_typed_may_be_anything() -> None:
    odd = [value for value in ODD if isinstance(value, str)]
    odd += [json.dumps(value) for value in ODD[1:]]
    odd += ["[" * 3000, "{&a [x]: 1}", "&a [*a]", "[&a [x], &b [*a, *a], *b]"]
    for field in DEFAULTS:
        for value in odd:
            with suppress(UsageError):
                typed_defaults([f"{field}={value}"])


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_arguments_of_a_tool_are_understood_or_refused(tool: Any) -> None:
    rng = random.Random(SEED)
    names = [field.name for field in msgspec.structs.fields(tool.arguments)]
    for _ in range(count(60)):
        given = {rng.choice([*names, "\ud800"]): rng.choice(ODD[1:]) for _ in range(2)}
        with suppress(UsageError, JobFileError):
            understood(tool.arguments, given)
