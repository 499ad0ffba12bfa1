"""The root command: finds the groups that the installed parts bring, and imports one at a time."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click
import typer
from typer.core import TyperGroup

from penstock import __version__
from penstock.base.checks import closest
from penstock.cli.console import usage_as_json
from penstock.cli.exits import EPILOG

GROUP = "penstock.commands"

# In the order of a newcomer's path; names that other packages add come after these.
HELP = {
    "demo": "See all of it work: simulated hospitals, real processes, real TLS, one report.",
    "key": "Make the key that signs your studies, and show its fingerprint.",
    "login": "Keep a coordinator's address and your token for the commands below.",
    "study": "Ask a question of many sites: new, check, plan, submit, status, close, cancel.",
    "pull": "Fetch a study's report and its pooled synthetic data.",
    "analyse": "Ask what was released further questions, at no further cost.",
    "logout": "Forget a saved login.",
    "site": "Keep a site: init, check, join, trust, start, requests, approve, ledger, doctor.",
    "server": "Run the coordinator: init, enrol, token, start, sites, doctor.",
    "audit": "Attack the package's own privacy claims, on made-up worst cases.",
    "simulate": "Write simulated cohorts with a known truth.",
}


class LazyGroup(TyperGroup):
    """Loads a group's module when one of its commands is called."""

    _resolving = False

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        self._resolving = True
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if not args or args[0] in _find_entry_points():
                raise
            raise click.UsageError(
                _explain_unknown(args[0], self.list_commands(ctx)), ctx
            ) from None
        finally:
            self._resolving = False

    def invoke(self, ctx: click.Context) -> Any:
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if as_json:
                usage_as_json(error)
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = _find_entry_points()
        return [n for n in HELP if n in found] + sorted(set(found) - set(HELP))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        point = _find_entry_points().get(cmd_name)
        if point is None:
            return None
        if not self._resolving:
            # The list of commands needs their names and one line each, not their modules.
            return click.Command(cmd_name, help=HELP.get(cmd_name, ""))
        try:
            app: Any = point.load()
        except ModuleNotFoundError as error:
            extra = {"site": "site", "server": "server", "demo": "server"}.get(cmd_name, "server")
            typer.echo(
                f"error: `penstock {cmd_name}` needs {error.name}: pip install 'penstock[{extra}]'",
                err=True,
            )
            raise typer.Exit(1) from None
        command = typer.main.get_command(app)
        command.name = cmd_name
        _suggest_once(command)
        return command


def _explain_unknown(name: str, known: Sequence[str]) -> str:
    """No such command; the nearest one, or the groups that have one of that name."""
    within = [f"penstock {group} {name}" for group in known if name in _list_commands(group)]
    if within:
        hint = f" It is within a group: {' or '.join(f'`{each}`' for each in within)}."
    else:
        hint = closest(name, known) or ""
    return f"No such command {name!r}.{' ' if hint and not within else ''}{hint}"


def _list_commands(group: str) -> list[str]:
    """The commands that a group's one line of help names."""
    _, _, names = HELP.get(group, "").partition(": ")
    return [each for each in names.rstrip(".").split(", ") if " " not in each]


def _suggest_once(command: click.Command) -> None:
    """Click names the nearest command since its version 8.4; typer would do it once more."""
    if isinstance(command, TyperGroup) and hasattr(click.exceptions, "NoSuchCommand"):
        command.suggest_commands = False
        for each in command.commands.values():
            _suggest_once(each)


def _find_entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and stop.",
    ),
) -> None:
    """Federated, differentially private synthetic data.

    Hospitals keep their rows. A gate at each site lets out only
    differentially private synthetic tables, metered by a ledger.
    A coordinator pools them into a report.

    See it work: demo. Analysts: key, login, study, pull, analyse. Data stewards: site.
    Who runs the coordinator: server.
    """


def main() -> None:
    """Console script."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has no ε gets a "?" for it, never a crash.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()
