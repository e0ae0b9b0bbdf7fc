"""
The thread of a rank that tells the others where it is, also while its training thread is stuck in a collective.

In a run that gets on it looks at two counters and goes back to sleep. When this rank has not moved since the last look,
it looks into the job's store for a question; when this rank has waited too long in a decision, it asks one.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from firstbad.agent.enquiry import Enquiry, StoreGone
from firstbad.agent.whereabouts import Standing, describe, place_of

logger = logging.getLogger("firstbad.agent")

PATIENCE_SECONDS = 60.0
"""Age of a decision at which its ranks are asked where they are; half of the group's timeout where that is less."""
LOOK_SECONDS = 0.5
"""Between two looks of a rank; more in a job of over 500 ranks, whose one store must not be kept busy by them."""
ANSWER_SECONDS = 2.0
"""How long answers are waited for: four looks, since a rank that has just moved does not look into the store."""
_EXIT_SECONDS = 1.0


class Watchdog:
    """
    Asks and answers in the name of one rank. No method waits for the store; none raises.

    The thread ends with `stop`, with the process group, with the interpreter, and without a word when the store fails.

    Args:
        rank, world_size: of the job; a world of one has no thread.
        incarnation: shared by the ranks.
        timeout: of the process group; half of it is waited for at most before the ranks are asked.
    """

    def __init__(self, rank: int, world_size: int, incarnation: str, timeout: timedelta | None = None) -> None:
        self._rank = rank
        self._world_size = world_size
        self._incarnation = incarnation
        self._progress: Callable[[], tuple[int, int]] = lambda: (0, 0)
        crowd = max(1.0, world_size / 500)
        self._look_seconds = LOOK_SECONDS * crowd
        self._answer_seconds = ANSWER_SECONDS * crowd
        self._patience_seconds = PATIENCE_SECONDS
        if timeout is not None:
            self._patience_seconds = min(PATIENCE_SECONDS, timeout.total_seconds() / 2)
        self._training_thread = threading.get_ident()
        self._waits_since: float | None = None
        self._seen: tuple[int, int, bool] | None = None
        self._asked: int | None = None
        """The step whose delay this rank has asked about."""
        self._failed: int | None = None
        """The step whose decision has failed on this rank."""
        self._found: str | None = None
        self._has_found = threading.Event()
        self._wake = threading.Event()
        self._stopping = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self, progress: Callable[[], tuple[int, int]]) -> None:
        """
        Begin; the process group is there.

        Args:
            progress: gives the step that this rank decides next, and its backward calls since its last decision.
        """
        if self._world_size > 1 and self._thread is None:
            self._progress = progress
            self._thread = threading.Thread(target=self._run, name="firstbad-watchdog", daemon=True)
            self._thread.start()
            # A thread that comes back from C++ while the interpreter goes down would abort the process.
            atexit.register(self.stop)

    def stop(self) -> None:
        """End the thread; waits for it at most a second. Call it as often as you like."""
        # In a fork the event's lock may have been copied while it was held.
        if self._thread is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        self._stopping = True
        self._wake.set()
        self._thread.join(_EXIT_SECONDS)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The training thread is in the decision of the current step."""
        self._training_thread = threading.get_ident()
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waits_since = None

    def after_failure(self) -> str | None:
        """
        Where the ranks are, now that the current decision has failed here; None when it cannot be said.

        Waits for the answers of the others, 2 s for those that give none.
        """
        if not self._alive():
            return None
        self._failed = self._progress()[0]
        self._wake.set()
        self._has_found.wait(3 * self._answer_seconds)
        return self._found

    def _alive(self) -> bool:
        """Not in a process forked from the one that started it: threads are not copied."""
        return self._thread is not None and self._pid == os.getpid() and self._thread.is_alive()

    def _run(self) -> None:
        enquiry = None
        try:
            enquiry = Enquiry.open(self._incarnation, self._rank, self._world_size)
            while not self._ended():
                self._wake.wait(self._look_seconds)
                self._wake.clear()
                if not self._ended():
                    self._look(enquiry)
        except StoreGone as error:
            logger.debug("firstbad: ranks can no longer be asked where they are: %s", error)
        except Exception as error:
            logger.debug("firstbad: ranks can no longer be asked where they are (%s)", error, exc_info=error)
        finally:
            self._has_found.set()
            if enquiry is not None:
                enquiry.close()

    def _ended(self) -> bool:
        return self._stopping or not dist.is_initialized()

    def _look(self, enquiry: Enquiry) -> None:
        (step, backwards), since = self._progress(), self._waits_since
        if self._failed is not None:
            self._found = self._inquire_failure(enquiry, self._failed)
            self._failed = None
            self._has_found.set()
            return
        seen = (step, backwards, since is not None)
        moved, self._seen = seen != self._seen, seen
        if moved:
            return
        question = enquiry.pending()
        if question is not None:
            enquiry.answer(question, self._standing())
        if since is not None and self._asked != step and time.monotonic() - since > self._patience_seconds:
            self._asked = step
            self._inquire_delay(enquiry, step, since)

    def _standing(self) -> Standing:
        step, backwards = self._progress()
        return Standing(step, backwards, self._waits_since is not None, place_of(self._training_thread))

    def _inquire_delay(self, enquiry: Enquiry, step: int, since: float) -> None:
        question = _about_delay(step)
        first = enquiry.ask(question)
        enquiry.answer(question, self._standing())
        if not first:
            return
        answers = self._collect(enquiry, question)
        if self._waits_since == since:
            logger.warning(
                "firstbad: rank %d has waited %.0f s for the decision of step %d. %s. A rank that does not wait in it "
                "is slow, is stuck, or has left the step (a local `if isnan(loss): continue`)",
                self._rank,
                time.monotonic() - since,
                step,
                _capital(describe(answers, {}, self._world_size)),
            )

    def _inquire_failure(self, enquiry: Enquiry, step: int) -> str | None:
        question = f"{step}/failure"
        first = enquiry.ask(question)
        enquiry.answer(question, self._standing())
        if first:
            answers, earlier = self._collect(enquiry, question), dict[int, Standing]()
            if len(answers) < self._world_size:
                # A rank that hung elsewhere may have left with an error of its own at the same timeout.
                enquiry.collect(_about_delay(step), earlier)
            text = _capital(describe(answers, earlier, self._world_size))
            enquiry.conclude(question, text)
            return text
        deadline = time.monotonic() + 2 * self._answer_seconds
        while (conclusion := enquiry.conclusion(question)) is None and time.monotonic() < deadline:
            time.sleep(self._look_seconds / 5)
        return conclusion

    def _collect(self, enquiry: Enquiry, question: str) -> dict[int, Standing]:
        answers: dict[int, Standing] = {}
        deadline = time.monotonic() + self._answer_seconds
        while not enquiry.collect(question, answers) and time.monotonic() < deadline and not self._stopping:
            time.sleep(self._look_seconds / 5)
        return answers


def _about_delay(step: int) -> str:
    return f"{step}/delay"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
