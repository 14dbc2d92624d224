"""The tools: each one's name, what is said of it, what it takes, answers and does.

One more tool is one more row here, its arguments in `arguments`, and the document of its answer in
`base.documents`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from gpulaunch.base.documents import TOOL_DOCUMENTS
from gpulaunch.base.schemas import json_schema
from gpulaunch.mcp import arguments, changing, looking
from gpulaunch.mcp.arguments import MAX_MEMBER, ToolArguments, input_schema

INSTRUCTIONS = """
gpulaunch runs lists of jobs on this machine's GPUs: each job is a process that sees its own card
alone. A job file is YAML: `jobs:` is a list of entries with `name` and `run` (a shell command), and
`foreach` or `matrix` for many; the resource gpulaunch://job-file is an example that says more.
Check a file before you run it; with simulate it runs on pretend cards, on any machine. run answers
once the run is recorded; it goes on by itself. Follow it with status (wait: 50 spares calls), ask
why of a job that failed or waits, and retry once that is mended. A run is named by the directory
that run answers; left out, it is the newest run in the server's directory.
Errors name the commands of a terminal: -r RUN is the argument run, --all is all, --new is new,
--continue is go_on. No tool deletes anything, and logs are never overwritten.
""".strip()


class Tool(Struct, frozen=True):
    """A tool. `reads`: it changes nothing; `again`: calling it once more has no more effect.

    `longest`: characters, at most, of a text in its answer.
    """

    name: str
    description: str
    arguments: type[ToolArguments]
    call: Callable[..., Any]
    reads: bool = False
    again: bool = False
    longest: int = MAX_MEMBER

    @property
    def input_schema(self) -> dict[str, Any]:
        """What it takes."""
        return input_schema(self.arguments)

    @property
    def output_schema(self) -> dict[str, Any]:
        """What it answers."""
        return json_schema(TOOL_DOCUMENTS[self.name])


TOOLS = (
    Tool(
        "check",
        "Validate a job file and tell its plan: every mistake with its line, the first jobs, what"
        " in their scripts does not suit one card. Starts nothing.",
        arguments.CheckArguments,
        looking.check,
        reads=True,
    ),
    Tool(
        "run",
        "Start a job file's run on this machine's GPUs. The file is validated first; the run goes"
        " on by itself, also when this server ends. A text is kept as jobs-HASH.yaml in cwd. Runs"
        " the commands in the file as the server's user.",
        arguments.RunArguments,
        changing.run,
    ),
    Tool(
        "add",
        "Add jobs to a live run: one command, a job file, or its text. Each gets a card when one is"
        " free. Runs the command as the server's user, with the server's environment.",
        arguments.AddArguments,
        changing.add,
    ),
    Tool(
        "status",
        "Tell a run's state, the counts of its jobs, its cards, and the jobs in short, failed ones"
        " first. With wait: once the run is over, or that time is.",
        arguments.StatusArguments,
        looking.status,
        reads=True,
    ),
    Tool(
        "why",
        "Tell all about one job: why it waits, failed or was skipped, what to do, its command, its"
        " attempts and how its log ends.",
        arguments.WhyArguments,
        looking.why,
        reads=True,
    ),
    Tool(
        "logs",
        "Tell the last lines of jobs' logs, as a terminal would show them; of 10 jobs at most.",
        arguments.LogsArguments,
        looking.logs,
        reads=True,
        longest=looking.MAX_LOG_TEXT,
    ),
    Tool(
        "results",
        "Tell what jobs came to, as one table: a row a job with its values of foreach and matrix,"
        " what is in the metrics.json that it left, seconds, peaks. Several runs stack.",
        arguments.ResultsArguments,
        looking.results,
        reads=True,
    ),
    Tool(
        "retry",
        "Run again what failed and what was skipped because of it, or the jobs named. The job file"
        " is read again, so mend it first. Each start is a new attempt with a log of its own.",
        arguments.RetryArguments,
        changing.retry,
    ),
    Tool(
        "cancel",
        "Stop jobs of a live run by name or pattern, or with all the whole run. What runs gets"
        " SIGTERM, its grace, then SIGKILL; logs and files stay.",
        arguments.CancelArguments,
        changing.cancel,
        again=True,
    ),
    Tool(
        "gpus",
        "Tell this machine's cards: memory, who uses them, who has their lease, their health.",
        arguments.GpusArguments,
        looking.gpus,
        reads=True,
    ),
)
"""Every tool, in the order in which a run is worked with."""
