"""Ctrl-C, as it reaches a process while an engine works: in its main thread, which waits for the engine."""

from __future__ import annotations

import signal
import threading
import traceback
from typing import NoReturn

from langchain_dp.ports import call_abandoned


def press_ctrl_c() -> NoReturn:
    """Interrupt whoever waits for the engine that calls this, and end its call once nobody waits any more."""
    main, mark = threading.main_thread(), call_abandoned.get()
    if threading.current_thread() is not main and mark is not None:
        signal.pthread_kill(main.ident or 0, signal.SIGINT)
        assert mark.wait(60), "nobody was interrupted"
    raise KeyboardInterrupt


def shows_nothing(error: BaseException, private: str) -> None:
    """What reads an error with the locals of its frames, those of tests apart, sees no private text."""
    at: BaseException | None = error
    while at is not None:
        assert private not in repr(at.args)
        for frame, _ in traceback.walk_tb(at.__traceback__):
            if "/tests/" not in frame.f_code.co_filename:
                assert private not in repr(frame.f_locals), frame.f_code.co_qualname
        at = at.__cause__ or at.__context__
