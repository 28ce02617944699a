"""Run by the Python of an environment: tries every module and name that is promised, from outside of the checkout."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys


def missing(promised: list[str]) -> list[str]:
    """Names, ``module:name`` or ``module:*``, that cannot be had, with the reason."""
    problems = []
    for line in promised:
        module, _, name = line.partition(":")
        try:
            loaded = importlib.import_module(module)
            for each in getattr(loaded, "__all__", []) if name == "*" else [name]:
                getattr(loaded, each)
        except Exception as problem:
            problems.append(f"{line}: {type(problem).__name__}: {problem}")
    return problems


def modules() -> dict[str, str]:
    """Every module of the package, and the module that its import misses ("" if none)."""
    import langchain_dp

    found = {}
    for module in pkgutil.walk_packages(langchain_dp.__path__, "langchain_dp.", onerror=lambda name: None):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
            found[module.name] = ""
        except ImportError as problem:
            context = problem.__context__
            while getattr(problem, "name", None) is None and isinstance(context, ImportError):
                problem, context = context, context.__context__
            found[module.name] = str(problem.name)
    return found


if __name__ == "__main__":
    import langchain_dp

    names, *_ = [json.loads(argument) for argument in sys.argv[1:]]
    print(json.dumps({"file": langchain_dp.__file__, "missing": missing(names), "modules": modules()}))
