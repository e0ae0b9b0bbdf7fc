"""One life of a rank among its peers: from the meeting of the ranks to the run end."""

from __future__ import annotations

import time
from typing import Self

from torch.optim import Optimizer

from firstbad.agent import identity
from firstbad.agent.consensus import Consensus, Meeting, Terms
from firstbad.agent.context import CodeOrigin, describe_rank
from firstbad.agent.decision import Bench
from firstbad.agent.incidents import IncidentBook
from firstbad.agent.journal import Journal, prepare
from firstbad.agent.lanes import LAYOUT
from firstbad.agent.observers.observer import Scene
from firstbad.agent.policy import Budget
from firstbad.agent.recorder import Recorder
from firstbad.agent.settings import Settings
from firstbad.agent.watchdog import Watchdog


class Incarnation:
    """What a rank holds from the meeting on: its group, the shared identity, its journal, and the state that rules."""

    def __init__(self, settings: Settings, consensus: Consensus, meeting: Meeting) -> None:
        self.settings = settings
        self.consensus = consensus
        self.meeting = meeting
        self.step = 0
        self.watchdog = Watchdog(consensus.rank, consensus.world_size, meeting.incarnation, consensus.timeout)
        journal = Journal(settings.journal, run_id=meeting.run_id, incarnation=meeting.incarnation, rank=consensus.rank)
        self.recorder = Recorder(journal, settings, consensus.rank, consensus.world_size, meeting.hosts)
        budget = Budget(settings.policy, settings.max_consecutive_skips, settings.max_skip_ratio)
        self.bench = Bench(budget, IncidentBook(meeting.run_id, meeting.incarnation), consensus.world_size)

    @classmethod
    def begin(cls, settings: Settings, refusal: str | None) -> Self:
        """
        Collective where there is a process group: agree on settings and identity, open the journal.

        Raises:
            SettingsMismatch: on every rank when settings differ or a rank refuses.
        """
        consensus = Consensus.form()
        try:
            prepare(settings.journal, identity.host_name())
        except OSError as error:
            refusal = refusal or f"the journal folder {settings.journal} cannot be used ({error}); see --journal"
        terms = Terms(
            f"{LAYOUT}, firstbad {identity.agent_version()}, policy {settings.policy.value}, max-consecutive-skips "
            f"{settings.max_consecutive_skips}, max-skip-ratio {settings.max_skip_ratio}, min-loss-scale "
            f"{settings.min_loss_scale}, lr-on-skip {settings.lr_on_skip}",
            refusal,
        )
        run_id = identity.resolve_run_id(settings.run_id) or f"run-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        return cls(settings, consensus, consensus.meet(terms, run_id, identity.new_incarnation()))

    @classmethod
    def stillborn(cls, settings: Settings) -> Self:
        """An identity without the others: the script failed before the ranks could meet."""
        consensus = Consensus.alone()
        run_id = identity.resolve_run_id(settings.run_id) or "run-that-did-not-start"
        return cls(settings, consensus, Meeting(run_id, identity.new_incarnation(), (0,) * (consensus.rank + 1), None))

    def start(
        self, scene: Scene, optimizers: list[Optimizer], *, origin: CodeOrigin, autocast: bool, steered: bool
    ) -> None:
        """Write the run start, once: before the first decision's events, when models and optimizers are known."""
        if self.recorder.static is not None:
            return
        self.recorder.start(
            *describe_rank(
                self.settings,
                self.consensus,
                self.meeting,
                scene,
                optimizers,
                origin=origin,
                autocast=autocast,
                steered=steered,
            )
        )
