-- One row per fact that is told in two ways: different contents under one natural key. None is merged away or
-- preferred.
CREATE OR REPLACE VIEW conflicts
(
    record String COMMENT 'Record type, as verdict; sequence: different records under one sequence number of a rank.',
    run_id LowCardinality(String) COMMENT 'Run, stable over restarts of one job.',
    incarnation LowCardinality(String) COMMENT 'One start of the run: a time-ordered 128-bit id shared by all ranks.',
    attempt UInt32 COMMENT 'Which start of the run this is, from 1: dense rank of its incarnations by their first time.',
    step Nullable(UInt64) COMMENT 'The step that the records are about; null for types without one.',
    event_id Nullable(String) COMMENT 'The event that the records are about, the smallest where they differ; null for types without one.',
    natural_key String COMMENT 'What the records have in common within their run and incarnation, as ''step=5 rank=2''.',
    versions UInt64 COMMENT 'Different contents, at least 2.',
    content_hashes Array(UInt64) COMMENT 'Their hashes, ascending.',
    ranks Array(UInt32) COMMENT 'Ranks that wrote them, ascending.',
    first_ts DateTime64(6, 'UTC') COMMENT 'Smallest time of the records, UTC.',
    last_ts DateTime64(6, 'UTC') COMMENT 'Largest time of the records, UTC.',
    last_ingest_ts DateTime64(6, 'UTC') COMMENT 'When the collector began the insert of the newest, UTC.'
) AS
SELECT
    c.record AS record,
    c.run_id AS run_id,
    c.incarnation AS incarnation,
    a.attempt AS attempt,
    c.step AS step,
    c.event_id AS event_id,
    c.natural_key AS natural_key,
    c.versions AS versions,
    c.content_hashes AS content_hashes,
    c.ranks AS ranks,
    c.first_ts AS first_ts,
    c.last_ts AS last_ts,
    c.last_ingest_ts AS last_ingest_ts
