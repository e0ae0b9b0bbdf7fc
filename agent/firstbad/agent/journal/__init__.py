"""
The agent's journal: append-only segments that survive kill -9, written by a thread of their own.

    JOURNAL/<host>/<run>-<incarnation>-r<rank>-p<pid>-<lane>-<NNNNNN>.fbj

Lane `events` holds what must not be lost (run start and end, verdicts, testimony, evidence, gaps) in allocated room;
lane `steps` holds a row per step. Within a lane records lie in order of `seq`.
"""

from firstbad.agent.journal.journal import Counters, Journal, prepare

__all__ = ["Counters", "Journal", "prepare"]
