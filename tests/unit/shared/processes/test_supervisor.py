"""The supervisor, with real processes: restarts, order, and nothing left behind."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time

import psutil
import pytest

from penstock.processes import supervisor as module
from penstock.processes.stop_flag import StopFlag
from penstock.processes.supervisor import Child, Supervisor, make_flower_environment, python_command

LONG = 300.0


def until(condition, seconds=30.0):
    """Poll for a condition; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail("it never came true")
        time.sleep(0.01)
    return value


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def script(text, *args):
    return (sys.executable, "-c", text, *map(str, args))


# Adds its process id to a file, then waits for a signal.
STAY = "import os,sys,time\nopen(sys.argv[1],'a').write(f'{os.getpid()}\\n')\ntime.sleep(300)"


def pids(path):
    text = path.read_text() if path.exists() else ""
    return [int(line) for line in text.split("\n")[:-1]]


class Running:
    """A supervisor in a thread; what it told."""

    def __init__(self, *children, **options):
        self.told, self.stop, self.ready = [], StopFlag(), threading.Event()
        options = {"backoff": (0.05, 0.1, 0.2), "settled": LONG, "grace": 20.0, **options}
        self.supervisor = Supervisor(
            children, tell=self.told.append, on_ready=self.ready.set, **options
        )
        self.status = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        self.status = self.supervisor.run(self.stop)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def count(self, text):
        return sum(text in line for line in self.told)


def test_a_killed_child_comes_back_later_each_time(tmp_path):
    file = tmp_path / "pids"
    with Running(Child("gate", script(STAY, file))) as run:
        for turn in range(1, 5):
            pid = until(lambda turn=turn: pids(file)[turn - 1 :])[0]
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(pids(file)) == 5)
    waits = [line for line in run.told if "ended" in line]
    assert waits == [
        f"gate ended (killed by SIGKILL), again in {wait} s"
        for wait in ("0.05", "0.1", "0.2", "0.2")
    ]
    assert run.told.count("gate runs") == 5
    assert run.status == 0
    assert not any(alive(pid) for pid in pids(file))
    # Reaped: not even a zombie of ours is left.
    assert not set(pids(file)) & {c.pid for c in psutil.Process().children()}


def test_the_waits_it_comes_with():
    assert module.BACKOFF[:7] == (1, 2, 4, 8, 16, 32, 64)
    assert 60 < max(module.BACKOFF) <= 90
    with pytest.raises(ValueError, match="at least one"):
        Supervisor([], tell=print, backoff=())


def test_good_running_resets_the_wait(tmp_path):
    file = tmp_path / "pids"
    with Running(Child("gate", script(STAY, file)), settled=0.0) as run:
        for turn in range(1, 4):
            os.kill(until(lambda turn=turn: pids(file)[turn - 1 :])[0], signal.SIGKILL)
        until(lambda: run.count("ended") == 3)
    assert run.count("again in 0.05 s") == 3


NOTE = """
import os, signal, sys
def end(*_):
    os.write(out, (sys.argv[2] + "\\n").encode())
    sys.exit(0)
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + sys.argv[2], "w").close()
while True:
    signal.pause()
"""


def noting(tmp_path, name):
    """A child that notes its name when it is told to end."""
    ready = tmp_path / f"order{name}"
    return Child(name, script(NOTE, tmp_path / "order", name), ready=ready.exists)


def test_order_of_starting_and_of_stopping(tmp_path):
    opened = threading.Event()
    first = Child("first", script(STAY, tmp_path / "pids"), ready=opened.is_set)
    names = ("a", "b", "c")
    with Running(first, *(noting(tmp_path, n) for n in names)) as run:
        until(lambda: pids(tmp_path / "pids"))
        assert not (tmp_path / "ordera").exists()
        assert not run.ready.is_set()
        opened.set()
        until(run.ready.is_set)
        assert run.told == ["first runs", "a runs", "b runs", "c runs"]
    assert (tmp_path / "order").read_text().split() == ["c", "b", "a"]
    assert not alive(pids(tmp_path / "pids")[0])


def test_who_is_never_ready_is_told_and_not_waited_for_for_ever(tmp_path):
    def broken():
        raise ConnectionRefusedError

    slow = Child("slow", script(STAY, tmp_path / "slow"), ready=broken)
    absent = Child("absent", ("no-such-program-here",))
    last = Child("last", script(STAY, tmp_path / "last"))
    with Running(slow, absent, last, patience=0.2) as run:
        until(lambda: pids(tmp_path / "last"))
        assert not run.ready.is_set()
        assert run.count("slow is not ready after 0.2 s") == 1
        assert run.count("absent is not ready after 0.2 s") == 1
    assert run.status == 0


