"""Records of `logging` as log messages to the node, each with the id of the call that it belongs to."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from callboard._current import CURRENT


class LogHandler(logging.Handler):
    """Sends records to the node, each with the id of the call that it belongs to."""

    def __init__(self, send: Callable[[str, str, str, str | None], None]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
            # A process that user code has forked must not write into the socket.
            if os.getpid() != self._pid:
                sys.stderr.write(message + "\n")
                return
            context = CURRENT.get()
            request_id = None if context is None else context.request_id
            self._send(_level(record.levelno), record.name, message, request_id)
        except Exception:
            self.handleError(record)


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


def set_log_level(settings: dict[str, Any]) -> None:
    level = str(settings.get("log_level") or "info").upper()
    logging.getLogger().setLevel({"WARN": "WARNING"}.get(level, level) if level in _LEVELS else "INFO")


_LEVELS = ("ERROR", "WARN", "WARNING", "INFO", "DEBUG")
