"""What the public views say about hand-made ledgers, row by row."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from engine import Engine
from making import FIRST, SECOND, T0, Maker, event

from firstbad.schema.migrations import SqlFile
from firstbad.schema.publicviews import PublicView, ViewError, parse_view, public_views

NAN = float("nan")
NAMES = [view.name for view in public_views()]
JOIN_NULLS = [{"join_use_nulls": 0}, {"join_use_nulls": 1}]


def at(micros: int) -> datetime:
    """The time of T0 and some microseconds."""
    return datetime.fromtimestamp(T0 // 1_000_000, UTC).replace(microsecond=micros)


def pick(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Some columns of rows."""
    return [tuple(row[name] for name in names) for row in rows]


def test_the_public_views_are_the_promised_ones() -> None:
    """By name; and the columns that the plan promises are there."""
    assert set(NAMES) == {
        "runs", "ranks", "steps", "bad_steps", "first_bad_steps", "evidence", "incidents", "gaps", "conflicts",
        "dead_letters",
    }  # fmt: skip
    promised = {
        "steps": "run_id incarnation attempt rank step trainer_step applied_step micro_steps consumed_samples ts "
        "ingest_ts loss loss_finite total_grad_norm grad_norm_finite loss_scale learning_rate skipped_step "
        "first_bad_stage local_bad_stage global_batch_id batch_fingerprint dataset_version shard_id sample_ids "
        "valid_tokens effective_global_batch skip_count step_seconds dp_rank tp_rank pp_rank",
        "bad_steps": "event_id incident_id kind escalates run_id incarnation attempt step micro_step rank all_ranks "
        "first_bad_stage module parameter action ts loss total_grad_norm loss_scale_before loss_scale_after "
        "learning_rate global_batch_id dataset_version shard_id sample_ids valid_tokens rng_state_hash "
        "checkpoint_parent host device_uuid model_commit tokenizer_hash config_hash precision last_good_step "
        "reached_collective reached_params reached_optimizer reached_checkpoint origin_step elected_rank",
        "evidence": "event_id run_id incarnation step micro_step ts rank kind name module param_group bucket_params "
        "shape dtype scaled nan_count posinf_count neginf_count numel absmax_finite is_bad order_index",
    }
    columns = {view.name: {column.name for column in view.columns} for view in public_views()}
    for name, wanted in promised.items():
        assert set(wanted.split()) <= columns[name]
    assert columns["first_bad_steps"] == columns["bad_steps"]


@pytest.mark.parametrize("view", public_views(), ids=NAMES)
def test_a_view_has_the_columns_that_its_file_lists(engine: Engine, view: PublicView) -> None:
    """The listed types are those of the query, so nothing is cast on the way; the engine holds the comments."""
    listed = [(column.name, column.type) for column in view.columns]
    assert engine.describe(view.name) == listed
    assert engine.describe(f"({view.select})") == listed
    comments = [(column.name, column.description) for column in view.columns]
    assert [(row[0], row[4]) for row in engine.rows(f"DESCRIBE {view.name}")] == comments


@pytest.mark.parametrize("view", public_views(), ids=NAMES)
def test_every_column_is_described_and_says_what_null_means(view: PublicView) -> None:
    """In `ranks` a nullable column without words of its own is null while its record is not here."""
    assert view.description
    for column in view.columns:
        assert column.description
        if column.type.count("Nullable") and view.name != "ranks":
            assert "null" in column.description, f"{view.name}.{column.name}: say what null means"
        assert column.name != "file"  # the word is refused in users' queries


@pytest.mark.parametrize("view", public_views(), ids=NAMES)
def test_views_answer_the_same_under_any_users_settings(engine: Engine, view: PublicView) -> None:
    """Whatever a session says about joins, and also when it may not set anything."""
    make = Maker()
    engine.add(*make.one_of_each(), Maker(incarnation=SECOND, start=T0 + 50).verdict(0))
    engine.insert(
        "dead_letter_records",
        ["file", "offset", "reason", "detail", "bytes", "content_hash", "ingest_ts"],
        ["node0/a.fbj", 0, "foreign_bytes", "", "x", 1, at(0)],
    )
    plain, nulls, readonly = (
        repr(engine.rows(f"SELECT * FROM {view.name} ORDER BY ALL", settings))
        for settings in ({"join_use_nulls": 0}, {"join_use_nulls": 1}, {"readonly": 1})
    )
    assert plain != "[]" or view.name == "conflicts"
    assert plain == nulls == readonly