IGNORE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
else:
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
time.sleep(300)
"""


def test_a_stubborn_child_and_its_children_are_killed(tmp_path):
    file = tmp_path / "pids"
    with Running(Child("stubborn", script(IGNORE, file)), grace=0.3) as run:
        until(lambda: len(pids(file)) == 2)
    assert run.told[-1] == "stubborn did not stop and was killed"
    until(lambda: not any(alive(pid) for pid in pids(file)))


def test_what_a_dead_child_leaves_in_its_group_is_killed(tmp_path):
    file = tmp_path / "pids"
    with Running(Child("parent", script(IGNORE, file)), backoff=(LONG,)) as run:
        until(lambda: len(pids(file)) == 2)
        (leader,) = [p for p in pids(file) if os.getpgid(p) == p]
        os.kill(leader, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in pids(file)))
        assert run.count("again in 300 s") == 1


def test_the_final_child_ends_everything(tmp_path):
    file = tmp_path / "pids"
    gate = "import os, sys; sys.exit(0 if os.path.exists(sys.argv[1]) else 3)"
    other = Child("other", script(STAY, file), ready=lambda: bool(pids(file)))
    with Running(other, Child("gate", script(gate, tmp_path / "told"), final=True)) as run:
        until(lambda: run.count("gate ended (status 3)"))  # not a clean exit: started again
        (tmp_path / "told").touch()
        run.thread.join(30)
        assert run.status == 0
    assert run.told[-1] == "gate has stopped"
    assert not any(alive(pid) for pid in pids(file))


def test_a_clean_exit_of_another_child_is_no_end():
    with Running(Child("brief", ("true",))) as run:
        until(lambda: run.count("brief ended (status 0), again in") >= 3)


def test_a_missing_program_is_told_and_tried_again(tmp_path):
    program = tmp_path / "program"
    child = Child("late", ("program",), environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    with Running(child) as run:
        until(lambda: run.count("late cannot be started (no program program), again in 0.1 s"))
        program.write_text("#!/bin/sh\nexec sleep 300\n")
        program.chmod(0o755)
        until(lambda: "late runs" in run.told)
        program.chmod(0o644)


def test_a_program_that_is_none_says_so_in_the_log(tmp_path):
    program, log = tmp_path / "program", tmp_path / "log" / "odd.log"
    program.write_bytes(b"\x00\x01")
    program.chmod(0o755)
    with Running(Child("odd", (str(program),), log=log)) as run:
        until(lambda: run.count("odd ended (status 127), again in 0.05 s: see log/odd.log"))
    assert "cannot start" in log.read_text()


def test_a_log_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "dir.log").mkdir()
    with Running(Child("gate", ("true",), log=tmp_path / "dir.log")) as run:
        until(lambda: run.count("gate cannot be started (Is a directory)") >= 2)


def test_output_goes_to_a_private_log_and_nowhere_else(tmp_path, capfd):
    log = tmp_path / "log" / "child.log"
    text = "import sys; print('to out', flush=True); sys.exit('to err')"
    with Running(Child("child", script(text), log=log)) as run:
        until(lambda: run.count("ended") >= 2)
    assert log.read_text().count("to out\nto err\n") >= 2  # appended
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert capfd.readouterr() == ("", "")


def test_a_large_log_is_moved_aside_and_one_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOG_BYTES", 100)
    log = tmp_path / "child.log"
    log.write_text("old " * 100)
    log.chmod(0o666)
    with Running(Child("child", script("print('x' * 150)"), log=log)) as run:
        until(lambda: run.count("ended") >= 4)
    assert {p.name for p in tmp_path.iterdir()} == {"child.log", "child.log.1"}
    assert "old" not in (tmp_path / "child.log.1").read_text()
    for path in tmp_path.iterdir():
        assert path.stat().st_size <= 302
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_nothing_is_inherited(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_OURS", "1")
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)
    text = (
        "import os, sys\n"
        "fds = [f'{n} {os.readlink(\"/proc/self/fd/\" + n)}' for n in os.listdir('/proc/self/fd')"
        " if os.path.exists('/proc/self/fd/' + n)]\n"
        "print(sorted(fds), dict(os.environ), os.getsid(0) == os.getpid() == os.getpgid(0))"
    )
    log = tmp_path / "log"
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    try:
        with Running(Child("child", script(text), environment, log), backoff=(LONG,)) as run:
            until(lambda: run.count("ended (status 0)"))
    finally:
        os.close(secret)
    descriptors, *_ = log.read_text().split("]")
    assert descriptors == f"['0 /dev/null', '1 {log}', '2 {log}'"
    assert "SECRET_OF_OURS" not in log.read_text()
    assert log.read_text().endswith("True\n")


SUPERVISE = """
import sys
from pathlib import Path
from penstock.processes.supervisor import Child, Supervisor
stay, folder = sys.argv[1], Path(sys.argv[2])
children = [Child(n, (sys.executable, "-c", stay, str(folder / n))) for n in ("a", "b")]
def tell(text):
    print(text, flush=True)
