"""`make package`: the wheel in a clean environment without extras and with each, and the tests that this must pass.

Needs an index. Every environment is made, used and deleted before the next. Give names of extras to run only these
("none" for no extra); ``--no-tests`` installs, checks and imports only, ``--tests`` runs some of the tests only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, from anywhere

from package_checks import importing
from package_checks.building import build, environment, run
from package_checks.extras import NAME, PROMISES, ROOT, TOOLS, parts, without_extras
from package_checks.skipping import EXTRA

COUNTS = re.compile(r"(?:\d+ (?:passed|failed|skipped|errors?|xfailed|xpassed|warnings?|deselected)(?:, )?)+")


def try_extra(extra: str, wheel: Path, folder: Path, *, tests: Path, only: list[str] | None) -> dict[str, object]:
    """Install, check, import, use and test; what was measured."""
    promise = PROMISES[extra]
    started = time.monotonic()
    python = environment(folder / "environment")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt")]
    run(*install, f"{NAME}[{extra}] @ {wheel.as_uri()}" if extra else str(wheel))
    found: dict[str, object] = {"extra": extra or "none", "seconds to install": round(time.monotonic() - started)}
    found["packages"] = len(list(folder.glob("environment/lib/python3*/site-packages/*.dist-info")))
    found["MiB"] = round(sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20)
    run(*pip, "check")
    outside = folder / "outside"
    outside.mkdir()
    told = json.loads(run(str(python), "-I", importing.__file__, json.dumps(promise.imports), cwd=outside))
    if told["missing"]:
        raise RuntimeError(f"[{extra}] lacks what it promises:\n" + "\n".join(told["missing"]))
    run(str(python), "-I", "-c", promise.uses, cwd=outside)
    if only is None or only:
        run(*install, *TOOLS)
        found["tests"] = run_tests(extra, python, outside, tests, only)
    return found


def run_tests(extra: str, python: Path, outside: Path, tests: Path, only: list[str] | None) -> str:
    """Run the tests of the table on the installed package, from a copy of tests/; the last line of pytest."""
    shutil.copytree(tests, outside / "tests")
    shutil.copy(ROOT / "pyproject.toml", outside)
    chosen = chosen_tests(extra, outside / "tests")
    if only is not None:
        kept = {path for pattern in only for path in (outside / "tests").glob(pattern)}
        chosen = [path for path in chosen if {Path(path), *Path(path).parents} & kept]
    env = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", EXTRA: " ".join(parts(extra))}
    env["PYTHONPATH"] = str(outside / "tests")
    options = ["-q", "-p", "no:cacheprovider", "-p", "package_checks.skipping"]
    out = run(str(python), "-m", "pytest", *options, *chosen, cwd=outside, env=env)
    return COUNTS.findall(out)[-1]


def chosen_tests(extra: str, folder: Path) -> list[str]:
    """Files of tests that an extra has to pass."""
    if extra:
        given = {path for pattern in PROMISES[extra].tests for path in folder.glob(pattern)}
        return sorted(str(path) for path in folder.rglob("test_*.py") if {path, *path.parents} & given)
    left = {path for pattern in without_extras() for path in folder.glob(pattern)}
    return sorted(str(path) for path in folder.rglob("test_*.py") if not {path, *path.parents} & left)


def main() -> int:
    """Run all that were asked for; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="extra", help="of: none, " + ", ".join(filter(None, PROMISES)))
    parser.add_argument("--no-tests", dest="tests", action="store_const", const=[])
    parser.add_argument("--tests", nargs="+", metavar="path", help="of these files and folders of tests/ only")
    options = parser.parse_args()
    asked = ["" if extra == "none" else extra for extra in options.extras] or list(PROMISES)
    if unknown := set(asked) - set(PROMISES):
        parser.error(f"no such extra: {', '.join(sorted(unknown))}")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="package-") as built:
        wheel, sdist = build(Path(built))
        tests = Path(built) / "tests"  # as they are now, like the wheel: whoever edits meanwhile changes nothing
        shutil.copytree(ROOT / "tests", tests, ignore=shutil.ignore_patterns("__pycache__", "benchmarks"))
        print(
            f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB; {sdist.name}: {sdist.stat().st_size / 1024:.0f} KiB"
        )
        for extra in asked:
            with tempfile.TemporaryDirectory(prefix="extra-") as folder:
                try:
                    print(try_extra(extra, wheel, Path(folder), tests=tests, only=options.tests), flush=True)
                except (RuntimeError, OSError) as problem:
                    failed += 1
                    print(f"{extra or 'none'} FAILED: {problem}", flush=True)
    print(f"{len(asked) - failed} of {len(asked)} environments are sound")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
