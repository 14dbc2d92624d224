"""The pages of docs/reference that the code itself holds, as Markdown.

python -m tests.docs.reference        writes them anew, and docs/man; `test_reference` compares

Each page is a function that reads the code's own data: the click commands, the fields and the
schema of the job file, the facts of the journal, the failure classes, the rules of the lint, what
commands print as JSON, the exit statuses, the families of metrics.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import click
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from gpulaunch.base import errors
from gpulaunch.base import schemas as contracts
from gpulaunch.base.documents import DOCUMENTS, TOOL_DOCUMENTS
from gpulaunch.base.schemas import event_schema, json_schema
from gpulaunch.cli import COMMANDS, cli
from gpulaunch.core.causes import Advice, EndCause
from gpulaunch.core.facts import Fact
from gpulaunch.core.model import AttemptId, End, Exited, Failure, Gpu, Instant, Outcome
from gpulaunch.core.reasons import CardReason, JobReason, RunReason
from gpulaunch.core.retry import POLICIES
from gpulaunch.core.values import Happening
from gpulaunch.diagnose.failure.classes import CLASSES, FailureClass
from gpulaunch.diagnose.lint import finding
from gpulaunch.diagnose.lint.finding import RULES, Given, Suspect
from gpulaunch.jobfile.config_file import KEYS
from gpulaunch.jobfile.fields import FIELDS
from gpulaunch.jobfile.mistakes import not_expanded
from gpulaunch.jobfile.schema import OF_FILE, explained, schema
from gpulaunch.mcp.tools import TOOLS
from gpulaunch.observe.prometheus.families import families, names
from tests.docs import man
from tests.prometheus.support import tallied
from tests.prometheus.test_families import busy

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
MADE = "<!-- Made by `python -m tests.docs.reference` from {source}; not to be edited here. -->"


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_text(text)
    man.write()


def pages() -> dict[str, str]:
    """Every generated page by its name."""
    return {
        "cli.md": page("gpulaunch.cli", command_line()),
        "configuration.md": page("gpulaunch.jobfile.config_file", configuration()),
        "job-file.md": page("gpulaunch.jobfile", job_file()),
        "events.md": page("gpulaunch.core.facts", events()),
        "failure-classes.md": page("gpulaunch.diagnose.failure.classes", failure_classes()),
        "lint-rules.md": page("gpulaunch.diagnose.lint", lint_rules()),
        "exit-status.md": page("gpulaunch.base.errors", exit_statuses()),
        "metrics.md": page("gpulaunch.observe.prometheus.families", metric_families()),
        "status-json.md": page("gpulaunch.base.documents", documents()),
        "mcp-tools.md": page("gpulaunch.mcp.tools", mcp_tools()),
        **{
            f"schemas/{name}.json": json.dumps(json_schema(document), indent=2) + "\n"
            for name, document in _schemas().items()
        },
        "schemas/event.json": json.dumps(event_schema(), indent=2) + "\n",
    }


def _schemas() -> dict[str, type]:
    """Every document that has a schema file, by the file's name."""
    return {**DOCUMENTS, **{f"mcp-{name}": of for name, of in TOOL_DOCUMENTS.items()}}


def page(source: str, parts: Iterable[str]) -> str:
    head, *rest = parts
    return "\n\n".join([head, MADE.format(source=source), *rest]) + "\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def flow(text: str) -> str:
    return " ".join(text.split())


def plain(text: str) -> str:
    """Words that Markdown is not to read anything into, on one line."""
    return re.sub(r"([*_<>|\[\]\\`])", r"\\\1", flow(text))


def code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")


def fenced(text: str, kind: str) -> str:
    return f"```{kind}\n{text.strip(chr(10))}\n```"


# ── The command line ────────────────────────────────────────────────────────────────────────────


def command_line() -> Iterator[str]:
    yield "# Command line"
    yield "`gpulaunch COMMAND -h` prints the same. Each command:"
    yield table(
        ("command", "what it does"),
        ((f"[{name}](#gpulaunch-{name})", plain(text)) for name, (_, text) in COMMANDS.items()),
    )
    root = click.Context(cli, info_name="gpulaunch")
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        yield from one_command(click.Context(command, info_name=name, parent=root))


