"""What clients are told of the tools, before they call one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import jsonschema
import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from gpulaunch.base.documents import TOOL_DOCUMENTS
from gpulaunch.cli import cli
from gpulaunch.mcp.tools import INSTRUCTIONS, TOOLS, Tool
from tests.cli.launcher import Launcher
from tests.examples.documents import blocks
from tests.examples.test_documents import REGISTERS
from tests.mcp.client import Talk, talk


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_says_what_it_takes_and_answers(tool: Tool) -> None:
    for schema in (tool.input_schema, tool.output_schema):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    told = [one.get("description") for one in tool.input_schema["properties"].values()]
    assert all(told)
    assert len(tool.description) < 300


def test_every_tool_has_a_document_and_the_help_names_it() -> None:
    names = [tool.name for tool in TOOLS]
    assert sorted(names) == sorted(TOOL_DOCUMENTS)
    told = " ".join(CliRunner().invoke(cli, ["mcp", "--help"]).output.split())
    assert f"{', '.join(names[:-1])} and {names[-1]}" in told


def test_clients_hear_what_only_looks_and_what_may_destroy(launcher: Launcher) -> None:
    async def conversation(to: Talk) -> None:
        assert to.client.instructions == INSTRUCTIONS
        listed = (await to.client.list_tools()).tools
        hints = {tool.name: tool.annotations for tool in listed}
        reads = {name for name, hint in hints.items() if hint and hint.read_only_hint}
        assert reads == {"check", "status", "why", "logs", "results", "gpus"}
        destroys = {name for name, hint in hints.items() if hint and hint.destructive_hint}
        assert destroys == hints.keys() - reads
        again = {name for name, hint in hints.items() if hint and hint.idempotent_hint}
        assert again == reads | {"cancel"}
        assert {tool.name: tool.output_schema for tool in listed} == {
            tool.name: tool.output_schema for tool in TOOLS
        }

    talk(launcher, conversation)


def test_a_client_can_read_how_a_job_file_is_written(launcher: Launcher) -> None:
    async def conversation(to: Talk) -> None:
        (one,) = (await to.client.list_resources()).resources
        starter = (await to.client.read_resource(one.uri)).contents[0].text
        assert (await to.tell("check", text=starter, simulate=2))["total_jobs"] == 8
        (template,) = (await to.client.list_resource_templates()).resource_templates
        field = template.uri_template.replace("{field}", "retries")
        assert "gpu_oom" in (await to.client.read_resource(field)).contents[0].text

    talk(launcher, conversation)


def test_what_the_guide_gives_a_client_starts_the_server(launcher: Launcher) -> None:
    (block,) = [one for one in blocks() if one.kind == "json" and REGISTERS in one.text]
    (told,) = json.loads(block.text)["mcpServers"].values()
    launcher.environ["PATH"] = f"{Path(sys.executable).parent}:{launcher.environ['PATH']}"

    async def conversation() -> None:
        server = StdioServerParameters(**told, cwd=launcher.path, env=launcher.environ)
        async with Client(stdio_client(server)) as client:
            assert len((await client.list_tools()).tools) == len(TOOLS)

    anyio.run(conversation)
