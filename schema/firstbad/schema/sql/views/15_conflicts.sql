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
    natural_key Nullable(String) COMMENT 'What the records have in common within their run and incarnation, as ''step=5 rank=2''.',
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
        run_id,
        incarnation,
        CAST(NULL, 'Nullable(UInt64)') AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('rank=', toString(rank)) AS natural_key,
        uniqExact(content_hash) AS versions,
        arraySort(groupUniqArray(content_hash)) AS content_hashes,
        arraySort(groupUniqArray(rank)) AS ranks,
        min(ts) AS first_ts,
        max(ts) AS last_ts,
        max(ingest_ts) AS last_ingest_ts
    FROM run_start_records
    GROUP BY run_id, incarnation, rank
    HAVING min(content_hash) != max(content_hash)
    UNION ALL
    SELECT
        'step' AS record,
        run_id,
        incarnation,
        toNullable(step) AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('step=', toString(step), ' rank=', toString(rank)) AS natural_key,
        uniqExact(content_hash) AS versions,
        arraySort(groupUniqArray(content_hash)) AS content_hashes,
        arraySort(groupUniqArray(rank)) AS ranks,
        min(ts) AS first_ts,
        max(ts) AS last_ts,
        max(ingest_ts) AS last_ingest_ts
    FROM step_records
    GROUP BY run_id, incarnation, step, rank
    HAVING min(content_hash) != max(content_hash)
    UNION ALL
    SELECT
        'verdict' AS record,
        run_id,
        incarnation,
        toNullable(step) AS step,
        toNullable(min(event_id)) AS event_id,
        concat('step=', toString(step)) AS natural_key,
        uniqExact(content_hash) AS versions,
        arraySort(groupUniqArray(content_hash)) AS content_hashes,
        arraySort(groupUniqArray(rank)) AS ranks,
        min(ts) AS first_ts,
        max(ts) AS last_ts,
        max(ingest_ts) AS last_ingest_ts
    FROM verdict_records
    GROUP BY run_id, incarnation, step
    HAVING min(content_hash) != max(content_hash)
    UNION ALL
    SELECT
        'testimony' AS record,
        run_id,
        incarnation,
        toNullable(step) AS step,
        toNullable(min(event_id)) AS event_id,
        concat('step=', toString(step)) AS natural_key,
        uniqExact(content_hash) AS versions,
        arraySort(groupUniqArray(content_hash)) AS content_hashes,
        arraySort(groupUniqArray(rank)) AS ranks,
        min(ts) AS first_ts,
        max(ts) AS last_ts,
        max(ingest_ts) AS last_ingest_ts
    FROM testimony_records
    GROUP BY run_id, incarnation, step
    HAVING min(content_hash) != max(content_hash)
    UNION ALL
    SELECT
        'evidence' AS record,
        run_id,
        incarnation,
        toNullable(step) AS step,
        toNullable(min(event_id)) AS event_id,
        concat('step=', toString(step), ' rank=', toString(rank), ' order_index=', toString(order_index)) AS natural_key,
        uniqExact(content_hash) AS versions,
        arraySort(groupUniqArray(content_hash)) AS content_hashes,
        arraySort(groupUniqArray(rank)) AS ranks,
        min(ts) AS first_ts,
        max(ts) AS last_ts,
        max(ingest_ts) AS last_ingest_ts
    FROM evidence_records
    GROUP BY run_id, incarnation, step, rank, order_index
    HAVING min(content_hash) != max(content_hash)
    UNION ALL
    SELECT
        'run_end' AS record,
        run_id,
        incarnation,
        CAST(NULL, 'Nullable(UInt64)') AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('rank=', toString(rank)) AS natural_key,
        uniqExact(content_hash) AS versions,
        arraySort(groupUniqArray(content_hash)) AS content_hashes,
        arraySort(groupUniqArray(rank)) AS ranks,
        min(ts) AS first_ts,
        max(ts) AS last_ts,
        max(ingest_ts) AS last_ingest_ts
    FROM run_end_records
    GROUP BY run_id, incarnation, rank
    HAVING min(content_hash) != max(content_hash)
    UNION ALL
    SELECT
        'gap' AS record,
        run_id,
        incarnation,
        CAST(NULL, 'Nullable(UInt64)') AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('rank=', toString(rank), ' seq=', toString(seq)) AS natural_key,
        uniqExact(content_hash) AS versions,
        arraySort(groupUniqArray(content_hash)) AS content_hashes,
        arraySort(groupUniqArray(rank)) AS ranks,
        min(ts) AS first_ts,
        max(ts) AS last_ts,
        max(ingest_ts) AS last_ingest_ts
    FROM gap_records
    GROUP BY run_id, incarnation, rank, seq
    HAVING min(content_hash) != max(content_hash)
    UNION ALL
    -- Two different records under one place in a rank's sequence: two processes called themselves the same rank.
    SELECT
        'sequence' AS record,
        run_id,
        incarnation,
        CAST(NULL, 'Nullable(UInt64)') AS step,
        CAST(NULL, 'Nullable(String)') AS event_id,
        concat('rank=', toString(rank), ' seq=', toString(seq)) AS natural_key,
        uniqExact(content_hash) AS versions,
        arraySort(groupUniqArray(content_hash)) AS content_hashes,
        arraySort(groupUniqArray(rank)) AS ranks,
        min(ts) AS first_ts,
        max(ts) AS last_ts,
        max(ingest_ts) AS last_ingest_ts
    FROM internal_record_index
    GROUP BY run_id, incarnation, rank, seq
    HAVING min(content_hash) != max(content_hash)
) AS c
INNER JOIN internal_attempts AS a ON c.run_id = a.run_id AND c.incarnation = a.incarnation;