def one_command(context: click.Context) -> Iterator[str]:
    command = context.command
    yield f"## {context.command_path}"
    usage = " ".join(filter(None, command.collect_usage_pieces(context)))
    yield fenced(f"{context.command_path} {usage}", "text")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        verbatim = paragraph.startswith("\b")
        yield fenced(paragraph.lstrip("\b\n"), "text") if verbatim else plain(paragraph)
    options = [each for each in command.params if isinstance(each, click.Option)]
    shown = [record for each in options if (record := each.get_help_record(context))]
    if shown:
        yield table(("option", ""), ((code(names), plain(words)) for names, words in shown))


# ── The job file ────────────────────────────────────────────────────────────────────────────────


def job_file() -> Iterator[str]:
    yield "# Fields of the job file"
    yield flow("""
        `gpulaunch schema` prints the JSON Schema of the file, `gpulaunch schema FIELD` one of these
        sections. [The guide](../guide/job-file.md) explains how the fields work together.
    """)
    whole = schema()["properties"]
    yield "## Keys of the file"
    for name in OF_FILE:
        yield from one_field(name, whole[name], "of the file")
    yield "## Fields of a job"
    yield "All but `name`, `run` and a few others may stand under `defaults:` as well."
    for name in FIELDS:
        yield from one_field(name, whole["jobs"]["items"]["properties"][name], "of a job")


def configuration() -> Iterator[str]:
    yield "# Keys of the configuration"
    yield flow("""
        `gpulaunch schema --config` prints the JSON Schema of both files, `gpulaunch schema --config
        KEY` one of these sections. [The guide](../guide/configuration.md) says which file wins.
    """)
    for name, key in KEYS.items():
        yield f"## {name}"
        yield plain(key.meaning)
        yield fenced(key.example, "yaml")


def one_field(name: str, accepted: Mapping[str, Any], of: str) -> Iterator[str]:
    """Heading, place and meaning, what it takes, an example: what `schema FIELD` says."""
    told = explained(name).split("\n\n")
    for words, example in zip(told[::2], told[1::2], strict=True):
        place, _, meaning = words.removeprefix(f"{name}, ").partition(": ")
        if place.startswith(of):
            yield f"### {name}, {of}"
            taken = (
                "" if name in ("jobs", "defaults") else f" Takes {plain(joined(forms(accepted)))}."
            )
            yield f"{place[0].upper()}{place[1:]}. {plain(meaning)}{taken}"
            yield fenced(dedent(example), "yaml")


def joined(words: Iterable[str]) -> str:
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} or {last}" if most else last


def forms(accepted: Mapping[str, Any]) -> Iterator[str]:
    """What a schema accepts, in words; null and a value given by placeholders are left out."""
    for one in accepted.get("anyOf", ()):
        yield from forms(one)
    if "enum" in accepted:
        values = accepted["enum"]
        yield "a failure class" if set(values) == set(POLICIES) else joined(map(str, values))
    elif "type" in accepted and accepted["type"] != ["number", "boolean"]:  # text as typed
        kinds = accepted["type"]
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            yield from of_type(kind, accepted)


def of_type(kind: str, accepted: Mapping[str, Any]) -> Iterator[str]:
    pattern = accepted.get("pattern", "")
    if kind == "string":
        if "smhdw" in pattern:
            yield "a time"
        elif "kKmMgG" in pattern:
            yield "a size"
        elif "[0-9]" in pattern and ":" not in pattern:
            yield "a number"
        elif pattern != r"\{\{":
            yield "text"
    elif kind in ("integer", "number"):
        yield "a number"
    elif kind == "boolean":
        yield "true or false"
    elif kind == "array":
        items = list(dict.fromkeys(forms(accepted.get("items", {}))))
        yield f"a list of {joined(items)}" if len(items) == 1 else "a list"
    elif kind == "object":
        keys = accepted.get("properties")
        yield f"a mapping with {', '.join(keys)}" if keys else "a mapping"


