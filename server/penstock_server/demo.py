"""`penstock demo`: the whole path on one machine, by the commands that people use.

Simulated cohorts with a known truth; for each the daemon that a hospital runs, with its own keys
and ledger; the coordinator's daemon; Flower and TLS between them on the loopback interface; an
analyst who signs a study. Nothing is mocked: this module only spawns `penstock` commands.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.checks import Checks
from penstock.base.errors import JobFailed
from penstock.base.times import stamp_seconds, utc_now
from penstock.cli.console import done, err, friendly, say
from penstock.cli.joins import gather, read_joins
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.joint.consortium import SHARED
from penstock.privacy.request import advised_delta
from penstock.study.planning import NOTHING
from penstock.study.scope import EACH
from penstock.study.toml import draft_study
from penstock_server.mechanisms.registry import words_of
from penstock_server.report.contents import SECTIONS
from penstock_server.simulate.scenarios import DEFAULT, SCENARIOS, Scenario

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_VARIABLES = (
    "PENSTOCK_COORDINATOR",
    "PENSTOCK_SERVER",
    "PENSTOCK_SITE",
    "PENSTOCK_STORE",
    "PENSTOCK_TOKEN",
)
"""Of the person who runs the demo; its own processes are told where to look."""

READY_SECONDS, READY_SECONDS_EACH = 90.0, 15.0
"""How long the daemons may take to come up: for any number of sites, and more for each of them."""

STOP_SECONDS = 30.0

FORECAST_RUNS = 5
"""At each site's size: what privacy adds is known to about a third, within a few seconds."""

POLICY = """\
mechanisms = {mechanisms}
guarantees = ["formal"]
approval = "automatic"

[limits]
study_epsilon = {epsilon}
study_delta = 1e-5
total_epsilon = {total}
total_delta = 1e-5

[time]
slot_seconds = 5
"""


