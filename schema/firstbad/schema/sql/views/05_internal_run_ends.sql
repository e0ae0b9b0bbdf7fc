-- Internal. The run end of each rank, the first where there are several; to be joined, so null instead of defaults.
CREATE OR REPLACE VIEW internal_run_ends AS
SELECT
    run_id,
    incarnation,
    rank,
    toNullable(ts) AS ts,
    toNullable(outcome) AS outcome,
    exit_code,
    toNullable(steps) AS steps,
    toNullable(applied_steps) AS applied_steps,
    step,
    micro_step,
    error_type,
    error,
    global_batch_id,
    shard_id,
    sample_ids,
    valid_tokens,
    toNullable(records_written) AS records_written,
    toNullable(records_dropped) AS records_dropped,
    toNullable(event_waits_timed_out) AS event_waits_timed_out,
    observers_off
FROM run_end_records FINAL
ORDER BY ingest_ts, content_hash
LIMIT 1 BY run_id, incarnation, rank;