# ── The journal ─────────────────────────────────────────────────────────────────────────────────


def events() -> Iterator[str]:
    yield "# Events"
    yield flow("""
        `events.jsonl` in a run's directory holds one event a line, and `gpulaunch run --json`
        prints them. Every line has `n`, its number from 1 without a gap; `t`, when, in UTC; `m`,
        the same on the machine's monotonic clock in seconds; `e`, the event; the event's own
        members; and `c`, a CRC-32 of the line without this member. [The
        journal](../design/journal.md) says how it is written and read; a line has a [JSON
        Schema](schemas/event.json).
    """)
    yield flow("""
        Times within events are objects of `mono` and `utc`, in seconds; sizes are bytes; cards are
        named by their UUID. A member that has its default may be left out.
    """)
    for cls in get_args(Fact):
        yield from one_record("##", tag_of(cls), cls)
    yield "## Values within events"
    for cls in (Gpu, Instant, End, Failure):
        yield from one_record("###", tag_of(cls), cls)
    yield "## Outcomes of attempts"
    yield flow("""
        `outcome` of an `end` is an object whose `kind` is one of these. `status` within it
        is how the main process itself ended: `exited` or `signaled`.
    """)
    for cls in get_args(Outcome):
        yield from one_record("###", tag_of(cls), cls)
    yield "## Reasons"
    yield flow("""
        Why a job, a card, an attempt or a run is as it is: an object whose `kind` is one of these.
        No event but a note holds a sentence; `gpulaunch` makes them where it shows events.
    """)
    for cls in dict.fromkeys(
        _structs(JobReason | RunReason | CardReason | EndCause | get_args(Advice)[0])
    ):
        if cls not in get_args(Outcome):
            yield from one_record("###", tag_of(cls), cls)


