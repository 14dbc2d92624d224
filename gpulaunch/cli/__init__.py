"""The command line: argv to a call to an exit status. The only place that prints or exits."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name

import click
from click.shell_completion import CompletionItem

from gpulaunch import __version__
from gpulaunch.base.commit import commit, with_commit
from gpulaunch.base.errors import EXEC_OWN_FAILURE, NOT_RECORDED, NOWHERE, USAGE, GpulaunchError
from gpulaunch.base.files import is_nowhere
from gpulaunch.cli.completion import ASKED, answer
from gpulaunch.cli.habits import asks_for_json, complain
from gpulaunch.cli.options import AskedForJson, instead_of_option

DISK_TROUBLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}
)

# Name, place and one line each, so that no command's module is imported before it is needed.
COMMANDS = {
    "run": ("run:run", "Run a job list to its end, in the foreground."),
    "exec": ("exec:command", "Become one command on the next free card(s)."),
    "hold": ("exec:hold", "Keep card(s) by name, for a time or for one command."),
    "map": ("map:command", "Run one job per item, without a job file."),
    "each": ("map:each", "Run one command on every card."),
    "resume": ("run:resume", "Go on with a run: everything not yet succeeded."),
    "retry": ("run:retry", "Run again only what failed."),
    "reload": ("changing:reload", "Have a live run read its job file anew."),
    "add": ("changing:add", "Add a command or a file of jobs to a live run."),
    "queue": ("queue:queue", "Your standing run: add brings jobs to it from anywhere."),
    "set": ("changing:set_", "Set fields of jobs that wait in a live run."),
    "finish": ("changing:finish", "Tell a standing run that no more jobs come."),
    "wait": ("live:wait", "Wait for a run's end; exit as it did."),
    "drain": ("live:drain", "Give cards of a live run back to the others."),
    "status": ("status:status", "Show every job's state, and why jobs wait."),
    "top": ("top:command", "Watch a run on the whole screen, live or afterwards."),
    "report": ("status:report", "Write a run's report.html: its night in one page."),
    "results": ("results:results", "Show what each job came to, as a table."),
    "logs": ("logs:command", "Read or follow logs."),
    "clean": ("clean:command", "Remove what failed attempts left, or whole old runs."),
    "cancel": ("live:cancel", "Stop jobs, or a whole run, from another terminal."),
    "ps": ("machine:ps", "List the runs alive on this machine."),
    "gpus": ("machine:gpus", "Show the cards, who uses them and who leases them."),
    "check": ("check:check", "Validate a job file and print its plan."),
    "config": ("machine:config", "Print what the configuration says, and where."),
    "doctor": ("machine:doctor", "Say what is wrong with this machine."),
    "init": ("init:command", "Write a starter job file, or replace the masks of a script."),
    "mcp": ("machine:command", "Serve programs that speak the Model Context Protocol."),
    "schema": ("check:schema", "Print the job file's JSON Schema, or explain a field."),
    "completion": ("completion:command", "Print a shell's completion script."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # which completion has
            click.echo(ctx.get_help(), err=True)
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = resolve_name(f"gpulaunch.cli.{COMMANDS[name][0]}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from gpulaunch.cli.habits import instead_of_command

            ours = instead_of_command(args[0], list(COMMANDS))
            raise click.UsageError(f"there is no command {args[0]!r}{ours}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        named = ((name, text) for name, (_, text) in COMMANDS.items())
        return [CompletionItem(n, help=text) for n, text in named if n.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"gpulaunch {with_commit(__version__, commit())}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version, and the commit it is of.",
)
def cli() -> None:
    """One job list, one command: every job on its own GPU, with a log, an exit code and a reason.

    \b
    gpulaunch run jobs.yaml                 the list, on every card here
    gpulaunch exec -- python predict.py     where CUDA_VISIBLE_DEVICES=1 python predict.py stood
    gpulaunch map chai-lab fold {{path}} {{out}} ::: inputs/*.fasta
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    if not sys.platform.startswith("linux"):
        return complain("gpulaunch runs on Linux only: it relies on its process control", USAGE)
    if trouble := _open_streams():
        return complain(trouble, USAGE)
    if asked_of_shell := os.environ.get(ASKED):
        return answer(cli, asked_of_shell)
    argv = sys.argv[1:] if argv is None else argv
    asked = AskedForJson()
    try:
        return _called(list(argv), asked)
    except GpulaunchError as error:
        found, what = getattr(error, "found", ()), getattr(error, "what", "the job file")
        return complain(str(error), error.status, asked.json, found, what)
    except click.ClickException as error:
        # `exec` and `hold` have the statuses of their command: own mistakes must not look like one.
        status = EXEC_OWN_FAILURE if argv and argv[0] in ("exec", "hold") else USAGE
        return complain(_usage(error), status, asked.json or asks_for_json(error, argv))
    except click.Abort:
        return 130
    except BrokenPipeError:
        _silence_stdout()  # the reader is gone (`| head`)
        return 141
    except OSError as error:
        if error.errno not in DISK_TROUBLE:
            if is_nowhere():
                return complain(NOWHERE, USAGE, asked.json)
            raise
        if error.filename is None:
            _silence_stdout()
            return complain(f"standard output: {error.strerror}", USAGE)
        return complain(
            f"{os.fsdecode(error.filename)}: {error.strerror}", NOT_RECORDED, asked.json
        )
    except KeyboardInterrupt:
        return 130


def _called(argv: list[str], asked: AskedForJson) -> int:
    result = cli.main(argv, "gpulaunch", standalone_mode=False, obj=asked)
    sys.stdout.flush()
    return result if isinstance(result, int) else 0


def _open_streams() -> str:
    """Open standard streams that the caller closed (`>&-`) on /dev/null, before files get them.

    Returns why they cannot be opened, empty for nothing.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            try:
                fd = os.open(os.devnull, os.O_RDWR)
            except OSError as error:
                return f"{name} is closed, and {os.devnull} cannot stand in: {error.strerror}"
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    return ""


def _silence_stdout() -> None:
    """Send standard output to /dev/null: the rest of its buffer would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context:
        return f"there is no option {error.option_name}{_other_option(error.option_name, context)}"
    text = error.format_message()
    if isinstance(error, click.MissingParameter):
        text = " ".join(text.split())  # one line: click lists choices on a line each
    return f"{text} (see: {context.command_path} -h)" if context else text


def _other_option(option: str, context: click.Context) -> str:
    from gpulaunch.cli.habits import instead_before_a_command

    if isinstance(context.command, click.Group):
        return instead_before_a_command(option)
    return instead_of_option(option, context)
