"""What a run has released so far, on disk after every token: a crash or Ctrl-C loses nothing that was paid for."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_dp.errors import PlanError
from langchain_dp.opt.plan import Written

_VERSION = 1


@dataclasses.dataclass
class Journal:
    """State of one run. Released values and settings, and the key of the split, which stays on this machine.

    Args:
        settings: Public settings that the run was started with; it can be taken up with the same ones only.
        split_key: Secret key of the coins that tell training from validation records.
        data: Keyed hash of the records, under ``split_key``: a complete run is not handed out for other data.
        groups: Number of subsets or slots, as derived when the run was started.
        sampling_probability: Rate of subsets or records, likewise.
        written: Candidates, oldest first.
        winner: Index of the selected candidate, ``len(written)`` for the initial instruction; None before.
        path: File to keep it in, or None: in memory.
    """

    settings: Mapping[str, Any]
    split_key: bytes
    data: str
    groups: int
    sampling_probability: float
    written: list[Written] = dataclasses.field(default_factory=list)
    winner: int | None = None
    path: Path | None = None

    def save(self) -> None:
        """Write it, whole or not at all, readable by its owner only."""
        if self.path is None:
            return
        fields = {
            "version": _VERSION,
            "settings": dict(self.settings),
            "split_key": self.split_key.hex(),
            "data": self.data,
            "groups": self.groups,
            "sampling_probability": self.sampling_probability,
            "written": [dataclasses.asdict(candidate) for candidate in self.written],
            "winner": self.winner,
        }
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}-")  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(fields, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def discard(self) -> None:
        """Delete the file: nothing was reserved, so there is nothing to take up."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def read(path: Path, settings: Mapping[str, Any]) -> Journal | None:
    """The journal in ``path`` if there is one.

    Raises:
        PlanError: It belongs to a run with other settings, or is damaged.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise PlanError(
            f"Expected {path.name} to be the journal of a run, but it cannot be read ({type(problem).__name__}). Move "
            "it away, and give the new run another name=."
        ) from None
    try:
        kept, version = dict(fields["settings"]), fields["version"]
        written = [Written(**candidate) for candidate in fields["written"]]
        journal = Journal(
            kept,
            bytes.fromhex(fields["split_key"]),
            fields["data"],
            fields["groups"],
            fields["sampling_probability"],
            written,
            fields["winner"],
            path,
        )
    except (KeyError, TypeError, ValueError):
        kept, version = {}, None
    if version != _VERSION:
        raise PlanError(f"Expected {path.name} to be the journal of a run. Move it away, or give another name=.")
    now = json.loads(json.dumps(dict(settings)))
    differing = sorted(key for key in kept.keys() | now.keys() if kept.get(key) != now.get(key))
    if differing:
        raise PlanError(
            f"The run in {path.name} was started with other settings: {', '.join(differing)} changed. Keep the old "
            "ones to go on with it, or give the new run another name=."
        )
    return journal
