"""Who is where when ranks wait for each other: the watchdog on real gloo ranks, its questions, its sentences."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import rankworld
import stuck
import torch.distributed as dist
from rankworld import RankFailed
from stuck import Trouble

from firstbad.agent.enquiry import Enquiry, StoreGone
from firstbad.agent.whereabouts import Standing, by_step, describe, name


@pytest.fixture
def play(tmp_path: Path) -> Any:
    """Play a trouble; the lines that each rank said, and the rank that gave no account."""

    def run(world: int, trouble: Trouble) -> dict[int, list[str]]:
        deadly = trouble.relieve or trouble.kind in {"kill", "stop"}
        dies = pytest.raises(RankFailed, match=rf"^rank {trouble.rank}: died with exit code -9 and no result$")
        with dies if deadly else nullcontext():
            rankworld.run(world, stuck.play, trouble, str(tmp_path), group=False)
        accounts = {rank: tmp_path / str(rank) for rank in range(world)}
        return {rank: path.read_text().splitlines() for rank, path in accounts.items() if path.exists()}

    return run


def test_a_local_continue_is_told_while_it_hangs_with_both_sides_named(play: Any, tmp_path: Path) -> None:
    """Its peers wait in the decision, it waits in the next backward; said by one rank; killed, it is the silent one."""
    said = play(3, Trouble("continue", patience=1.0, answer=3.0, relieve=True))

    line = _line("optimizer.step()")
    back = _line("model(torch.ones(1, 2)).sum().backward()")
    (told,) = [text for lines in said.values() for text in lines if "for the decision of step 2" in text]
    assert f"Ranks 0, 2 are waiting in the decision of step 2 at stuck.py:{line}" in told
    assert f"rank 1 is in step 2 at stuck.py:{back}, 2 backward calls since the last decision, not waiting" in told
    for rank in (0, 2):
        assert said[rank][-1].startswith(f"ConsensusFailed: rank {rank} could not take the decision of step 2")
        assert (
            f"Ranks 0, 2 are waiting in the decision of step 2 at stuck.py:{line}; rank 1 gives no answer"
            in said[rank][-1]
        )


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("tcp", [False, True])
def test_a_killed_rank_is_named_by_all_its_peers(play: Any, world: int, tcp: bool) -> None:
    """Also by those who were not connected to it; in a store that is a file, and in one that another process hosts."""
    host = dist.TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False) if tcp else None
    said = play(world, Trouble("kill", rank=world - 1, answer=3.0, port=host and host.port))

    assert sorted(said) == list(range(world - 1))
    waiting = name(range(world - 1)).capitalize()
    verb = "is" if world == 2 else "are"
    for lines in said.values():
        (failure,) = lines
        assert failure.startswith("ConsensusFailed")
        assert f"{waiting} {verb} waiting in the decision of step 2" in failure
        assert f"rank {world - 1} gives no answer (dead" in failure


def test_a_stopped_rank_is_named_when_the_groups_timeout_ends(play: Any) -> None:
    """It hangs whole, its watchdog too."""
    said = play(2, Trouble("stop", answer=3.0, timeout=3.0))

    assert "rank 1 gives no answer" in said[0][-1]


def test_a_rank_that_hangs_elsewhere_is_named_with_its_place_when_the_timeout_ends(play: Any) -> None:
    """The same timeout may end its own hang first, and its life: then what it has said in time is what is known."""
    said = play(2, Trouble("continue", answer=3.0, timeout=6.0))

    back = _line("model(torch.ones(1, 2)).sum().backward()")
    assert said[0][-1].startswith("ConsensusFailed")
    assert f"in step 2 at stuck.py:{back}, 2 backward calls since the last decision, not waiting" in said[0][-1]


@pytest.mark.parametrize(("patience", "asks"), [(60.0, False), (0.1, True)])
def test_a_healthy_run_says_nothing_and_leaves_no_key(play: Any, tmp_path: Path, patience: float, asks: bool) -> None:
    """A rank is late by ten looks, so they look into the store; with no patience the same run asks, and goes on."""
    said = play(2, Trouble("late", patience=patience))

    told = [text for lines in said.values() for text in lines]
    keys = {int((tmp_path / f"{rank}.keys").read_text()) > 0 for rank in (0, 1)}
    assert keys == {asks}
    if not asks:
        assert told == []
    assert all("has waited" in text for text in told)


def test_the_watchdog_ends_with_the_process_group() -> None:
    """A script may destroy its group long before it ends."""
    assert rankworld.run(2, stuck.leave_the_group) == [True, True]


def test_a_fork_has_a_silent_copy() -> None:
    """A child, such as a data loader's worker, has no thread: it is told nothing, waits for nothing, stops nothing."""
    assert rankworld.run(2, stuck.fork) == [(0, True), (0, True)]


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_an_enquiry_works_on_every_store(tmp_path: Path, kind: str) -> None:
    """One asks, both answer, one concludes; before the first question there is no key, and looking waits for none."""
    stores = {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 2),
        "tcp": lambda: dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False),
    }
    store = dist.PrefixStore("incarnation", stores[kind]())
    ranks = [Enquiry(store, rank, 2) for rank in (0, 1)]
    before = store.num_keys()
    assert [rank.pending() for rank in ranks] == [None, None]
    assert store.num_keys() == before

    assert [rank.ask("3/delay") for rank in ranks] == [True, False]
    standings = {0: Standing(3, 1, True, "train.py:7"), 1: Standing(3, 2, False)}
    answers: dict[int, Standing] = {}
    for rank, enquiry in enumerate(ranks):
        assert not enquiry.collect("3/delay", answers)
        assert enquiry.pending() == "3/delay"
        enquiry.answer("3/delay", standings[rank])
        assert enquiry.pending() is None
    assert ranks[0].collect("3/delay", answers)
    assert answers == standings
    assert ranks[1].conclusion("3/delay") is None
    ranks[0].conclude("3/delay", "so it is")
    assert ranks[1].conclusion("3/delay") == "so it is"


