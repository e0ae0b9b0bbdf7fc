"""
The agent's journal: append-only segments that survive kill -9, written by a thread of their own.

    JOURNAL/<host>/<run>-<incarnation>-r<rank>-p<pid>-<lane>-<NNNNNN>.fbj

Lane `events` holds what must not be lost (run start and end, verdicts, testimony, evidence, gaps) in allocated room;
lane `steps` holds a row per step. The contract:

- Every record gets the next number of one dense sequence when it is handed over. Within a lane records lie in order.
- An event is in its file when `append_event` returns True, a row 50 ms after `append`; what is in the file survives the
  death of the process. Events are forced to the disk itself too, but nobody waits for that.
- Handing over a row takes no lock that anybody holds for long, and may be done in a signal handler.
- A frame is whole or not there. A sealed segment ends with its seal; behind the last frame of another one lie zero
  bytes (allocated room) or bytes of a frame that is not yet whole.
- Without space (the bound, a full disk, a full queue) rows are dropped, events wait. Whatever is dropped leaves a hole
  in the sequence that a Gap record names: when the hole is complete, or every 10 s while it grows. After a kill, rows
  dropped in the last 10 s may be missing without a Gap.
- What `close` is given comes last. A process that ends without it still writes what it handed over, for at most 2 s.
- A forked child writes nothing. Signals never reach the journal's threads, and they keep no process alive.
"""

from firstbad.agent.journal.journal import Counters, Journal, prepare

__all__ = ["Counters", "Journal", "prepare"]