@app.command()
@friendly
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the results go.")] = Path(
        "penstock-demo"
    ),
    mechanism: Annotated[
        str, typer.Option("--mechanism", "-m", help=f"How sites release: {', '.join(SCENARIOS)}.")
    ] = DEFAULT,
    sites: Annotated[int, typer.Option(help="How many cohorts, 2 to 12; trajectory: 4.")] = 4,
    epsilon: Annotated[float, typer.Option(help="ε that the study asks of each site.")] = 3.0,
    together: Annotated[
        bool, typer.Option("--global", help="One release of all sites, from sums of them.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the simulated cohorts (never of the noise).")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep sites and coordinator, and say where they are.")
    ] = False,
) -> None:
    """See all of it work: simulated cohorts with a known truth, real processes, a report.

    Does blood pressure raise the hazard of cardiovascular disease, after age and cholesterol?
    Each site answers with synthetic rows at the ε you name (or, with gibbs and scoring, with
    coefficients only); the report shows the truth beside. With trajectory: what becomes of patients
    who are seen once a year until they die or are lost, in eight questions of different kinds?

    With --global the sites make one release together: in rounds they add up what they know, each
    with a share of the noise, and nobody sees a site's own part.
    """
    check = Checks("demo")
    check.choice("--mechanism", mechanism, tuple(SCENARIOS))
    check.done()
    scenario = SCENARIOS[mechanism]()
    check.whole("--sites", sites, 2, len(scenario.sites))
    check.number("--epsilon", epsilon, "a finite number above 0", above=0)
    if together and not MECHANISMS.of(scenario.mechanism).summed:
        check.add("--global", "is not for what is no sum", value=mechanism)
    check.done()
    scenario = replace(scenario, sites=scenario.sites[:sites])
    # Short, because Unix socket paths end at 107 bytes.
    work = Path(tempfile.mkdtemp(prefix="penstock-"))
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            Demo(work, out, scenario, epsilon, seed, stack, together=together).run()
    finally:
        if keep:
            say(f"sites and coordinator are kept in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    say(f"took {time.monotonic() - began:.0f} s; nothing is left running")


class Demo:
    """One run; processes end with ``stack``.

    Args:
        work: a short path, in which everything happens; out: where results go.
        epsilon: of a study, at each site; studies: so many of them fit into a site's budget.
        seed: of the simulated cohorts.
        together: whether all sites make one release.
    """

    def __init__(
        self,
        work: Path,
        out: Path,
        scenario: Scenario,
        epsilon: float,
        seed: int,
        stack: ExitStack,
        studies: int = 1,
        *,
        together: bool = False,
    ) -> None:
        self.work, self.out, self.scenario, self.together = work, out, scenario, together
        self.epsilon, self.seed, self.stack = epsilon, seed, stack
        # Sampled steps weigh more at the order of the data set's budget than by themselves.
        self.total = 2.0 * studies * epsilon
        self.port = _free_port()
        self.url = f"https://localhost:{self.port}"
        # The analyst's login of the demo is kept apart from the person's own.
        self.environment = {**os.environ, "PENSTOCK_CONFIG": str(work / "analyst")}
        for name in _VARIABLES:
            self.environment.pop(name, None)
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        """From simulated rows to a report."""
        self.start()
        self.forecast(self.scenario)
        self.ask(self.scenario)
        say("8. Pull the pooled results and the report")
        self.command("pull", self.scenario.study, "--out", str(self.out.resolve()))
        self.answer()

    def start(self) -> None:
        """Simulate, and set coordinator, sites and analyst up, until all of them are heard of."""
        sites = self.scenario.sites
        say(f"1. Simulate {len(sites)} cohorts with a known {self.scenario.known}")
        self.simulate()
        say(f"2. Start the coordinator: its one port is {self.url}, over TLS")
        where = ("-d", "coordinator")
        at = ("--name", "localhost", "--bind", "127.0.0.1", "--port", str(self.port))
        self.command("server", "init", *where, *at, "--truth", "data/truth.json")
        self.process("server", "start", *where)
        say("3. Each site makes its keys, checks its rows, and trusts the analyst's key")
        self.command("key", "new", "analyst.key")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.prepare_site, sites))
        if self.together:
            say("   Stewards pin the gates of the other sites, whose sums hide what each one adds")
            for name in sites:
                others = [f"{other}/join.json" for other in sites if other != name]
                self.command("site", "peers", "add", *others, "--dir", name)
        say("4. Each site is enrolled, joins, and starts its daemon")
        for name in sites:
            self.command("server", "enrol", f"{name}/join.json", *where)
            self.command("site", "join", f"{name}/invite-{name}.json", "--dir", name)
            self.process("site", "start", "--dir", name)
        self.log_in()
        self.await_sites()

    def simulate(self) -> None:
        """Write rows and dictionary of each site, and the truth, below ``data``."""
        names = [a for name in self.scenario.sites for a in ("--site", name)]
        kind, seed = self.scenario.simulate, str(self.seed)
        self.command("simulate", kind, "--out", "data", "--seed", seed, *names)

    def forecast(self, asked: Scenario) -> None:
        """What the answer will be worth, from the sites' frames and what is expected of them."""
        if asked.planning == NOTHING:
            return
        say("5. The analyst forecasts what the answer will be worth: no site is asked or charged")
        (self.work / "study.toml").write_text(self.study(asked))
        joins = [a for name in asked.sites for a in ("--join", f"{name}/join.json")]
        self.command("study", "plan", "study.toml", *joins, "--runs", str(FORECAST_RUNS), show=True)

    def ask(self, asked: Scenario, seconds: float | None = None) -> None:
        """Hand in a study, and wait for its end; no longer than so many seconds."""
        say(f"6. The analyst signs a study at ε = {self.epsilon:g} and hands it in")
        (self.work / "study.toml").write_text(self.study(asked))
        self.command("study", "submit", "study.toml", "-k", "analyst.key")
        what = words_of(asked.mechanism.name).released
        if self.together:
            say(
                f"7. Round by round all sites add up, under their ledgers, to {what.lower()} of all"
            )
        else:
            say(f"7. Each site draws under its ledger, and releases {what} only")
        self.command("study", "status", asked.study, "--wait", show=True, seconds=seconds)

    def log_in(self) -> None:
        """The admin makes a token, and the analyst keeps it; it is on no command line."""
        where = ("-d", "coordinator")
        add = ("server", "token", "add", "analyst", "--key", "analyst.pub", *where, "--json")
        made = json.loads(self.command(*add))
        ca = ("--ca", "coordinator/tls/ca.crt")
        self.await_coordinator()
        self.command("login", self.url, *ca, text=made["token"] + "\n")

    def prepare_site(self, name: str) -> None:
        """What a steward does, by hand, at one site."""
        at = ("--dir", name)
        source = self.work / "data" / name
        site = self.work / name
        site.mkdir(mode=0o700)
        shutil.copy(source / "dictionary.toml", site)
        data = str(source / "data.csv")
        self.command("site", "init", *at, "--name", name, "--from", data)
        limits = {"epsilon": float(self.epsilon), "total": self.total}
        policy = POLICY.format(mechanisms=json.dumps(MECHANISMS.names), **limits)
        (site / "policy.toml").write_text(policy)
        self.command("site", "check", *at, "--accept")
        allowed = ("--epsilon", str(self.total), "--expires", "2099-12-31")
        trust = ("--label", "analyst", *allowed)
        self.command("site", "trust", "add", "analyst.pub", *at, *trust)

    def study(self, asked: Scenario) -> str:
        """The study's text, before it is signed."""
        moment = utc_now().replace(microsecond=0)
        joins = read_joins([self.work / name / "join.json" for name in asked.sites])
        scope = gather(joins, asked.sites, "main", SHARED) if self.together else EACH
        return draft_study(
            asked.schema,
            name=asked.study,
            title=asked.title,
            sites=asked.sites,
            federation="main",
            not_before=stamp_seconds(moment - timedelta(minutes=1)),
            expires=stamp_seconds(moment + timedelta(days=1)),
            epsilon=self.epsilon,
            delta=advised_delta(max(join.persons for join in joins.values())),
            aggregation=scope,
            estimands=asked.estimands,
            mechanism=asked.mechanism,
            planning=asked.planning,
        )

    def answer(self) -> None:
        report = json.loads((self.out / "report.json").read_text())
        for estimand in report["estimands"]:
            done(estimand["sentence"])
            say(f"  the truth that was simulated: {estimand['truth']['value']:.3f}")
        for section in SECTIONS:
            for picture in section.draw(report):
                picture.save(self.out / picture.name)
                done(f"{picture.what}: {self.out / picture.name}")
        done(f"report: {self.out / 'report.html'}")

    # -- processes -----------------------------------------------------------------------------

    def command(
        self, *args: str, show: bool = False, text: str = "", seconds: float | None = None
    ) -> str:
        """Run one `penstock` command to its end; its output is shown if it fails."""
        streams = None if show else subprocess.PIPE
        process = subprocess.run(
            _compose_command(args),
            cwd=self.work,
            env=self.environment,
            input=text,
            stdout=streams,
            stderr=streams,
            text=True,
            check=False,
            timeout=seconds,
        )
        if process.returncode:
            if not show:
                err.print((process.stdout + process.stderr)[-2000:], markup=False)
            raise JobFailed(f"penstock {' '.join(args[:2])} failed", value=process.returncode)
        return process.stdout or ""

    def process(self, *args: str) -> None:
        """Start a `penstock` daemon that ends with the demo."""
        name = "-".join(a for a in args if not a.startswith("-"))
        with open(self.work / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                _compose_command(args), cwd=self.work, env=self.environment, stdout=log, stderr=log
            )
        self.children[name] = child
        self.stack.callback(_end, child)

    def await_coordinator(self) -> None:
        def answers() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                    return True
            except OSError:
                return False

        self.await_that(answers, "the coordinator did not come up")

    def await_sites(self) -> None:
        """Wait until the coordinator has heard of every site."""

        def heard() -> bool:
            found = json.loads(self.command("server", "sites", "-d", "coordinator", "--json"))
            return all(site["seen"] for site in found)

        self.await_that(heard, "not every site connected")

    def await_that(self, done: Callable[[], bool], problem: str) -> None:
        """Wait for a condition; if a daemon ended instead, say what it said."""
        patience = READY_SECONDS + READY_SECONDS_EACH * len(self.scenario.sites)
        deadline = time.monotonic() + patience
        while not done():
            for name, child in self.children.items():
                if child.poll() is not None:
                    said = (self.work / f"{name}.log").read_text()
                    raise JobFailed(f"{name} ended", value=said[-500:])
            if time.monotonic() > deadline:
                raise JobFailed(problem, value=f"after {patience:g} s", remedy="see --keep")
            time.sleep(0.5)


def _compose_command(args: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "penstock", *args]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
