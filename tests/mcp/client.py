"""A client of the SDK that holds every answer against its published schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import jsonschema
import psutil
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from gpulaunch.base.documents import TOOL_DOCUMENTS
from gpulaunch.base.schemas import json_schema
from tests.cli.launcher import Launcher
from tests.cli.test_contracts import closed

LONGEST_TALK = 120
"""Seconds after which a conversation that hangs fails."""
SERVER = ["-m", "gpulaunch", "mcp"]


class Talk:
    """What a client says to the server, and hears."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def tell(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that answers; the text of its answer is the answer as JSON."""
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert content.type == "text"
        assert not result.is_error, content.text
        answer: dict[str, Any] = result.structured_content
        assert json.loads(content.text) == answer
        schema = closed(json_schema(TOOL_DOCUMENTS[tool]))
        jsonschema.Draft202012Validator(schema).validate(answer)
        return answer

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that refuses; return why."""
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert content.type == "text"
        assert result.is_error, content.text
        assert result.structured_content is None
        assert "Traceback" not in content.text
        text: str = content.text
        return text

    async def over(self, run: str | None = None) -> dict[str, Any]:
        """Wait until the run is over; return its status."""
        named = {} if run is None else {"run": run}
        with anyio.fail_after(60):
            while (told := await self.tell("status", wait=50, **named))["run"][
                "state"
            ] == "running":
                pass
        return told


def talk(launcher: Launcher, conversation: Callable[[Talk], Awaitable[None]]) -> None:
    """Hold a conversation with a server in the launcher's directory."""

    failed: list[Exception] = []  # raised in there, it would come as a group of groups

    async def held() -> None:
        server = StdioServerParameters(
            command=sys.executable, args=SERVER, cwd=launcher.path, env=launcher.environ
        )
        async with Client(stdio_client(server)) as client:
            try:
                with anyio.fail_after(LONGEST_TALK):
                    await conversation(Talk(client))
            except Exception as error:
                failed.append(error)

    anyio.run(held)
    for error in failed:
        raise error


def server_of_this_process() -> psutil.Process:
    """The server that this process has started."""
    (found,) = [one for one in psutil.Process().children() if one.cmdline()[-1:] == ["mcp"]]
    return found
