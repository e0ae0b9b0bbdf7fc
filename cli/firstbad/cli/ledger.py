"""The ledger as the commands see it: open it, and find a run in it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from firstbad.cli.errors import CommandError, NotFound

if TYPE_CHECKING:
    from firstbad.collector.store import Result, Store

LATEST = "latest"


class Opener(Protocol):
    """Opens the ledger in a folder for one purpose; raises the collector's StoreError family."""

    def __call__(self, path: Path, *, purpose: str, create: bool = False) -> AbstractContextManager[Store]: ...


def open_store(path: Path, *, purpose: str, create: bool = False) -> AbstractContextManager[Store]:
    """Open the embedded database in this process."""
    try:
        from firstbad.collector.store import Store
    except ImportError as error:
        raise CommandError(
            f"this command needs the collector's libraries, and {error.name} is not installed; "
            "pip install 'firstbad[collector]'"
        ) from error
    return Store.open(path, purpose=purpose, create=create)


@dataclass(frozen=True, slots=True)
class Ledger:
    """An open ledger, read through the public views only."""

    store: Store
    path: Path

    def query(self, sql: str, **parameters: Any) -> Result:
        """Run one of firstbad's own queries; `parameters` fill `{name:Type}` places."""
        return self.store.query(sql, parameters)

    def dicts(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """The rows of `query` by column name."""
        return self.query(sql, **parameters).dicts()

    def resolve(self, wanted: str) -> str:
        """
        The run id that `wanted` means: exactly one, the unique run that begins so, or the one started last.

        Raises:
            NotFound: none, or several; the text names candidates.
        """
        if not wanted:
            raise NotFound("the name of the run is empty; `firstbad runs` lists them, `latest` is the newest")
        known = [
            str(row[0])
            for row in self.query("SELECT run_id FROM runs GROUP BY run_id ORDER BY max(started_ts) DESC, run_id").rows
        ]
        if wanted in known:
            return wanted
        if not known:
            raise NotFound(empty_text(self.path))
        if wanted == LATEST:
            return known[0]
        matching = [run for run in known if run.startswith(wanted)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise NotFound(f"{wanted!r} begins {len(matching)} runs: {_some(matching)}. Give more of the name.")
        raise NotFound(f"no run {wanted!r} in {self.path}. It holds: {_some(known)}. `firstbad runs` lists them.")


def empty_text(path: Path) -> str:
    """What to tell somebody whose ledger holds no run yet."""
    return (
        f"the ledger {path} holds no runs yet. Train with `torchrun ... -m firstbad.agent train.py`, then load what it "
        f"wrote with `firstbad collect --once --journal DIR --db {path}`; or see it all work with `firstbad demo`."
    )


def _some(names: list[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
