"""What commands print with `--json` is what their schemas say, member by member."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import jsonschema
import pytest

from gpulaunch.base.documents import DOCUMENTS
from gpulaunch.base.schemas import SCHEMA, event_schema, json_schema
from gpulaunch.cli import cli
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.inventory import unusable, usable
from gpulaunch.gpus.machine import CardReading, Fault, Process
from gpulaunch.observe.present.plan import RunRow, runs_json
from gpulaunch.observe.present.status import Standing, status_json
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.views.screen import Paths
from tests.views.test_cluster import cluster

JOBS = """
defaults: {retries: 1}
notify: [{run: "true", on: [finish]}]
jobs:
  - {name: "a-{{n}}", matrix: {n: [1, 2]}, run: "echo {{n}} > {{out}}/x", timeout: 2h}
  - {name: b, run: "exit 3", gpus: 0}
  - {name: c, run: "true", needs: [b]}
"""


def closed(schema: Any) -> Any:
    """Return the schema without leave to add members."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if "properties" in schema and "type" in schema else {}
    return {key: closed(value) for key, value in schema.items()} | more


def check(name: str, printed: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(printed)
    jsonschema.Draft202012Validator(closed(json_schema(DOCUMENTS[name]))).validate(document)
    assert document["schema"] == 1
    return document


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_one_and_refuses_another_version_and_a_member_too_few(name: str) -> None:
    schema = json_schema(DOCUMENTS[name])
    jsonschema.Draft202012Validator.check_schema(schema)
    lists = [one for one in schema["properties"] if one not in ("schema", "run")]
    for wrong in ({"schema": 2}, {}, {"schema": 1, lists[0]: 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def with_json(group: click.Group, before: str = "") -> Iterator[str]:
    """The commands that take --json."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if any("--json" in one.opts for one in command.params):
            yield f"{before}{name}"
        if isinstance(command, click.Group):
            yield from with_json(command, f"{before}{name} ")


def test_every_command_with_json_has_a_document_or_prints_events() -> None:
    events = {"run", "map", "each", "resume", "retry", "queue start"}
    assert set(with_json(cli)) == {*DOCUMENTS, *events, "queue status"} - {"failure"}


def test_the_status_of_a_run_keeps_to_its_schema(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS.replace("notify", "# notify"))
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 1
    told = check("status", launcher("status", "--json").out)
    assert [job["state"] for job in told["jobs"]] == ["succeeded", "succeeded", "failed", "skipped"]
    assert {len(job["attempts"]) for job in told["jobs"]} == {0, 1, 2}
    only = check("status", launcher("status", "b", "--json").out)
    assert [job["name"] for job in only["jobs"]] == ["b"]


def test_a_plan_keeps_to_its_schema(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS.replace("exit 3", "CUDA_VISIBLE_DEVICES=1 true"))
    told = check("check", launcher("check", "jobs.yaml", "--simulate", "2", "--json").out)
    assert told["warnings"]
    assert told["notify"]
    mapped = launcher("map", "--dry-run", "--json", "--simulate", "2", "echo", ":::", "a", "b")
    assert len(check("check", mapped.out)["jobs"]) == 2


def test_cards_runs_and_findings_keep_to_their_schemas(launcher: Launcher) -> None:
    check("gpus", launcher("gpus", "--json").out)
    check("ps", launcher("ps", "--json").out)
    assert check("doctor", launcher("doctor", "--json").out)["findings"]
    on_it = (Process(7, "C", 6, "ann", "python"), Process(8, "C"))
    look = CardReading("GPU-1", total=9, used=8, processes=on_it)
    used, unknown = usable(Gpu("GPU-1", 0, "", "H200", 9), look), unusable(Fault("card 1", "lost"))
    document = {"schema": SCHEMA, "gpus": [used, unknown]}
    assert check("gpus", json.dumps(document))["gpus"][0]["users"]
    known = RunRow("1", 7, "ann", "n", "/runs/n", "running", 1.5, "0", True, {"failed": 2})
    assert check("ps", json.dumps(runs_json([known, RunRow("2", 8, "bob")])))["runs"][0]["counts"]


def test_cards_and_attempts_of_a_cluster_keep_to_the_schema() -> None:
    run = cluster()
    standing = Standing(run.ledger, Paths(), "running", {}, run.now)
    told = check("status", json.dumps(status_json(standing)))
    assert any("node" in card for card in told["gpus"])
    assert any("queue_id" in one for job in told["jobs"] for one in job["attempts"])


def test_what_changes_a_list_keeps_to_its_schema(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}'}}, {{name: b, needs: [a], run: 'true'}}]"
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "1"):
        launcher.wait_for("attempt_started")
        added = check("add", launcher("add", "--json", "-g", "0", "--", "true").out)
        assert (added["run"], added["names"]) == (str(launcher.run), ["true-1"])
        launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}, {name: c, run: 'true'}]")
        told = check("reload", launcher("reload", "--json", "--dry-run").out)
        assert told["change"] == {
            "changed": [],
            "over": [],
            "gone": [],
            "new": ["c"],
            "withdrawn": ["b"],
            "running": ["a"],
        }


def test_every_event_of_a_run_keeps_to_the_schema(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS.replace("notify", "# notify"))
    told = launcher("run", "jobs.yaml", "--simulate", "2", "--json").out.splitlines()
    schema = event_schema()
    schema["unevaluatedProperties"] = False
    validator = jsonschema.Draft202012Validator(schema)
    assert len(told) > 20
    for line in told:
        validator.validate(json.loads(line))
    for wrong in ({"e": "no_event"}, json.loads(told[0]) | {"n": "1"}, {"e": "run_opened"}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


def test_a_failure_keeps_to_its_schema(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{rum: 'true'}]")
    told = check("failure", launcher("check", "jobs.yaml", "--json").out)
    assert [one["line"] for one in told["mistakes"]]
    assert check("failure", launcher("status", "--json").out)["mistakes"] == []