told = lambda: tell("all run")
sys.exit(Supervisor(children, tell=tell, on_ready=told, grace=3000).run())
"""


IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as a careless parent does
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def supervising(tmp_path, request):
    """A supervisor in a process of its own, with two children; it, and their process ids."""
    command = script(SUPERVISE, getattr(request, "param", STAY), tmp_path)
    process = subprocess.Popen([*script(IGNORING), *command], stdout=subprocess.PIPE, text=True)
    files = [tmp_path / name for name in ("a", "b")]
    children = [until(lambda file=file: pids(file))[0] for file in files]
    yield process, children
    for pid in (process.pid, *children):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_and_all_children(supervising, number):
    process, children = supervising
    process.send_signal(number)
    assert process.wait(60) == 0
    assert not any(alive(pid) for pid in children)
    assert process.stdout.read() == "a runs\nb runs\nall run\n"


@pytest.mark.parametrize("supervising", [IGNORE], indirect=True)
def test_asked_twice_it_waits_no_longer(supervising):
    process, _ = supervising
    until(lambda: process.stdout.readline() == "all run\n")
    process.terminate()
    # It now waits for those who ignore it, and would for most of an hour; asked again, it kills.
    until(lambda: process.terminate() or process.poll() is not None)
    assert process.stdout.read().count("did not stop and was killed") == 2


def test_kill_9_of_the_supervisor_leaves_no_child(supervising):
    process, children = supervising
    assert all(alive(pid) for pid in children)
    process.kill()
    process.wait()
    until(lambda: not any(alive(pid) for pid in children))


def test_a_closed_terminal_ends_nothing(supervising):
    process, children = supervising
    process.stdout.close()
    os.kill(children[0], signal.SIGKILL)  # it wants to tell of this now
    folder = psutil.Process(children[1]).cmdline()[-1].removesuffix("b")
    file = module.Path(folder) / "a"
    children.append(until(lambda: pids(file)[1:])[0])
    process.terminate()
    process.wait(60)
    assert not any(alive(pid) for pid in children)


def test_a_supervisor_that_died_before_its_child_asked_starts_nothing(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    command = [sys.executable, "-I", "-S", module.leash.__file__, str(dead.pid), "touch"]
    assert subprocess.run([*command, str(tmp_path / "made")]).returncode == 1
    assert not (tmp_path / "made").exists()


ORPHANS = """
import os, subprocess, sys, time
from penstock.processes.stop_flag import StopFlag
from penstock.processes.supervisor import Child, Supervisor
made = "import os, sys\\nif os.fork() == 0:\\n  os.setsid()\\n  sys.exit(os._exit(0))"
stop = StopFlag()
turns = []
def tell(text):
    turns.append(text)
    if len(turns) > 12:
        stop.set()
child = Child("maker", (sys.executable, "-c", made + "\\ntime=__import__('time').sleep(0.05)"))
Supervisor([child], tell=tell, backoff=(0.05,)).run(stop)
try:
    print(os.getpid(), os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print(os.getpid(), "clean")
"""


def test_as_process_1_it_reaps_what_others_left():
    command = ["unshare", "--pid", "--fork", *script(ORPHANS)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if "unshare" in found.stderr:
        pytest.skip("no process namespaces here")
    assert found.stdout == "1 clean\n", found.stderr


def test_what_flower_gets_to_see(tmp_path, monkeypatch):
    for name in ("NO_PROXY", "no_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_TOKEN", "pst_secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "internal.example, localhost")
    found = make_flower_environment(tmp_path)
    assert not {"PENSTOCK_TOKEN", "CUDA_VISIBLE_DEVICES"} & set(found)
    assert found["HTTPS_PROXY"] == "http://proxy:3128"
    assert found["NO_PROXY"] == found["no_proxy"] == "internal.example,localhost,127.0.0.1"
    assert found["FLWR_HOME"] == str(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    command = python_command("penstock", "--version")
    shown = subprocess.run(command, env=found, capture_output=True, text=True, cwd=tmp_path)
    assert shown.stdout.startswith("penstock ")