def test_a_healthy_run_of_two_ranks(engine: Engine) -> None:
    """Runs, ranks and steps; nothing bad, nothing missing."""
    make = Maker()
    for rank in (0, 1):
        engine.add(make.run_start(rank), *(make.step(i, rank) for i in range(3)), make.run_end(rank))

    [run] = engine.dicts("SELECT * FROM runs")
    got = {name: run[name] for name in ("attempt", "world_size", "ranks", "ended_ranks", "outcome", "last_step")}
    assert got == {
        "attempt": 1, "world_size": 2, "ranks": 2, "ended_ranks": 2, "outcome": "finished", "last_step": 2
    }  # fmt: skip
    assert (run["steps"], run["applied_steps"], run["skipped_steps"]) == (3, 3, 0)
    assert (run["bad_steps"], run["incidents"], run["first_bad_step"]) == (0, 0, None)
    assert (run["policy"], run["steered"], run["records"], run["hosts"]) == ("skip", True, 10, 1)
    assert (run["started_ts"], run["last_ts"]) == (at(0), at(4))
    ranks = engine.dicts("SELECT * FROM ranks ORDER BY rank")
    assert pick(ranks, "rank", "host", "pid", "records", "last_seq", "last_step", "outcome", "exit_code") == [
        (0, "node0", 100, 5, 4, 2, "finished", 0),
        (1, "node0", 101, 5, 4, 2, "finished", 0),
    ]
    assert engine.rows("SELECT rank, step, loss, attempt FROM steps WHERE step = 1 ORDER BY rank") == [
        (0, 1, 1.5, 1), (1, 1, 1.5, 1)
    ]  # fmt: skip
    for view in ("bad_steps", "first_bad_steps", "evidence", "incidents", "gaps", "conflicts", "dead_letters"):
        assert engine.rows(f"SELECT * FROM {view}") == []


def test_nothing_is_counted_twice_when_everything_is_delivered_twice(engine: Engine) -> None:
    """Copies lie unmerged in the tables; the views show each thing once, with the time it first came."""
    make = Maker()
    records = [
        make.run_start(0), make.run_start(1), make.step(0), make.step(0, 1),
        make.step(1, action="skip", skipped_step=True, first_bad_stage="loss", skip_count=1, applied_step=1),
        make.verdict(1, 0), make.verdict(1, 1), make.testimony(1), make.evidence(1), make.gap(9, 9, 1),
        make.run_end(0),
    ]  # fmt: skip
    ordered = {
        name: f"SELECT * FROM {name} ORDER BY ALL" for name in NAMES if name not in ("dead_letters", "conflicts")
    }
    engine.add(*records)
    once = {name: repr(engine.rows(sql)) for name, sql in ordered.items()}
    engine.add(*records, ingest_ts=T0 + 77)
    twice = {name: repr(engine.rows(sql)) for name, sql in ordered.items()}

    # The newest arrival may be the second one; everything else is equal.
    later = repr(at(77))
    first = repr(at(0))
    assert {name: text.replace(later, first) for name, text in twice.items()} == once
    assert [name for name in ordered if later in twice[name]] == ["ranks", "runs"]
    assert engine.rows("SELECT * FROM conflicts") == []


def bad_ledger(engine: Engine, make: Maker) -> None:
    """Step 1 of two ranks is bad on rank 1, skipped, told by both ranks and testified."""
    for rank in (0, 1):
        engine.add(make.run_start(rank, model_commit="abc", config_hash="c0", dataset_version="d1"))
        engine.add(make.step(0, rank))
        engine.add(make.step(1, rank, action="skip", skipped_step=True, skip_count=1, applied_step=1,
                             total_grad_norm=NAN, loss_scale=8.0, batch_fingerprint=7 + rank))  # fmt: skip
        engine.add(make.verdict(1, rank))