def _structs(hint: Any) -> Iterator[type]:
    """The structs that values of this type are of, and those within them."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
        for inner in get_type_hints(hint).values():
            yield from _structs(inner)
    for inner in get_args(hint):
        yield from _structs(inner)


def one_record(level: str, kind: str, cls: type) -> Iterator[str]:
    yield f"{level} {kind}"
    if cls.__doc__:
        yield inspect.cleandoc(cls.__doc__)
    rows = list(members(cls))
    if rows:
        yield table(("member", "type", "default"), rows)
    elif not cls.__doc__:
        yield "It has no members of its own."


def tag_of(cls: Any) -> str:
    """The name of a kind, or of the object where it is none."""
    tag: str | None = cls.__struct_config__.tag
    return tag or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def members(cls: type) -> Iterator[tuple[str, str, str]]:
    hints = get_type_hints(cls)
    for field in fields(cls):
        if field.name == "attempt" and issubclass(cls, Happening):
            yield code("job"), "text", ""
            yield code("attempt"), "whole number", ""
        else:
            default = "" if field.required else code(written(default_of(field)))
            yield code(field.encode_name), spelt(hints[field.name]), default


def default_of(field: FieldInfo) -> Any:
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return field.default


def written(value: Any) -> str:
    return json.dumps(dict(value) if isinstance(value, Mapping) else value)


_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def spelt(hint: Any) -> str:
    """A type as it is written in JSON, in words."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(code(str(value)) for value in args)
    if is_typeddict(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if origin in (tuple, list):
        return f"list of {spelt(args[0])}"
    if origin is Mapping or (origin and issubclass_of_mapping(origin)):
        return f"object of {spelt(args[1])}"
    if hint is AttemptId:
        return "object of `job`, `number`"
    if origin in (Union, UnionType):
        kinds = [arg for arg in args if arg is not type(None)]
        if Exited in kinds:
            words = "status" if len(kinds) == 2 else "outcome"
        else:
            words = joined(map(spelt, kinds))
        return f"{words} or null" if len(kinds) < len(args) else words
    return code(tag_of(hint))


def issubclass_of_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


# ── Failure classes ─────────────────────────────────────────────────────────────────────────────

AGAIN = {"no": "no", "yes": "yes", "later": "after a pause"}
OTHER = {
    "no": "no",
    "yes": "yes",
    "once": "once",
    "larger": "with more memory",
    "other_kind": "of another model",
}


def failure_classes() -> Iterator[str]:
    yield "# Failure classes"
    yield flow("""
        The class of a failed attempt stands in `status`, in the report and in the journal, and may
        be named in `retries: {times: 2, on: [...]}`. Without `on:` a retry is spent where this
        table says that another start may help: on the same card, or on another one. [When a job
        fails](../guide/failures-and-retries.md) says how a class is found.
    """)
    yield table(
        ("class", "it failed:", "same card", "another card", "what to do"),
        (one_class(known) for known in CLASSES.values()),
    )
    yield (
        "Without a retry spent: "
        + ", ".join(code(name) for name, policy in POLICIES.items() if policy.free)
        + ". Its card is set aside for the run: "
        + ", ".join(code(name) for name, policy in POLICIES.items() if policy.aside)
        + "."
    )


def one_class(known: FailureClass) -> tuple[str, ...]:
    policy = POLICIES[known.name]
    return (
        code(known.name),
        plain(known.title),
        AGAIN[policy.again],
        OTHER[policy.other],
        plain(known.advice),
    )


# ── Rules of the lint ───────────────────────────────────────────────────────────────────────────


def lint_rules() -> Iterator[str]:
    yield "# Rules of `check`"
    yield flow("""
        What `gpulaunch check`, and `run` before it starts, finds in the scripts that jobs run. `#
        gpulaunch: ok` on a line silences all rules there, `# gpulaunch: ok RULE` one. [Device
        errors](../diagnose/device-errors.md) says what is read.
    """)
    yield table(("rule", "the script"), ((f"[{r}](#{r})", plain(m)) for r, m in RULES.items()))
    for rule, meaning in RULES.items():
        yield f"## {rule}"
        suspect = SUSPECTS.get(rule)
        yield f"It {meaning}." + (" For example:" if suspect else "")
        if suspect:
            assert suspect.rule == rule
            why, mend = suspect.words(Given(gpus=max(1, suspect.least)))
            yield fenced(f"{why};\n{mend} [{rule}]", "text")


def known(suspect: Suspect | None) -> Suspect:
    assert suspect is not None
    return suspect


SUSPECTS = {
    "device-index": known(finding.device("cuda:1")),
    "own-mask": finding.mask(),
    "mask-value": finding.mask_as_number()[0],
    "device-order": known(finding.order("FASTEST_FIRST")),
    "fixed-port": finding.port("MASTER_PORT=29500"),
    "single-brace": finding.single_brace("path"),
    "index-name": finding.index_name(),
    "not-expanded": Suspect("not-expanded", *(not_expanded("/x:$PATH", "env", "PATH") or ("", ""))),
    "all-gpus": finding.all_cards("--gpus all", "boltz"),
}
"""What is said of one line for each rule that has its words in `lint.wording`."""


# ── Exit statuses ───────────────────────────────────────────────────────────────────────────────


def exit_statuses() -> Iterator[str]:
    yield "# Exit status"
    yield "Of `run`, `map`, `resume` and `retry`; `wait` has that of the run:"
    yield meanings(errors.OF_A_RUN)
    yield "`exec` has its command's own, or:"
    yield meanings(errors.OF_EXEC)
    yield "`hold` has its command's own, or:"
    yield meanings(errors.OF_HOLD)
    yield flow("""
        All others: 0, or 2 with a line that says why; `doctor`: 1 where it finds an error. Each may
        end with 70, as `run` may.
    """)


def meanings(statuses: Mapping[int, str]) -> str:
    return table(("status", "meaning"), ((str(n), plain(text)) for n, text in statuses.items()))


# ── What commands print as JSON ─────────────────────────────────────────────────────────────────


def documents() -> Iterator[str]:
    yield "# JSON that commands print"
    _, *said = (contracts.__doc__ or "").split("\n\n")
    yield flow(said[-1])
    yield flow("""
        `run` and `map` print [events](events.md) with `--json`, a line each. A command that failed
        prints one line instead, a [failure](#failuredocument), with its [exit
        status](exit-status.md).
    """)
    told: set[type] = set()
    for name, document in DOCUMENTS.items():
        yield f"## {document.__name__}"
        yield f"{inspect.getdoc(document)} Its [JSON Schema](schemas/{name}.json)."
        yield members_table(document)
        yield from inner_objects(document, told)


def inner_objects(document: type, told: set[type]) -> Iterator[str]:
    """The objects inside a document that were not told before."""
    for inner in within(document):
        if inner not in told:
            told.add(inner)
            yield f"### {inner.__name__}"
            yield inspect.getdoc(inner) or ""
            yield members_table(inner)


def within(hint: Any) -> Iterator[type]:
    """The objects inside a type, each before those inside it."""
    kinds = [kind for kind, _ in contracts.members(hint).values()] if is_typeddict(hint) else ()
    for kind in kinds or get_args(hint):
        if is_typeddict(kind):
            yield kind
        yield from within(kind)


def members_table(document: Any) -> str:
    return table(
        ("member", "type", "what it says"),
        (
            (
                code(name),
                spelt(kind) + ("" if name in document.__required_keys__ else ", or left out"),
                plain(told),
            )
            for name, (kind, told) in contracts.members(document).items()
        ),
    )


def mcp_tools() -> Iterator[str]:
    yield "# Tools of gpulaunch mcp"
    yield flow("""
        What programs that speak the Model Context Protocol can call; [the
        guide](../guide/agents.md) says how. An answer has the text of its JSON too; a refused call
        has `isError` and says in words what to do.
    """)
    told = {inner for document in DOCUMENTS.values() for inner in within(document)}
    there = sorted(inner.__name__.lower() for inner in told)
    for tool in TOOLS:
        document = TOOL_DOCUMENTS[tool.name]
        yield f"## {tool.name}"
        yield plain(tool.description)
        yield "Only looks." if tool.reads else "Starts or ends jobs: marked as what may destroy."
        schema = tool.input_schema
        if schema["properties"]:
            yield table(
                ("argument", "type", "what it says"),
                (
                    (
                        code(name) + (", required" if name in schema["required"] else ""),
                        argument_type(one),
                        plain(one["description"]),
                    )
                    for name, one in schema["properties"].items()
                ),
            )
        yield f"It answers, by its [JSON Schema](schemas/mcp-{tool.name}.json):"
        for part in (members_table(document), *inner_objects(document, told)):
            yield re.sub(rf"\(#({'|'.join(there)})\)", r"(status-json.md#\1)", part)


def argument_type(schema: dict[str, Any]) -> str:
    """The type of a tool's argument in a word or two, from its JSON Schema."""
    kinds = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    return " or ".join(_kind_of(one) for one in kinds)


def _kind_of(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(code(str(value)) for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_kind_of(schema['items'])}"
    least, most = schema.get("minimum"), schema.get("maximum")
    between = "" if most is None else f", {least or 0:g} to {most:g}"
    return f"{schema['type']}{between}"


# ── Metrics ─────────────────────────────────────────────────────────────────────────────────────


def metric_families() -> Iterator[str]:
    yield "# Metrics"
    yield flow("""
        What [`--metrics-port`](../observe/prometheus.md) serves. Labels are states, failure classes
        and the run's cards, never jobs; what was not measured is absent, never 0.
    """)
    run = busy()
    sampled = {one.name: one.samples[0] for one in families(tallied(run.facts), {}, run.now)}
    yield table(
        ("sample", "type", "labels", "what it says"),
        (one_family(family, sampled.get(family.name)) for family in names()),
    )


def one_family(family: Metric, sample: Sample | None) -> tuple[str, ...]:
    """A family's row; one that the history has no sample of is named by its own labels."""
    labels = sample.labels if sample else getattr(family, "_labelnames", ())
    return (
        code(sample.name if sample else family.name),
        family.type,
        ", ".join(map(code, labels)),
        plain(family.documentation),
    )


if __name__ == "__main__":
    main()
