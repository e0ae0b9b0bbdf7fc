-- Internal. The testimony of each rank on each bad step, the first where there are several; to be joined, so null
-- instead of defaults.
CREATE OR REPLACE VIEW internal_testimonies AS
SELECT
    run_id,
    incarnation,
    step,
    rank,
    toNullable(host) AS host,
    toNullable(event_id) AS event_id,
    micro_step,
    toNullable(stage) AS stage,
    module,
    parameter,
    loss,
    total_grad_norm,
    loss_scale_before,
    loss_scale_after,
    learning_rate,
    trainer_step,
    global_batch_id,
    dataset_version,
    shard_id,
    sample_ids,
    valid_tokens,
    rng_state_hash,
    checkpoint_parent,
    device,
    device_uuid,
    model_commit,
    config_hash,
    tokenizer_hash,
    precision
FROM testimony_records FINAL
ORDER BY ingest_ts, content_hash
LIMIT 1 BY run_id, incarnation, step, rank;
