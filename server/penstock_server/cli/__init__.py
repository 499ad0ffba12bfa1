"""`penstock server` and `penstock simulate`."""

from __future__ import annotations

import typer

from penstock_server.cli import access_log, keeping, tokens
from penstock_server.operate.server_doctor import doctor

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def server() -> None:
    """Run the coordinator: it pools what sites release, and holds no private row.

    In this order: init, enrol (once a site), token add (once an analyst), start.
    Then: access, which shows who came and what was read.
    """


app.add_typer(tokens.token_app, name="token")
app.command()(doctor)
app.command()(keeping.init)
app.command()(keeping.enrol)
app.command()(keeping.sites)
app.command()(access_log.access)
app.command()(keeping.pool)
app.command()(keeping.start)
