"""Units, compose file and the page about them: every command parses, and all agree on the paths."""

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import typer
import yaml

from penstock.cli.main import app

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PAGES = (ROOT / "docs" / "deployment.md", DEPLOY / "README.md", ROOT / "README.md")
UNITS = ("coordinator", "gate", "network")
PROGRAM = "/opt/penstock/bin/penstock"
SITE, NETWORK, COORDINATOR, RUN = (
    "/var/lib/penstock",
    "/var/lib/penstock-network",
    "/var/lib/penstock-coordinator",
    "/run/penstock",
)
ALIASES = {"steward": ["site"], "coordinator": ["server"]}
"""What the page defines as aliases of ``penstock``."""


# -- the real command line, parsed and not run -------------------------------------------------


def parse(arguments: list[str]) -> dict[str, object]:
    """The parameters of the command that ``penstock ARGUMENTS`` would run.

    Raises:
        click.UsageError: no such command or option, or an argument is missing.
    """
    command: click.Command = typer.main.get_command(app)
    parent, rest = None, arguments
    while True:
        context = command.make_context(command.name, list(rest), parent=parent)
        if not isinstance(command, click.Group):
            return context.params
        rest = [*context._protected_args, *context.args]
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        parent, command = context, found


@pytest.mark.parametrize(
    "wrong",
    [
        "site gate --no-such-option",
        "site no-such-command",
        "site network /var/lib/penstock-network",  # --gate is missing
        "server start more than it takes",
    ],
)
def test_what_the_command_line_does_not_know_is_found(wrong):
    with pytest.raises(click.UsageError):
        parse(wrong.split())


# -- systemd -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """A unit's settings: key to all its values, comments left out."""

    path: Path
    values: dict[str, list[str]]

    def __getitem__(self, key: str) -> str:
        (value,) = self.values[key]
        return value


def unit(name: str) -> Unit:
    path = DEPLOY / "systemd" / f"penstock-{name}.service"
    values: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            key, found, value = line.partition("=")
            assert found, line
            values.setdefault(key, []).append(value)
    return Unit(path, values)


def test_there_are_three_units():
    found = {p.name for p in (DEPLOY / "systemd").iterdir()}
    assert found == {f"penstock-{name}.service" for name in UNITS}


@pytest.mark.parametrize("name", UNITS)
def test_a_units_command_parses(name):
    program, *arguments = shlex.split(unit(name)["ExecStart"])
    assert program == PROGRAM
    assert parse(arguments)


def test_units_agree_on_paths():
    gate, network, coordinator = unit("gate"), unit("network"), unit("coordinator")
    asked = parse(shlex.split(network["ExecStart"])[1:])
    assert asked["gate"] == f"{RUN}/gate.sock"
    assert asked["directory"] == NETWORK == network["ReadWritePaths"]
    assert gate["Environment"] == f"PENSTOCK_RUN={RUN}"
    assert Path("/run", gate["RuntimeDirectory"]) == Path(RUN)
    site = parse(shlex.split(gate["ExecStart"])[1:])["directory"]
    assert Path(str(site)).is_relative_to(gate["ReadWritePaths"])
    assert gate["AssertPathExists"] == f"{site}/site.toml"
    assert network["AssertPathExists"] == f"{NETWORK}/coordinator.json"
    started = parse(shlex.split(coordinator["ExecStart"])[1:])
    assert str(started["directory"]) == COORDINATOR == coordinator["ReadWritePaths"]
    assert coordinator["AssertPathExists"] == f"{COORDINATOR}/coordinator.json"


def test_the_two_users_of_a_site_share_a_socket_and_nothing_else():
    gate, network = unit("gate"), unit("network")
    assert gate["User"] != network["User"]
    assert gate["Group"] == network["SupplementaryGroups"] == "penstock-gate"
    assert network["Group"] != gate["Group"]
    assert gate["RuntimeDirectoryMode"] == "0750"
    assert network["InaccessiblePaths"] == gate["ReadWritePaths"] == SITE


def test_the_gate_has_no_network():
    gate = unit("gate")
    assert gate["PrivateNetwork"] == "yes"
    assert gate["RestrictAddressFamilies"] == "AF_UNIX"
    assert gate["IPAddressDeny"] == "any"
    assert gate["LimitCORE"] == "0"
    assert not any("proxy" in v.lower() for v in gate.values.get("EnvironmentFile", []))


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_hardened_and_comes_back(name):
    found = unit(name)
    wanted = {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "CapabilityBoundingSet": "",
        "LockPersonality": "yes",
        "ProtectKernelModules": "yes",
        "ProtectKernelTunables": "yes",
        "ProtectKernelLogs": "yes",
        "RestrictNamespaces": "yes",
        "UMask": "0077",
        "Restart": "on-failure",
        "KillMode": "mixed",
        "OOMPolicy": "continue",
    }
    assert {key: found[key] for key in wanted} == wanted
    assert found.values["SystemCallFilter"][0] == "@system-service"
    # Without it a call that is not on the list kills the process.
    assert found["SystemCallErrorNumber"] == "EPERM"
    assert found["User"] != "root"
    # Longer than the supervisors' own grace before SIGKILL.
    assert int(found["TimeoutStopSec"]) > 20


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_knows_every_line(name):
    done = subprocess.run(
        ["systemd-analyze", "verify", unit(name).path], capture_output=True, text=True, check=False
    )
    # Newer than some systems; and Penstock, its page and its users are not installed here.
    passed = ("'RestartSteps'", "'RestartMaxDelaySec'", f"Command {PROGRAM} is not executable")
    lines = [x for x in done.stderr.splitlines() if not any(p in x for p in passed)]
    assert [x for x in lines if "penstock-" in x] == []