FROM
(
    SELECT
        'run_start' AS record,
        t.run_id AS run_id,
        t.incarnation AS incarnation,
        CAST(NULL, 'Nullable(UInt64)') AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('rank=', toString(t.rank)) AS natural_key,
        uniqExact(t.content_hash) AS versions,
        arraySort(groupUniqArray(t.content_hash)) AS content_hashes,
        arraySort(groupUniqArray(t.rank)) AS ranks,
        min(t.ts) AS first_ts,
        max(t.ts) AS last_ts,
        max(t.ingest_ts) AS last_ingest_ts
    FROM run_start_records AS t
    INNER JOIN
    (
        SELECT run_id, incarnation, rank
        FROM run_start_records
        GROUP BY run_id, incarnation, rank
        HAVING min(content_hash) != max(content_hash)
    ) AS k
        ON t.run_id = k.run_id AND t.incarnation = k.incarnation AND t.rank = k.rank
    GROUP BY t.run_id, t.incarnation, t.rank
    UNION ALL
    SELECT
        'step' AS record,
        t.run_id AS run_id,
        t.incarnation AS incarnation,
        toNullable(t.step) AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('step=', toString(t.step), ' rank=', toString(t.rank)) AS natural_key,
        uniqExact(t.content_hash) AS versions,
        arraySort(groupUniqArray(t.content_hash)) AS content_hashes,
        arraySort(groupUniqArray(t.rank)) AS ranks,
        min(t.ts) AS first_ts,
        max(t.ts) AS last_ts,
        max(t.ingest_ts) AS last_ingest_ts
    FROM step_records AS t
    INNER JOIN
    (
        SELECT run_id, incarnation, step, rank
        FROM step_records
        GROUP BY run_id, incarnation, step, rank
        HAVING min(content_hash) != max(content_hash)
    ) AS k
        ON t.run_id = k.run_id AND t.incarnation = k.incarnation AND t.step = k.step AND t.rank = k.rank
    GROUP BY t.run_id, t.incarnation, t.step, t.rank
    UNION ALL
    SELECT
        'verdict' AS record,
        t.run_id AS run_id,
        t.incarnation AS incarnation,
        toNullable(t.step) AS step,
        toNullable(min(t.event_id)) AS event_id,
        concat('step=', toString(t.step)) AS natural_key,
        uniqExact(t.content_hash) AS versions,
        arraySort(groupUniqArray(t.content_hash)) AS content_hashes,
        arraySort(groupUniqArray(t.rank)) AS ranks,
        min(t.ts) AS first_ts,
        max(t.ts) AS last_ts,
        max(t.ingest_ts) AS last_ingest_ts
    FROM verdict_records AS t
    INNER JOIN
    (
        SELECT run_id, incarnation, step
        FROM verdict_records
        GROUP BY run_id, incarnation, step
        HAVING min(content_hash) != max(content_hash)
    ) AS k
        ON t.run_id = k.run_id AND t.incarnation = k.incarnation AND t.step = k.step
    GROUP BY t.run_id, t.incarnation, t.step
    UNION ALL
    SELECT
        'testimony' AS record,
        t.run_id AS run_id,
        t.incarnation AS incarnation,
        toNullable(t.step) AS step,
        toNullable(min(t.event_id)) AS event_id,
        concat('step=', toString(t.step)) AS natural_key,
        uniqExact(t.content_hash) AS versions,
        arraySort(groupUniqArray(t.content_hash)) AS content_hashes,
        arraySort(groupUniqArray(t.rank)) AS ranks,
        min(t.ts) AS first_ts,
        max(t.ts) AS last_ts,
        max(t.ingest_ts) AS last_ingest_ts
    FROM testimony_records AS t
    INNER JOIN
    (
        SELECT run_id, incarnation, step
        FROM testimony_records
        GROUP BY run_id, incarnation, step
        HAVING min(content_hash) != max(content_hash)
    ) AS k
        ON t.run_id = k.run_id AND t.incarnation = k.incarnation AND t.step = k.step
    GROUP BY t.run_id, t.incarnation, t.step
    UNION ALL
    SELECT
        'evidence' AS record,
        t.run_id AS run_id,
        t.incarnation AS incarnation,
        toNullable(t.step) AS step,
        toNullable(min(t.event_id)) AS event_id,
        concat('step=', toString(t.step), ' rank=', toString(t.rank), ' order_index=', toString(t.order_index)) AS natural_key,
        uniqExact(t.content_hash) AS versions,
        arraySort(groupUniqArray(t.content_hash)) AS content_hashes,
        arraySort(groupUniqArray(t.rank)) AS ranks,
        min(t.ts) AS first_ts,
        max(t.ts) AS last_ts,
        max(t.ingest_ts) AS last_ingest_ts
    FROM evidence_records AS t
    INNER JOIN
    (
        SELECT run_id, incarnation, step, rank, order_index
        FROM evidence_records
        GROUP BY run_id, incarnation, step, rank, order_index
        HAVING min(content_hash) != max(content_hash)
    ) AS k
        ON t.run_id = k.run_id AND t.incarnation = k.incarnation AND t.step = k.step AND t.rank = k.rank AND t.order_index = k.order_index
    GROUP BY t.run_id, t.incarnation, t.step, t.rank, t.order_index
    UNION ALL
    SELECT
        'run_end' AS record,
        t.run_id AS run_id,
        t.incarnation AS incarnation,
        CAST(NULL, 'Nullable(UInt64)') AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('rank=', toString(t.rank)) AS natural_key,
        uniqExact(t.content_hash) AS versions,
        arraySort(groupUniqArray(t.content_hash)) AS content_hashes,
        arraySort(groupUniqArray(t.rank)) AS ranks,
        min(t.ts) AS first_ts,
        max(t.ts) AS last_ts,
        max(t.ingest_ts) AS last_ingest_ts
    FROM run_end_records AS t
    INNER JOIN
    (
        SELECT run_id, incarnation, rank
        FROM run_end_records
        GROUP BY run_id, incarnation, rank
        HAVING min(content_hash) != max(content_hash)
    ) AS k
        ON t.run_id = k.run_id AND t.incarnation = k.incarnation AND t.rank = k.rank
    GROUP BY t.run_id, t.incarnation, t.rank
    UNION ALL
    SELECT
        'gap' AS record,
        t.run_id AS run_id,
        t.incarnation AS incarnation,
        CAST(NULL, 'Nullable(UInt64)') AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('rank=', toString(t.rank), ' seq=', toString(t.seq)) AS natural_key,
        uniqExact(t.content_hash) AS versions,
        arraySort(groupUniqArray(t.content_hash)) AS content_hashes,
        arraySort(groupUniqArray(t.rank)) AS ranks,
        min(t.ts) AS first_ts,
        max(t.ts) AS last_ts,
        max(t.ingest_ts) AS last_ingest_ts
    FROM gap_records AS t
    INNER JOIN
    (
        SELECT run_id, incarnation, rank, seq
        FROM gap_records
        GROUP BY run_id, incarnation, rank, seq
        HAVING min(content_hash) != max(content_hash)
    ) AS k
        ON t.run_id = k.run_id AND t.incarnation = k.incarnation AND t.rank = k.rank AND t.seq = k.seq
    GROUP BY t.run_id, t.incarnation, t.rank, t.seq
    UNION ALL
    -- Two different records under one place in a rank's sequence: two processes called themselves the same rank.
    SELECT
        'sequence' AS record,
        t.run_id AS run_id,
        t.incarnation AS incarnation,
        CAST(NULL, 'Nullable(UInt64)') AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('rank=', toString(t.rank), ' seq=', toString(t.seq)) AS natural_key,
        uniqExact(t.content_hash) AS versions,
        arraySort(groupUniqArray(t.content_hash)) AS content_hashes,
        arraySort(groupUniqArray(t.rank)) AS ranks,
        min(t.ts) AS first_ts,
        max(t.ts) AS last_ts,
        max(t.ingest_ts) AS last_ingest_ts
    FROM internal_record_index AS t
    INNER JOIN
    (
        SELECT run_id, incarnation, rank, seq
        FROM internal_record_index
        GROUP BY run_id, incarnation, rank, seq
        HAVING min(content_hash) != max(content_hash)
    ) AS k
        ON t.run_id = k.run_id AND t.incarnation = k.incarnation AND t.rank = k.rank AND t.seq = k.seq
    GROUP BY t.run_id, t.incarnation, t.rank, t.seq
) AS c
INNER JOIN internal_attempts AS a ON c.run_id = a.run_id AND c.incarnation = a.incarnation;
