"""What is exported, what is packaged, and what an import costs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import langchain_dp

ROOT = Path(__file__).parent.parent


def test_every_exported_name_exists() -> None:
    """If it breaks, the public surface promises a name that is not there."""
    for name in ("", ".accounting", ".attacks", ".audit", ".icl", ".mechanisms", ".opt", ".rapt", ".rapt.tuning"):
        module = f"langchain_dp{name}"
        loaded = importlib.import_module(module)
        assert loaded.__all__ == sorted(loaded.__all__, key=lambda name: (name.islower(), name.upper() != name, name))
        for name in loaded.__all__:
            assert getattr(loaded, name) is not None
    assert set(langchain_dp.__all__) <= set(dir(langchain_dp))


def test_every_package_is_listed() -> None:
    """If it breaks, a wheel lacks a folder."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        "langchain_dp" + "".join(f".{part}" for part in path.parent.relative_to(ROOT / "langchain_dp").parts)
        for path in (ROOT / "langchain_dp").rglob("__init__.py")
    }
    adapters = (path.parent.relative_to(ROOT).parts for path in (ROOT / "integrations").rglob("__init__.py"))
    assert listed == found | {".".join(("langchain_dp", *parts)) for parts in adapters}


def test_version_is_said_once() -> None:
    """If it breaks, certificates name another version than the one installed."""
    assert langchain_dp.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_import_pulls_in_nothing_heavy() -> None:
    """If it breaks, `import langchain_dp` costs more than the 0.3 seconds it may (it needs no numerics at import)."""
    code = "import json, sys, langchain_dp; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {"numpy", "scipy", "dp_accounting", "jinja2", "langchain_core", "torch", "llama_cpp"} & set(loaded)
