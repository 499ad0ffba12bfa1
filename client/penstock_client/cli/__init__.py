"""`penstock site`: everything a data steward does.

The commands live in rooms: :mod:`setup`, :mod:`daemon`, :mod:`steward`, :mod:`trust`,
:mod:`pinning`, :mod:`ledger`.
"""

from __future__ import annotations

import typer

from penstock_client.cli import daemon, ledger, pinning, setup, steward, trust
from penstock_client.operate.site_doctor import doctor

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


@app.callback()
def site() -> None:
    """Keep a site's gate: rows stay, only differentially private releases leave.

    In this order: init, (edit dictionary.toml and policy.toml), check,
    join, trust add, start. Then: requests, preview, and approve or reject.
    For one release of many sites also peers add.
    """


app.command()(setup.init)
app.command()(setup.check)
app.command()(setup.recoding)
app.command()(setup.join)
app.command()(daemon.start)
app.command()(daemon.stop)
app.command()(daemon.status)
app.command()(doctor)
app.command()(steward.requests)
app.command()(steward.preview)
app.command()(steward.approve)
app.command()(steward.reject)
app.add_typer(trust.app, name="trust")
app.add_typer(pinning.app, name="peers")
app.add_typer(ledger.app, name="ledger")
app.command()(daemon.gate)
app.command()(daemon.network)
app.command()(setup.node_key)