# -- containers --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.mark.parametrize("name", UNITS)
def test_a_containers_command_is_the_units(compose, name):
    command = [str(word) for word in compose["services"][name]["command"]]
    assert command == shlex.split(unit(name)["ExecStart"])[1:]


@pytest.mark.parametrize("name", UNITS)
def test_a_container_is_hardened(compose, name):
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ulimits"] == {"core": 0}
    assert service["healthcheck"]["test"][0] == "CMD"
    assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & set(service)
    user = service["user"].split(":")[0]
    assert user.isdigit()
    assert user != "0"


def test_healthchecks_parse(compose):
    for service in compose["services"].values():
        _, program, *arguments = service["healthcheck"]["test"]
        if program == "penstock":
            assert parse(arguments)
        else:
            option, code = arguments
            assert (program, option) == ("python", "-c")
            compile(code, "healthcheck", "exec")


def mounts(service: dict) -> dict[str, str]:
    """Where each named volume is mounted, without its mode."""
    return dict(v.split(":")[:2] for v in service["volumes"])


def test_volumes_keep_rows_from_the_network(compose):
    services = compose["services"]
    assert mounts(services["gate"]) == {"site": SITE, "sockets": RUN}
    assert mounts(services["network"]) == {"network": NETWORK, "sockets": RUN}
    assert mounts(services["coordinator"]) == {"coordinator": COORDINATOR}
    used = {name for service in services.values() for name in mounts(service)}
    assert used == set(compose["volumes"])
    assert services["gate"]["network_mode"] == "none"
    assert "ports" not in services["gate"]
    assert "ports" not in services["network"]
    assert services["gate"]["environment"]["PENSTOCK_RUN"] == RUN


def test_the_image_makes_what_the_containers_mount(compose):
    """Named volumes take owner and mode from the image's directories."""
    text = (DEPLOY / "Dockerfile").read_text()
    made = {
        path: (owner, group, mode)
        for owner, group, mode, path in re.findall(
            r"install -d -o (\d+) -g (\d+) -m (\d+) (\S+)", text
        )
    }
    owners = {n: s["user"].split(":")[0] for n, s in compose["services"].items()}
    gate_group = compose["services"]["gate"]["user"].split(":")[1]
    assert made[SITE][0] == made[RUN][0] == owners["gate"]
    assert made[RUN][1:] == (gate_group, "0750")
    assert compose["services"]["network"]["group_add"] == [gate_group]
    assert made[NETWORK][0] == owners["network"]
    assert made[COORDINATOR][0] == owners["coordinator"]
    assert {made[p][2] for p in (SITE, NETWORK, COORDINATOR)} == {"0700"}
    assert len(set(owners.values())) == 3


def test_the_image_copies_what_exists_and_runs_as_nobody_special():
    text = (DEPLOY / "Dockerfile").read_text()
    names = {
        name for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.M) for name in line.split()
    }
    assert names
    kept = set((DEPLOY / "Dockerfile.dockerignore").read_text().split())
    for name in names:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in kept, f"{name} is not in the build's context"
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.M)
    assert re.findall(r"^USER (\d+):", text, re.M)[-1] != "0"


def test_no_secret_is_a_variable(compose):
    for service in compose["services"].values():
        for name in service["environment"]:
            assert not re.search("PASSWORD|SECRET|TOKEN|STORE", name), name


# -- the page ----------------------------------------------------------------------------------


def commands(page: Path) -> list[str]:
    """Every shell line of the page's code blocks, with continued lines joined."""
    blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", page.read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line[2:] for line in lines if line.startswith(("# ", "$ "))]


def ours(line: str) -> list[str] | None:
    """What ``penstock`` gets in a shell line; None where the line does not call it."""
    words = re.split(r"[<>|]", line)[0]
    found = shlex.split(words, comments=True)
    if found[:2] == ["docker", "compose"]:
        verb = next((w for w in found if w in ("run", "exec")), None)
        if verb is None or "--entrypoint" in found:
            return None
        service = next(i for i, w in enumerate(found) if w in UNITS)
        # The image's entry point is penstock; `exec` has none.
        found = [*(["penstock"] if verb == "run" else []), *found[service + 1 :]]
    if found and found[0] == "runuser":
        found = found[found.index("--") + 1 :]
    if found and found[0] == "env":
        found = found[next(i for i, w in enumerate(found) if i and "=" not in w) :]
    if found and found[0] in ALIASES:
        return [*ALIASES[found[0]], *found[1:]]
    return found[1:] if found and found[0] in ("penstock", PROGRAM) else None


def test_the_aliases_are_the_pages():
    """What stands for ``steward`` and ``coordinator`` is what the page defines."""
    defined = {}
    for line in commands(PAGES[0]):
        if line.startswith("alias "):
            name, _, value = shlex.split(line)[1].partition("=")
            defined[name] = ours(value)
    assert defined == ALIASES


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_of_the_page_parses(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = [(line, ours(line)) for line in commands(page)]
    called = [(line, arguments) for line, arguments in found if arguments is not None]
    assert called
    for line, arguments in found:
        named = re.search("penstock (site|server) ", line) and not line.startswith("alias ")
        assert arguments is not None or not named, f"not understood: {line}"
    for line, arguments in called:
        try:
            parse(arguments)
        except click.exceptions.Exit:
            pass  # --help
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_the_page_makes_the_users_and_directories_of_the_units():
    text = PAGES[0].read_text()
    for name in UNITS:
        found = unit(name)
        assert f" {found['User']}\n" in text
        assert found["ReadWritePaths"] in text
    assert "groupadd --system penstock-gate" in text
    assert "--groups penstock-gate penstock-net" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", page.read_text())
    assert links
    for target, anchor in links:
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
            assert anchor[1:] in slugs, anchor
