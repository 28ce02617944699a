"""Ctrl-C, as it reaches a process while an engine works: in its main thread, which waits for the engine."""

from __future__ import annotations

import signal
import threading
from typing import NoReturn

from langchain_dp.ports import call_abandoned


def press_ctrl_c() -> NoReturn:
    """Interrupt whoever waits for the engine that calls this, and end its call once nobody waits any more."""
    main, mark = threading.main_thread(), call_abandoned.get()
    if threading.current_thread() is not main and mark is not None:
        signal.pthread_kill(main.ident or 0, signal.SIGINT)
        assert mark.wait(60), "nobody was interrupted"
    raise KeyboardInterrupt
