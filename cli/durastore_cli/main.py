"""The entry point: finds the command, runs it, turns errors into messages and exit codes.

Duty: a group that imports a command only when it is called (so `--help` is quick), and the one place where exceptions
end. stdout belongs to results; everything here goes to stderr. Must never decide anything about data.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

import click

from durastore import __version__
from durastore.errors import DurastoreError
from durastore.observe.events import LOGGER
from durastore_cli.completion import complete_paths
from durastore_cli.exits import EPILOG
from durastore_cli.next_step import AGAIN, next_step
from durastore_cli.progress import Ticker
from durastore_cli.render import shown

__all__ = ["COMMANDS", "cli", "main", "run"]

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "adopt": ("durastore_cli.adopt", "Bring existing files under inventory, as they are or as samples."),
        "artifacts": ("durastore_cli.artifacts", "Keep folders (checkpoints, data, scripts) as snapshots."),
        "demo": ("durastore_cli.demo", "Extract, upload, prove and read back a small real data set."),
        "doctor": ("durastore_cli.doctor", "After a crash: is it safe to go on, and with which command?"),
        "drain": ("durastore_cli.drain", "Bring what ended processes left in a spool root to the bucket."),
        "export": ("durastore_cli.export", "Get samples out of the bucket as the files of another tool."),
        "extract": ("durastore_cli.extract", "Run a model over INPUT and store its hidden states."),
        "get": ("durastore_cli.get", "Get samples out of the bucket into files."),
        "ls": ("durastore_cli.ls", "List the samples of a bucket."),
        "manifest": (
            "durastore_cli.manifest",
            "Show the manifest, write it in one piece, or rebuild it from the packs.",
        ),
        "migrate": ("durastore_cli.migrate", "Copy a tree or a spool root to another disk, and prove the copy."),
        "monitor": ("durastore_cli.monitor", "Serve a live page about the runs in spool roots."),
        "probe": ("durastore_cli.probe", "Find out what the endpoint really checks, by sending it lies."),
        "quarantine": ("durastore_cli.quarantine", "Show the files that were set aside, or move one out."),
        "status": ("durastore_cli.status", "Show what a spool root holds, also while it is in use."),
        "verify": ("durastore_cli.verify", "Look whether the bucket still holds what its manifest says."),
        "reconcile": (
            "durastore_cli.reconcile",
            "Compare local files, records and the bucket; repair.",
        ),
        "stop": ("durastore_cli.stop", "Ask the processes that work on a spool root to stop."),
    }
)


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return complete_paths(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; a name that is nearly one of ours is told which."""
        if args[0] not in COMMANDS:
            from difflib import get_close_matches

            if near := get_close_matches(args[0], COMMANDS, n=2):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from the table above, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.command(cls=_LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="durastore")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, *, debug: bool) -> None:
    """Durable storage for what models produce: local spool, proven uploads, verified reclaim."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # stderr has one progress, ours; libraries below draw their own bars
    handler = logging.StreamHandler()  # stderr
    handler.setFormatter(logging.Formatter("durastore: %(message)s"))
    LOGGER.addHandler(handler)
    level = LOGGER.level
    LOGGER.setLevel(logging.DEBUG if debug else logging.INFO)

    def leave() -> None:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)  # a program that runs commands in its own process has its own wishes

    ctx.call_on_close(leave)


def _report(exc: BaseException, *, is_debug: bool) -> int:
    if isinstance(exc, DurastoreError):
        click.echo(f"durastore: {exc.message} [{exc.code}]", err=True)
    elif isinstance(exc, OSError) and exc.filename is not None and exc.strerror is not None:  # the system's own word
        click.echo(f"durastore: {shown(os.fsdecode(exc.filename))}: {exc.strerror} [error]", err=True)
    else:
        click.echo(f"durastore: unexpected {type(exc).__name__}: {exc}", err=True)
    if hint := next_step(exc):
        click.echo(f"hint: {hint}", err=True)
    if is_debug:
        click.echo("".join(traceback.format_exception(exc)), err=True, nl=False)
    return exc.exit_code if isinstance(exc, DurastoreError) else 1


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Raises nothing but what ends the process anyway."""
    is_debug = "--debug" in arguments
    try:
        words = tuple(arguments)  # for commands that keep what was typed
        result = cli.main(args=list(words), prog_name="durastore", standalone_mode=False, obj=words)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message(), err=True)
        return 2
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        Ticker.print_last()
        click.echo(f"durastore: interrupted; {AGAIN}", err=True)
        return 130
    except BrokenPipeError:
        # Whoever read our stdout has gone; the interpreter must not fail once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as exc:  # noqa: BLE001 - the one place where errors become exit codes
        return _report(exc, is_debug=is_debug)


def main() -> None:
    """What the `durastore` script calls."""
    code = run(sys.argv[1:])
    gc.freeze()  # all that had to be closed is closed: the interpreter need not look through everything as it ends
    sys.exit(code)


if __name__ == "__main__":
    main()
