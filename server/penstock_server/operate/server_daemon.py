"""The coordinator's processes: SuperLink, runner, builder and api, under one supervisor."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from penstock.base.errors import CoordinatorError
from penstock.processes.supervisor import (
    Child,
    Supervisor,
    make_flower_environment,
    make_plain_environment,
    python_command,
)
from penstock_server.install.configuration import Settings, read_settings
from penstock_server.install.founding import open_coordinator, renew_certificate
from penstock_server.store.folder import Folder
from penstock_server.transport.pump import hold_pump


def serve(
    root: Path, *, tell: Callable[[str], None], ready: Callable[[str], None] = lambda _: None
) -> None:
    """Run until SIGTERM or SIGINT. Blocks.

    Args:
        tell: takes short lines on what the processes do.
        ready: called with host:port when all of them run.

    Raises:
        CoordinatorError: none there, it runs already, or its port is taken.
    """
    folder, settings = Folder(root), read_settings(root)
    open_coordinator(root).store.close()  # a store that cannot be used is told now
    folder.check()
    folder.make()
    with _hold_daemon_lock(folder):
        if renew_certificate(root):
            tell("the server's certificate was renewed")
        _check_port(settings.bind, settings.port)
        supervisor = Supervisor(
            list_children(folder, settings), tell=tell, on_ready=lambda: ready(settings.address)
        )
        supervisor.run()


def list_children(folder: Folder, settings: Settings) -> list[Child]:
    """The four processes, in the order in which they start."""
    root = str(folder.root)
    # libpq's own variables: a password file, or how strictly to use TLS.
    libpq = {k: v for k, v in os.environ.items() if k.startswith("PG")}
    flower = {**make_flower_environment(folder.home), **libpq}
    plain = {**make_plain_environment(), **libpq}  # it has the store to talk to, and nobody else
    modules: list[tuple[str, str, dict[str, str], Callable[[Folder], bool]]] = [
        ("superlink", "penstock_server.transport.flower.superlink", flower, _is_listening_locally),
        ("runner", "penstock_server.transport.flower.runner", flower, _is_pumping),
        ("builder", "penstock_server.operate.builder", plain, _is_started),
        ("api", "penstock_server.api.serve", flower, partial(_is_listening, settings=settings)),
    ]
    return [
        Child(
            name,
            python_command(module, root),
            environment=environment,
            log=folder.logs / f"{name}.log",
            ready=partial(ready, folder),
        )
        for name, module, environment, ready in modules
    ]


def _is_started(_: Folder) -> bool:
    """The builder answers nobody: nothing waits for it but results."""
    return True


def _is_listening_locally(folder: Folder) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(folder.superlink_socket))
    return True


def _is_pumping(folder: Folder) -> bool:
    """Whether the runner holds the pump's lock."""
    try:
        with hold_pump(folder):
            return False
    except CoordinatorError:
        return True


def _is_listening(folder: Folder, *, settings: Settings) -> bool:
    host = settings.bind if settings.bind not in ("0.0.0.0", "::", "") else "localhost"
    with socket.create_connection((host, settings.port), timeout=1.0):
        return True


def _check_port(bind: str, port: int) -> None:
    """Say that a port is taken before anything starts, instead of trying for ever."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((bind, port))
    except OSError as error:
        raise CoordinatorError(
            "the port cannot be used",
            value=f"{bind}:{port}, {error.strerror}",
            remedy="stop what listens there, or change `port` in coordinator.json",
        ) from None


@contextmanager
def _hold_daemon_lock(folder: Folder) -> Iterator[None]:
    """The lock ends with the process, however it ends."""
    with open(folder.run / "daemon.lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CoordinatorError("this coordinator runs already", value=folder.root) from None
        yield
