"""Signals belong to the training script: threads of the journal never receive one."""

from __future__ import annotations

import signal

_OWN = {signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}
"""A thread's own faults; blocking them would hide them from fault handlers."""


def block_signals() -> None:
    """
    Keep signals from the calling thread.

    A script may block SIGTERM or SIGUSR1 in its threads and wait for it with sigwait; a thread that leaves the signal
    unblocked would take it away and, by its default, end the process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN)
