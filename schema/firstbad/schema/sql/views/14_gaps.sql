-- One row per thing that is not here and should be. A running job has open ends: `no_run_end` and `behind_peers` are
-- then only the present state.
CREATE OR REPLACE VIEW gaps
(
    run_id LowCardinality(String) COMMENT 'Run, stable over restarts of one job.',
    incarnation LowCardinality(String) COMMENT 'One start of the run: a time-ordered 128-bit id shared by all ranks.',
    attempt UInt32 COMMENT 'Which start of the run this is, from 1: dense rank of its incarnations by their first time.',
    rank UInt32 COMMENT 'The rank of which something is not here.',
    reason String COMMENT 'missing: a hole in its sequence; dropped: it said so itself; behind_peers: its last step row is before its peers''; no_run_end: running, killed, or not collected yet; rank_missing: no record of it is here at all.',
    first_seq Nullable(UInt64) COMMENT 'First sequence number that is not here; null for ends and ranks.',
    last_seq Nullable(UInt64) COMMENT 'Last sequence number that is not here, inclusive; null for ends and ranks.',
    missing Nullable(UInt64) COMMENT 'Records that are not here; null when that is unknown.',
    admitted Bool COMMENT 'The agent itself said that it dropped them.',
    drop_reason Nullable(String) COMMENT 'queue_full, journal_full, write_failed or invalid, as the agent said; null otherwise.',
    last_step Nullable(UInt64) COMMENT 'Largest step with a row on this rank; null when it has none, and for holes.',
    peers_last_step Nullable(UInt64) COMMENT 'Largest step with a row on any rank; null when there is none, and for holes.',
    detail Nullable(String) COMMENT 'Error text of the agent; null when there was none.',
    ts Nullable(DateTime64(6, 'UTC')) COMMENT 'Time of the record after the hole, of the admission, or of the rank''s last record, UTC; null when there is none.'
) AS
SELECT
    g.run_id AS run_id,
    g.incarnation AS incarnation,
    a.attempt AS attempt,
    g.rank AS rank,
    g.reason AS reason,
    g.first_seq AS first_seq,
    g.last_seq AS last_seq,
    g.missing AS missing,
    toBool(g.reason = 'dropped') AS admitted,
    g.drop_reason AS drop_reason,
    g.last_step AS last_step,
    g.peers_last_step AS peers_last_step,
    g.detail AS detail,
    g.ts AS ts
FROM
(
    -- Holes in a rank's sequence that no admission covers.
    SELECT
        run_id,
        incarnation,
        rank,
        'missing' AS reason,
        toNullable(expected) AS first_seq,
        toNullable(toUInt64(starts - 1)) AS last_seq,
        toNullable(toUInt64(starts - expected)) AS missing,
        CAST(NULL, 'Nullable(String)') AS drop_reason,
        CAST(NULL, 'Nullable(UInt64)') AS last_step,
        CAST(NULL, 'Nullable(UInt64)') AS peers_last_step,
        CAST(NULL, 'Nullable(String)') AS detail,
        toNullable(seen_ts) AS ts
    FROM
    (
        SELECT
            run_id,
            incarnation,
            rank,
            starts,
            seen_ts,
            -- An empty frame gives 0, the first number of every sequence.
            max(ends + 1) OVER (
                PARTITION BY run_id, incarnation, rank
                ORDER BY starts
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS expected
        FROM
        (
            SELECT run_id, incarnation, rank, seq AS starts, seq AS ends, ts AS seen_ts FROM internal_record_index
            UNION ALL
            SELECT run_id, incarnation, rank, first_seq AS starts, last_seq AS ends, ts AS seen_ts FROM gap_records
        )
    )
    WHERE starts > expected

    UNION ALL

    -- What an agent says it dropped.
    SELECT
        run_id,
        incarnation,
        rank,
        'dropped' AS reason,
        toNullable(first_seq) AS first_seq,
        toNullable(last_seq) AS last_seq,
        toNullable(dropped) AS missing,
        CAST(r.reason, 'Nullable(String)') AS drop_reason,
        CAST(NULL, 'Nullable(UInt64)') AS last_step,
        CAST(NULL, 'Nullable(UInt64)') AS peers_last_step,
        detail,
        toNullable(r.ts) AS ts
    FROM gap_records AS r FINAL

    UNION ALL

    SELECT
        run_id,
        incarnation,
        rank,
        arrayJoin(arrayFilter(
            reason -> reason != '',
            [
                if(ifNull(toInt64(k.last_step), -1) < ifNull(toInt64(k.peers_last_step), -1), 'behind_peers', ''),
                if(k.outcome IS NULL, 'no_run_end', '')
            ]
        )) AS reason,
        CAST(NULL, 'Nullable(UInt64)') AS first_seq,
        CAST(NULL, 'Nullable(UInt64)') AS last_seq,
        CAST(NULL, 'Nullable(UInt64)') AS missing,
        CAST(NULL, 'Nullable(String)') AS drop_reason,
        k.last_step AS last_step,
        k.peers_last_step AS peers_last_step,
        CAST(NULL, 'Nullable(String)') AS detail,
        toNullable(k.last_ts) AS ts
    FROM ranks AS k

    UNION ALL

    -- Ranks of the world that never said anything.
    SELECT
        run_id,
        incarnation,
        arrayJoin(range(ifNull(u.world_size, 0))) AS rank,
        'rank_missing' AS reason,
        CAST(NULL, 'Nullable(UInt64)') AS first_seq,
        CAST(NULL, 'Nullable(UInt64)') AS last_seq,
        CAST(NULL, 'Nullable(UInt64)') AS missing,
        CAST(NULL, 'Nullable(String)') AS drop_reason,
        CAST(NULL, 'Nullable(UInt64)') AS last_step,
        u.last_step AS peers_last_step,
        CAST(NULL, 'Nullable(String)') AS detail,
        CAST(NULL, 'Nullable(DateTime64(6, \'UTC\'))') AS ts
    FROM runs AS u
    WHERE (run_id, incarnation, rank) NOT IN (SELECT run_id, incarnation, rank FROM internal_record_index)
) AS g
INNER JOIN internal_attempts AS a ON g.run_id = a.run_id AND g.incarnation = a.incarnation;
