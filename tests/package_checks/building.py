"""Wheel and sdist, built from a copy; and environments without an index."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

from package_checks.extras import ROOT

LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "site", "results", "*.ledger", "*.db"
)


def build(folder: Path) -> tuple[Path, Path]:
    """Build both from a copy of the checkout, with the build backend of this environment; the wheel from the sdist."""
    copy = folder / "checkout"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    out = folder / "built"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy))
    shutil.rmtree(copy)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def environment(folder: Path, linked: Iterable[Distribution] = ()) -> Path:
    """An empty environment; returns its Python. What is linked into it is taken from the running environment."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for distribution in linked:
        root = Path(str(distribution.locate_file("")))
        for top in {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}:
            if (root / top).exists() and not (packages / top).exists():
                (packages / top).symlink_to(root / top)
    return folder / "bin" / "python"


def install(python: Path, wheel: Path) -> None:
    """Install a wheel and nothing else: no index is asked."""
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run(sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel))


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command; its output, or an error that shows it."""
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} gave {done.returncode}:\n{done.stdout}")
    return done.stdout
