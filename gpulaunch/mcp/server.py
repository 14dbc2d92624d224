"""The server: the protocol on standard input and output, by the official SDK. Alone imports it.

A tool's work is done in a thread, so that no call holds up another. A call that is cancelled, or
whose client is gone, is not answered. What changes something is carried through all the same, once
it has begun; what only looks is left.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
import traceback
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from gpulaunch import __version__
from gpulaunch.base.errors import NOWHERE, GpulaunchError, UsageError
from gpulaunch.base.files import is_nowhere
from gpulaunch.base.text import shortened
from gpulaunch.init import starter
from gpulaunch.jobfile.schema import explained
from gpulaunch.mcp.arguments import Caller, NoteTaker, answerable, bounded, understood
from gpulaunch.mcp.tools import INSTRUCTIONS, TOOLS, Tool
from gpulaunch.observe.present.words import visible_lines

JOB_FILE = "gpulaunch://job-file"
FIELD = "gpulaunch://job-file/{field}"


def read(uri: str) -> str:
    """Return how a job file is written, or a field of it. Raises UsageError for another name."""
    if uri == JOB_FILE:
        return starter()
    head, _, field = uri.rpartition("/")
    if head != JOB_FILE:
        raise UsageError(f"there is no resource {uri}: {JOB_FILE}, and {FIELD}")
    return explained(field)


# ── The server ────────────────────────────────────────────────────────────────────────────────────

MAX_ANSWER = 512 << 10
"""Bytes, at most, of an answer's JSON."""
MAX_CALLS = 16
"""Calls that are worked on at the same time; more of them wait. Those that wait for a run's end
are counted apart, so that they hold up only each other."""

Context = ServerRequestContext[Any, Any]
BY_NAME = {tool.name: tool for tool in TOOLS}


def serve() -> None:
    """Serve one client until it closes standard input."""
    try:
        anyio.run(_serve)
    except Exception as error:
        if not _is_hangup(error):
            raise


async def _serve() -> None:
    calls, waits = anyio.CapacityLimiter(MAX_CALLS), anyio.CapacityLimiter(MAX_CALLS)
    server: Server[Any] = Server(
        "gpulaunch",
        version=__version__,
        title="gpulaunch",
        instructions=INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=partial(_call_tool, calls, waits),
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _is_hangup(error: BaseException) -> bool:
    """Tell whether nothing but a client that went away is behind the error."""
    inner = getattr(error, "exceptions", None)
    if inner is not None:
        return all(map(_is_hangup, inner))
    return isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ECONNRESET)


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


async def _list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[_as_told(tool) for tool in TOOLS])


def _as_told(tool: Tool) -> types.Tool:
    """Return a tool as clients are told of it.

    What starts commands or ends jobs may destroy something: a client is to ask its person first.
    """
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            read_only_hint=tool.reads,
            destructive_hint=not tool.reads,
            idempotent_hint=tool.reads or tool.again,
            open_world_hint=not tool.reads,
        ),
    )


async def _call_tool(
    calls: anyio.CapacityLimiter,
    waits: anyio.CapacityLimiter,
    context: Context,
    asked: types.CallToolRequestParams,
) -> types.CallToolResult:
    def progress(done: int, total: int) -> None:
        anyio.from_thread.run(context.session.report_progress, done, total)

    given, tool = asked.arguments or {}, BY_NAME.get(asked.name)
    reads = tool is None or tool.reads
    async with waits if given.get("wait") else calls:
        ours, theirs = socket.socketpair()
        work = partial(_worked, tool, asked.name, given, Caller(theirs, progress))
        with ours, anyio.CancelScope(shield=not reads):
            result = await anyio.to_thread.run_sync(work, abandon_on_cancel=reads)
    return result


def _worked(
    tool: Tool | None, name: str, given: dict[str, Any], caller: Caller
) -> types.CallToolResult:
    """Return a tool's answer, or what is wrong. Raises nothing that a call could bring about."""
    try:
        with caller:
            if tool is None:
                names = ", ".join(BY_NAME)
                raise UsageError(f"there is no tool {shortened(name)}: there are {names}")
            answer = tool.call(understood(tool.arguments, given), NoteTaker(), caller)
        answer = answerable(answer, tool.longest)
        text = json.dumps(answer, ensure_ascii=False)
        if (size := len(text.encode())) > MAX_ANSWER:
            raise UsageError(f"the answer has {size:,} bytes: ask for less (limit, jobs, lines)")
    except GpulaunchError as error:
        return _failed(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _failed(NOWHERE if is_nowhere() else f"{place}{error.strerror or error}")
    except Exception as error:  # a bug: the server lives on, and who keeps it finds the traceback
        traceback.print_exc(file=sys.stderr)
        return _failed(f"an error in gpulaunch itself ({type(error).__name__}): {error}")
    content = types.TextContent(type="text", text=text)
    return types.CallToolResult(content=[content], structured_content=answer)


def _failed(text: str) -> types.CallToolResult:
    told = "\n".join(bounded(visible_lines(text).split("\n")))
    return types.CallToolResult(content=[types.TextContent(type="text", text=told)], is_error=True)


# ── Resources ───────────────────────────────────────────────────────────────────────────────────


async def _list_resources(
    _: Context, __: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    one = types.Resource(
        uri=JOB_FILE,
        name="job-file",
        description="An example of a job file, which says what may be in it.",
        mime_type="application/yaml",
    )
    return types.ListResourcesResult(resources=[one])


async def _list_templates(
    _: Context, __: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    one = types.ResourceTemplate(
        uri_template=FIELD,
        name="job-file-field",
        description="What a field of the job file means (retries, foreach), with an example.",
        mime_type="text/plain",
    )
    return types.ListResourceTemplatesResult(resource_templates=[one])


async def _read_resource(
    _: Context, asked: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    uri = str(asked.uri)
    try:
        text = await anyio.to_thread.run_sync(read, uri)
    except GpulaunchError as error:
        raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from None
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=text)])