def test_a_store_whose_host_has_left_is_found_out_before_torch_prints_about_it(capfd: Any) -> None:
    """In a run without a launcher rank 0 hosts the store, and may be the first to leave."""
    host = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", host.port, 1, is_master=False)
    with socket.create_connection(("127.0.0.1", host.port)) as line:
        line.setblocking(False)
        enquiry = Enquiry(client, 0, 2, line)
        assert enquiry.pending() is None
        del host
        line.setblocking(True)
        assert line.recv(1, socket.MSG_PEEK) == b""
        line.setblocking(False)
        with pytest.raises(StoreGone):
            enquiry.pending()
    assert capfd.readouterr().err == ""


def test_a_sentence_about_a_big_world_stays_short() -> None:
    """Ranks that stand alike are one group, neighbours one range; of many groups and ranges the first are named."""
    answers = {rank: Standing(7, 4, True) for rank in range(16_384) if rank != 9_000}
    answers[5] = Standing(7, 5, False, "train.py:35")
    assert describe(answers, {9_000: Standing(7, 1, False)}, 16_384) == (
        "ranks 0-4, 6-8999, 9001-16383 are waiting in the decision of step 7; "
        "rank 5 is in step 7 at train.py:35, 5 backward calls since the last decision, not waiting in it; "
        "rank 9000 gives no answer (dead, gone, or stuck with the interpreter held), "
        "last heard in step 7, 1 backward call since the last decision, not waiting in it"
    )
    assert name(range(0, 100, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 42 more runs of ranks"
    assert by_step([4, 3, 4, 4]) == "rank 1 decides step 3, ranks 0, 2-3 decide step 4"
    assert len(by_step(range(16_384))) < 300


def _line(code: str) -> int:
    lines = Path(stuck.__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.strip() == code]
    return number
