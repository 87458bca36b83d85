"""PostgreSQL servers of one test's own: they are stopped, copied, restored and promoted."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import psycopg

from tests.support import postgres


class OwnServer:
    """A cluster in a directory of its own. Its URL stays the same, whatever data it is given."""

    def __init__(self, home: Path, options: str, *, programs: Path) -> None:
        self.home = home
        home.mkdir()
        if (programs / "site").exists():
            (home / "site").symlink_to(programs / "site")  # copied once for all
        self.dsn = postgres.start(home, options)
        self._is_running = True

    @property
    def data(self) -> Path:
        return self.home / "data"

    def stop(self) -> None:
        """Stops it as a power failure does."""
        if self._is_running:
            postgres.stop_at_once(self.home)
            self._is_running = False

    def shut_down(self) -> None:
        """Stops it as `systemctl stop` does: sessions are ended, readers of the log get everything first."""
        postgres._control(self.home, "-m", "fast", "-w", "-t", "60", "stop")
        self._is_running = False

    def start(self) -> None:
        postgres.start_again(self.home)
        self._is_running = True

    def back_up(self, name: str) -> Path:
        """Copies the files of the stopped server."""
        assert not self._is_running
        place = self.home / name
        shutil.copytree(self.data, place, symlinks=True)
        _own(place)
        return place

    def restore(self, backup: Path) -> None:
        """Replaces the files of the stopped server by those of a copy."""
        assert not self._is_running
        shutil.rmtree(self.data)
        shutil.copytree(backup, self.data, symlinks=True)
        _own(self.data)

    def promote(self) -> None:
        """Ends the recovery of a standby: a new timeline begins."""
        postgres._control(self.home, "-w", "promote")

    def set(self, **settings: str) -> None:
        """Changes settings of the running server."""
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            for name, value in settings.items():
                admin.execute(f"alter system set {name} = '{value}'")  # type: ignore[arg-type]
            admin.execute("select pg_reload_conf()")

    def url(self, database: str) -> str:
        return postgres.database_url(self.dsn, database)


def _own(place: Path) -> None:
    """The server is another user's if the tests run as root."""
    if os.geteuid() == 0:
        record = pwd.getpwnam("nobody")
        subprocess.run(["chown", "-R", f"{record.pw_uid}:{record.pw_gid}", str(place)], check=True)