def test_a_bad_step_is_shown_once_with_what_the_offender_saw(engine: Engine) -> None:
    """Verdict, testimony, run start and step row together make one row."""
    make = Maker()
    bad_ledger(engine, make)
    engine.add(make.testimony(1), make.evidence(1), make.evidence(1, order_index=1, is_bad=False, nan_count=0))

    [row] = engine.dicts("SELECT * FROM first_bad_steps")
    assert math.isnan(row.pop("loss"))
    assert math.isnan(row.pop("total_grad_norm"))  # the step row's: the testimony has none
    want = {
        "event_id": event(1), "incident_id": event(1), "kind": "fault", "escalates": None, "run_id": "run-a",
        "incarnation": FIRST, "attempt": 1, "step": 1, "origin_step": 1, "last_good_step": 0, "micro_step": 1,
        "rank": 1, "elected_rank": 1, "all_ranks": False, "first_bad_stage": "loss", "module": "head",
        "parameter": None, "policy": "skip", "action": "skip", "advised_action": "skip",
        "reason": "rank 1 had a bad loss", "consecutive_skips": 1, "window_skips": 1, "applied": False, "ts": at(3),
        "ingest_ts": at(0), "loss_scale_before": 8.0, "loss_scale_after": None, "learning_rate": 0.001,
        "trainer_step": None, "global_batch_id": None, "batch_fingerprint": 8, "dataset_version": "d1",
        "shard_id": ["shard-7"], "sample_ids": ["a.py:f", "a.py:g"], "valid_tokens": 0, "rng_state_hash": None,
        "checkpoint_parent": None, "host": "node0", "device": "cpu", "device_uuid": None, "model_commit": "abc",
        "tokenizer_hash": None, "config_hash": "c0", "precision": None, "reached_collective": 1, "reached_params": 0,
        "reached_optimizer": 0, "reached_checkpoint": None, "order_index": 3,
        "stages_any": ["loss", "grad", "grad_reduced"], "stages_all": [], "world_size": 2, "writers": [0, 1],
        "testified": True, "conflict": False,
    }  # fmt: skip
    assert row == want
    assert engine.rows("SELECT order_index, name, is_bad, absmax_finite, attempt FROM evidence ORDER BY 1") == [
        (0, "head.weight", True, None, 1), (1, "head.weight", False, None, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("settings", JOIN_NULLS)
def test_without_testimony_what_it_alone_holds_is_null(engine: Engine, settings: dict[str, Any]) -> None:
    """The rank died with its words; unknown is not 0, not empty text."""
    bad_ledger(engine, Maker())
    [row] = engine.dicts("SELECT * FROM bad_steps", settings)
    unknown = "loss valid_tokens module parameter rng_state_hash global_batch_id learning_rate checkpoint_parent"
    assert {row[name] for name in unknown.split()} == {None}
    assert (row["shard_id"], row["sample_ids"], row["testified"]) == ([], [], False)
    assert (row["rank"], row["micro_step"], row["host"], row["model_commit"]) == (1, 1, "node0", "abc")


@pytest.mark.parametrize("settings", JOIN_NULLS)
def test_a_verdict_alone_still_tells_the_event(engine: Engine, settings: dict[str, Any]) -> None:
    """All the rest of the ledger is gone: what is unknown is null everywhere."""
    engine.add(Maker().verdict(7))
    [row] = engine.dicts("SELECT * FROM bad_steps", settings)
    assert pick([row], "step", "rank", "host", "device", "loss_scale_before", "batch_fingerprint", "applied") == [
        (7, 1, None, None, None, None, False)
    ]
    [run] = engine.dicts("SELECT * FROM runs", settings)
    assert pick([run], "world_size", "ranks", "steps", "applied_steps", "policy", "outcome", "bad_steps") == [
        (2, 1, None, None, None, None, 1)
    ]
    [rank] = engine.dicts("SELECT * FROM ranks", settings)
    assert pick([rank], "host", "pid", "last_step", "skipped_steps", "records_dropped", "device") == [
        ("node0", None, None, None, None, None)
    ]
    [incident] = engine.dicts("SELECT * FROM incidents", settings)
    assert pick([incident], "first_step", "rank", "module", "loss", "valid_tokens") == [(7, 1, None, None, None)]


def test_when_nobody_is_guilty_no_rank_is_named(engine: Engine) -> None:
    """Every rank saw it: rank is null, the elected one still tells where it looked."""
    make = Maker()
    engine.add(make.verdict(3, 0, offender_rank=None, elected_rank=0, all_ranks=True), make.testimony(3, 0))
    [row] = engine.dicts("SELECT * FROM bad_steps")
    assert pick([row], "rank", "elected_rank", "all_ranks", "module", "testified") == [(None, 0, True, "head", True)]


def test_only_the_elected_ranks_testimony_is_taken(engine: Engine) -> None:
    """Another rank's words are no answer to where it began; they stay in `conflicts`."""
    make = Maker()
    engine.add(make.verdict(3), make.testimony(3, 0, module="other"), make.testimony(3, 1, module="right"))
    [row] = engine.dicts("SELECT * FROM bad_steps")
    assert (row["module"], row["conflict"]) == ("right", True)
    assert pick(engine.dicts("SELECT * FROM conflicts"), "record", "step", "versions", "ranks") == [
        ("testimony", 3, 2, [0, 1])
    ]


@pytest.mark.parametrize(
    ("verdict", "skipped", "want"),
    [
        # action, stages, world -> applied, collective, params, optimizer
        ({"stages_any": ("loss", "grad_reduced")}, [True, True], (False, 1, 0, 0)),
        ({"stages_any": ("loss",)}, [True, True], (False, None, 0, 0)),
        ({"action": "stop"}, [], (False, 1, 0, 0)),
        ({"action": "apply", "stages_any": ("grad", "grad_reduced")}, [False, False], (True, 1, 1, 1)),
        ({"action": "apply", "stages_any": ("loss",)}, [False, False], (True, None, None, None)),
        ({"action": "apply", "stages_any": ("grad",)}, [], (None, None, None, None)),
        ({"action": "apply", "stages_any": ("grad",)}, [None, None], (None, None, None, None)),
        ({"action": "apply", "stages_any": ("scaler", "grad_reduced")}, [True, True], (False, 1, 0, 0)),
        ({"action": "apply", "stages_any": ("grad",)}, [True, False], (None, None, None, None)),
        ({"stages_any": ("param",)}, [True, True], (False, None, 1, None)),
        ({"stages_any": ("update",), "origin_step": 2}, [True, True], (False, None, 1, None)),
        ({"world_size": 1, "elected_rank": 0, "stages_any": ("grad",)}, [True], (False, 0, 0, 0)),
    ],
)
def test_how_far_it_spread_is_told_only_as_far_as_records_go(
    engine: Engine, verdict: dict[str, Any], skipped: list[bool | None], want: tuple[Any, ...]
) -> None:
    """1 and 0 where a record says so, else null."""
    make = Maker()
    engine.add(make.verdict(3, 0, **verdict))
    engine.add(*(make.step(3, rank, skipped_step=value) for rank, value in enumerate(skipped)))
    got = engine.rows("SELECT applied, reached_collective, reached_params, reached_optimizer FROM bad_steps")
    assert got == [want]
    assert engine.rows("SELECT reached_checkpoint FROM bad_steps") == [(None,)]


def test_a_bad_bucket_before_reduction_reached_the_collective(engine: Engine) -> None:
    """The bucket is what goes in."""
    make = Maker()
    engine.add(make.verdict(3, stages_any=("grad",)), make.evidence(3, kind="grad_bucket", name="bucket"))
    assert engine.rows("SELECT reached_collective FROM bad_steps") == [(1,)]


def test_different_verdicts_on_one_step_both_stay_and_are_listed(engine: Engine) -> None:
    """Neither is preferred; steps are still counted once."""
    make = Maker()
    engine.add(make.verdict(3, 0), make.verdict(3, 1, micro_step=0))
    assert engine.rows("SELECT micro_step, writers, conflict FROM bad_steps ORDER BY micro_step") == [
        (0, [1], True), (1, [0], True)
    ]  # fmt: skip
    [conflict] = engine.dicts("SELECT * FROM conflicts")
    assert pick([conflict], "record", "step", "event_id", "natural_key", "versions", "ranks", "attempt") == [
        ("verdict", 3, event(3), "step=3", 2, [0, 1], 1)
    ]
    assert engine.rows("SELECT bad_steps, skipped FROM incidents") == [(1, 1)]
    assert engine.rows("SELECT bad_steps, incidents FROM runs") == [(1, 1)]


@pytest.mark.parametrize(
    ("kind", "arguments", "change", "key"),
    [
        ("run_start", (), {"pid": 7}, "rank=0"),
        ("step", (4,), {"loss": NAN}, "step=4 rank=0"),
        ("testimony", (4, 0), {"module": None}, "step=4"),
        ("evidence", (4, 0), {"nan_count": 1}, "step=4 rank=0 order_index=0"),
        ("run_end", (), {"exit_code": 1}, "rank=0"),
    ],
)
def test_two_contents_under_one_key_are_a_conflict_in_every_type(
    engine: Engine, kind: str, arguments: tuple[Any, ...], change: dict[str, Any], key: str
) -> None:
    """And equal copies are none."""
    make = Maker()
    one = getattr(make, kind)(*arguments)
    engine.add(one, one)
    assert engine.rows("SELECT * FROM conflicts") == []
    engine.add(getattr(make, kind)(*arguments, **change))
    assert engine.rows("SELECT record, natural_key, versions FROM conflicts") == [(kind, key, 2)]


def test_two_processes_under_one_rank_are_a_conflict(engine: Engine) -> None:
    """Different records under one place in a sequence."""
    engine.add(Maker().step(1, seq=5), Maker().gap(1, 2, seq=5))
    assert engine.rows("SELECT record, natural_key, versions FROM conflicts") == [("sequence", "rank=0 seq=5", 2)]


def test_attempts_count_the_starts_of_a_run_in_time(engine: Engine) -> None:
    """Whatever order they are loaded in; runs do not share numbers."""
    engine.add(Maker(incarnation="a" * 32, start=T0 + 900).step(0), Maker(incarnation="b" * 32).step(0))
    engine.add(Maker("run-b", incarnation="c" * 32, start=T0 + 500).step(0))
    assert engine.rows("SELECT run_id, incarnation, attempt FROM runs ORDER BY run_id, attempt") == [
        ("run-a", "b" * 32, 1), ("run-a", "a" * 32, 2), ("run-b", "c" * 32, 1)
    ]  # fmt: skip
    assert engine.rows("SELECT attempt, step FROM steps WHERE run_id = 'run-a' ORDER BY attempt") == [(1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("outcomes", "want"),
    [
        (["finished", "finished"], "finished"),
        (["finished", "stopped"], "stopped"),
        (["stopped", "failed"], "failed"),
        (["failed", None], "failed"),
        (["finished", None], None),
        (["stopped", None], None),
        ([None, None], None),
        (["finished"], None),
    ],
)
def test_a_runs_outcome_is_its_worst_ranks(engine: Engine, outcomes: list[str | None], want: str | None) -> None:
    """A world of two; a rank without run end, or without any record, leaves it open unless another failed."""
    make = Maker()
    for rank, outcome in enumerate(outcomes):
        engine.add(make.run_start(rank))
        if outcome is not None:
            engine.add(make.run_end(rank, outcome=outcome))
    assert engine.rows("SELECT outcome FROM runs") == [(want,)]


def test_gaps_name_every_hole_admission_and_open_end(engine: Engine) -> None:
    """Rank 0 lost 0-1 and 4; rank 1 admitted 2-3; rank 2 is behind and open; rank 3 never spoke."""
    make = Maker()
    engine.add(make.run_start(0, world_size=4, seq=2), make.step(0, 0), make.step(2, 0, seq=5), make.run_end(0))
    engine.add(make.run_start(1, world_size=4), make.step(0, 1), make.gap(2, 3, 1, seq=4, detail="late"))
    engine.add(make.step(2, 1), make.run_end(1))
    engine.add(make.run_start(2, world_size=4), make.step(0, 2))

    rows = engine.dicts("SELECT * FROM gaps ORDER BY rank, reason, first_seq")
    names = "rank reason first_seq last_seq missing admitted drop_reason last_step peers_last_step detail"
    assert pick(rows, *names.split()) == [
        (0, "missing", 0, 1, 2, False, None, None, None, None),
        (0, "missing", 4, 4, 1, False, None, None, None, None),
        (1, "dropped", 2, 3, 2, True, "queue_full", None, None, "late"),
        (2, "behind_peers", None, None, None, False, None, 0, 2, None),
        (2, "no_run_end", None, None, None, False, None, 0, 2, None),
        (3, "rank_missing", None, None, None, False, None, None, 2, None),
    ]
    assert {row["attempt"] for row in rows} == {1}


def test_an_incident_gathers_its_bad_steps_and_keeps_its_opening(engine: Engine) -> None:
    """A probe that turns into a fault: the kind of the opening is not rewritten."""
    make = Maker()
    engine.add(make.verdict(3, kind="scale_probe"), make.testimony(3))
    engine.add(make.verdict(4, incident_id=event(3), escalates=event(3), micro_step=0, elected_rank=0))
    engine.add(make.verdict(5, incident_id=event(3), action="stop"))
    engine.add(make.verdict(40, action="apply"))

    rows = engine.dicts("SELECT * FROM incidents ORDER BY first_step")
    names = "incident_id kind kinds escalated first_step last_step bad_steps applied skipped stopped last_action"
    assert pick(rows, *names.split()) == [
        (event(3), "scale_probe", ["fault", "scale_probe"], True, 3, 5, 3, 0, 2, 1, "stop"),
        (event(40), "fault", ["fault"], False, 40, 40, 1, 1, 0, 0, "apply"),
    ]
    names = "rank micro_step first_bad_stage module action sample_ids valid_tokens"
    assert pick(rows, *names.split()) == [
        (1, 1, "loss", "head", "skip", ["a.py:f", "a.py:g"], 0),
        (1, 1, "loss", None, "apply", [], None),
    ]
    assert engine.rows("SELECT step FROM first_bad_steps ORDER BY step") == [(3,), (40,)]


def test_an_incident_without_its_opening_is_still_there(engine: Engine) -> None:
    """All copies of the opening verdict are lost: what only it held is null."""
    engine.add(Maker().verdict(4, incident_id=event(3)))
    [row] = engine.dicts("SELECT * FROM incidents")
    names = "incident_id kind first_step bad_steps rank elected_rank all_ranks action last_good_step first_bad_stage"
    assert pick([row], *names.split()) == [(event(3), None, 4, 1, None, None, None, None, None, None)]
    assert engine.rows("SELECT * FROM first_bad_steps") == []


def test_bad_steps_are_counted_also_when_only_step_rows_know(engine: Engine) -> None:
    """Every verdict copy was lost; the ranks' own rows still say so."""
    make = Maker()
    engine.add(make.step(0), make.step(1, first_bad_stage="grad"), make.step(1, 1, first_bad_stage="grad"))
    assert engine.rows("SELECT bad_steps, incidents, first_bad_step FROM runs") == [(1, 0, 1)]


def test_dead_letters_show_their_bytes_whatever_they_are(engine: Engine) -> None:
    """Exactly in hexadecimal, and printable for a person."""
    engine.command(
        "INSERT INTO dead_letter_records (file, offset, reason, detail, bytes, content_hash, ingest_ts) VALUES "
        "('node0/x.fbj', 17, 'damaged_frame', 'crc', unhex('00ff41e282ac27'), 5, '2024-01-01 00:00:00')"
    )
    [row] = engine.dicts("SELECT * FROM dead_letters")
    assert pick([row], "host", "segment", "offset", "length", "reason", "preview", "bytes_hex") == [
        ("node0", "node0/x.fbj", 17, 7, "damaged_frame", "..A.'", "00ff41e282ac27")
    ]


def test_a_view_file_in_another_form_is_refused() -> None:
    """The docs and these tests read the column list, so its form is checked."""
    good = (
        "-- One row.\nCREATE OR REPLACE VIEW v\n(\n    a UInt8 COMMENT 'it''s',\n"
        "    b Map(String, String) COMMENT 'm'\n) AS\nSELECT 1;\n"
    )
    parsed = parse_view(SqlFile("01_v.sql", good))
    assert [(item.name, item.type, item.description) for item in parsed.columns] == [
        ("a", "UInt8", "it's"), ("b", "Map(String, String)", "m")
    ]  # fmt: skip
    for name, text in [
        ("v.sql", good),
        ("01_v.sql", good.replace("-- One row.\n", "")),
        ("01_v.sql", good.replace(" COMMENT 'm'", "")),
        ("01_v.sql", "SELECT 1;"),
    ]:
        with pytest.raises(ViewError, match=name):
            parse_view(SqlFile(name, text))
