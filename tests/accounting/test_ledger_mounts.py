"""One ledger file under two paths that no link connects: mounts of a single file."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.events import NoisyMaxEvent
from langchain_dp.accounting.ledger import PrivacyLedger
from langchain_dp.accounting.store import sqlite_file as ledger_file
from langchain_dp.errors import LedgerUnwritable

BUDGET = PrivacyBudget(3.0, 1e-5)
VOTE = NoisyMaxEvent(8.0)

MOUNTINFO = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 0:27 / /proc rw,nosuid - proc proc rw
short line
405 22 254:0 /data/l.db {point} rw,relatime - ext4 /dev/vda rw
"""

# Both sides open the ledger before either spends; then they take turns. The refusal of mount points would stop the
# second side, so it is switched off here: what is under test is that counts hold even where it cannot see a mount.
SIDES = """
    import os, sys
    from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger
    from langchain_dp.accounting.store import sqlite_file as ledger_file
    from langchain_dp.errors import BudgetExceeded, LedgerError

    one, two = sys.argv[1:]
    event = NoisyMaxEvent(8.0)

    def open_plan(path):
        return PrivacyLedger(PrivacyBudget(3.0, 1e-5), path).plan("p")

    try:
        open_plan(two)
        said = "not refused"
    except LedgerError as error:
        said = "refused" if "Mount the folder" in str(error) else str(error)
    os.write(1, f"{said}\\n".encode())
    ledger_file.MOUNTS = os.devnull
    there, here = os.pipe(), os.pipe()
    child = os.fork()
    wait, tell, path = (there[0], here[1], two) if child == 0 else (here[0], there[1], one)
    plan = open_plan(path)
    spent = 0
    for _ in range(10):
        if child:
            os.write(tell, b".")
            os.read(wait, 1)
        else:
            os.read(wait, 1)
        try:
            plan.spend(event)
            spent += 1
        except BudgetExceeded:
            pass
        if not child:
            os.write(tell, b".")
    os.write(1, f"{spent} spent\\n".encode())  # at once: both sides write to one pipe
    if child:
        os.waitpid(child, 0)
    else:
        os._exit(0)
"""


def _mount_and_run(one: pathlib.Path, two: pathlib.Path) -> list[str]:
    """Bind-mount the file ``one`` on ``two`` in a mount namespace of its own, and return what both sides said."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        pytest.skip("needs the programs unshare and mount")
    isolate = ["unshare", *(["-m"] if os.geteuid() == 0 else ["-Urm"])]
    two.touch()
    mount = ["sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh", str(one), str(two)]
    tried = subprocess.run([*isolate, *mount, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this process may not mount: {tried.stderr.strip()}")
    sides = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SIDES), str(one), str(two)]
    done = subprocess.run([*isolate, *mount, *sides], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_one_file_mounted_on_another_is_one_budget(tmp_path: pathlib.Path) -> None:
    """If this fails, a container with the file mounted spends the budget again: its own log, its own locks."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    file = tmp_path / "one" / "ledger.db"
    with PrivacyLedger(BUDGET, file) as ledger:
        ledger.reserve([(VOTE, 10)], name="p", delta=1e-6)
    refusal, *sides = _mount_and_run(file, tmp_path / "two" / "ledger.db")
    assert refusal == "refused"
    assert sum(int(side.split()[0]) for side in sides) == 10
    assert len(sides) == 2
    with PrivacyLedger(BUDGET, file) as ledger:
        assert [entry.count for entry in ledger.entries()] == [1] * 10


@pytest.mark.parametrize("name", ["ledger.db", "my ledger\t\\1.db", "bücher.db"])
def test_a_file_that_is_a_mount_point_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """If this fails, a crash leaves a journal that the file's other path does not find, and spends are undone."""
    path = tmp_path / name
    PrivacyLedger(BUDGET, path).close()
    escaped = str(path).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    listed = tmp_path / "mountinfo"
    monkeypatch.setattr(ledger_file, "MOUNTS", str(listed))
    for point, refused in ((escaped, True), (str(tmp_path), False), (escaped + "2", False), ("/", False)):
        listed.write_text(MOUNTINFO.format(point=point))
        if refused:
            with pytest.raises(LedgerUnwritable, match="Mount the folder"):
                PrivacyLedger(BUDGET, path)
        else:
            PrivacyLedger(BUDGET, path).close()
    listed.unlink()  # a system without such a list
    PrivacyLedger(BUDGET, path).close()
