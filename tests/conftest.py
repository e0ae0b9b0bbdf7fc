"""What every test stands on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """
    Take interrupts as a terminal sends them. A run started in the background (`nohup make test &`) inherits SIGINT
    ignored, and so would every program that a test starts and interrupts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
