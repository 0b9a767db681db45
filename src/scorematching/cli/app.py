"""Programs: options that all have, and errors of one line."""

import sys
from typing import Annotated, Any, cast

import typer

from scorematching import __version__
from scorematching._program import INTERRUPTED, say_interrupted
from scorematching.cli.pipes import READER_GONE, discard_output, is_reader_gone

DataDir = Annotated[
    str | None, typer.Option(help="Folder with data files; default: SCOREMATCHING_DATA.")
]


def make_app(name: str, summary: str) -> typer.Typer:
    """A typer program without commands yet, with the options that all programs have.

    Args:
        name: what a user types to run it.
        summary: one line for its help.
    """
    app = typer.Typer(
        name=name,
        help=summary,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help, which fits a screen
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app


def run_app(app: typer.Typer, arguments: list[str] | None = None) -> int:
    """Run a typer program; an error is one line on standard error and a non-zero exit.

    Args:
        app: the program.
        arguments: its command line; None is that of the process.

    Returns:
        The exit status: 0, 1 for an error, 2 for a mistake in the command line, 3 if some fits of
        ``fit --tune`` failed, 130 if interrupted,
        141 if the reader of its output has gone, as in ``scorematching datasets | head -1``.
    """
    try:
        return _run(app, sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:
        discard_output()
        return READER_GONE


def _run(app: typer.Typer, arguments: list[str]) -> int:
    """The exit status of a program.

    Raises:
        BrokenPipeError: if the reader of its output has gone.
    """
    # Accepted anywhere, since one adds it to a command that has failed.
    words = [word for word in arguments if word != "--debug"]
    try:
        status = app(args=words, standalone_mode=False)
    except SystemExit as leaving:
        if is_reader_gone(leaving):
            raise BrokenPipeError from leaving
        return int(leaving.code or 0)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:
        is_usage = hasattr(error, "format_message")
        if is_reader_gone(error) or ("--debug" in arguments and not is_usage):
            raise
        message = cast("Any", error).format_message() if is_usage else error
        if type(error).__name__ == "NoArgsIsHelpError":  # of click, whose copy typer may have
            print(message, file=sys.stderr)
        elif message:  # empty where typer has shown the help
            print(f"{app.info.name}: {' '.join(str(message).split())}", file=sys.stderr)
        return 2 if is_usage else 1
    if status == INTERRUPTED:  # which is also what typer returns then
        say_interrupted(app.info.name)
    return status if isinstance(status, int) else 0


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"scorematching {__version__}")
        raise typer.Exit


def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """The options of every program; `run_app` and `_show_version` act on them."""
