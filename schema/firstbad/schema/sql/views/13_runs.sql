-- One row per start (incarnation) of a run. Restarts of one job share run_id and count up in attempt.
CREATE OR REPLACE VIEW runs
(
    run_id LowCardinality(String) COMMENT 'Run, stable over restarts of one job.',
    incarnation LowCardinality(String) COMMENT 'One start of the run: a time-ordered 128-bit id shared by all ranks.',
    attempt UInt32 COMMENT 'Which start of the run this is, from 1: dense rank of its incarnations by their first time.',
    started_ts DateTime64(6, 'UTC') COMMENT 'Smallest time in its records, UTC, by the ranks'' clocks.',
    last_ts DateTime64(6, 'UTC') COMMENT 'Largest time in its records, UTC, by the ranks'' clocks.',
    last_ingest_ts DateTime64(6, 'UTC') COMMENT 'When the collector began the insert of its newest record, UTC, by its own clock.',
    world_size Nullable(UInt32) COMMENT 'Ranks of this start, by its run starts, else its verdicts; null when neither is here.',
    ranks UInt64 COMMENT 'Ranks of which any record is here.',
    ended_ranks UInt64 COMMENT 'Ranks whose run end is here.',
    outcome Nullable(String) COMMENT 'failed when a rank failed; else null until every rank has ended, then stopped or finished.',
    last_step Nullable(UInt64) COMMENT 'Largest step with a row on any rank; null when there is no row.',
    steps Nullable(UInt64) COMMENT 'Attempted updates: last_step + 1; null when there is no row.',
    applied_steps Nullable(UInt64) COMMENT 'Updates applied, largest over ranks; null when there is no row.',
    skipped_steps Nullable(UInt64) COMMENT 'Updates left out, largest over ranks; null when there is no row.',
    bad_steps UInt64 COMMENT 'Distinct bad steps that are known, by verdicts or step rows.',
    incidents UInt64 COMMENT 'Incidents that are known.',
    first_bad_step Nullable(UInt64) COMMENT 'Smallest bad step that is known; null when there is none.',
    policy Nullable(String) COMMENT 'observe, skip or stop, of the lowest rank that told; null without run start.',
    steered Nullable(Bool) COMMENT 'False when a rank''s script is only observed although the policy would act; null without run start.',
    max_consecutive_skips Nullable(UInt32) COMMENT 'Skips in a row that are allowed; the next one stops the run; null without run start.',
    max_skip_ratio Nullable(Float64) COMMENT 'Allowed share of skips among the last 200 steps, 0 to 1; null without run start.',
    records UInt64 COMMENT 'Records that are here, copies counted once, all ranks.',
    records_dropped Nullable(UInt64) COMMENT 'Records that ranks said at run end to have dropped, sum; null when no rank has ended.',
    hosts UInt64 COMMENT 'Distinct hosts of its ranks.',
    effective_global_batch Nullable(UInt64) COMMENT 'Samples per update = per-rank batch x data parallel x accumulation; null when unknown.',
    agent_version Nullable(String) COMMENT 'Version of firstbad that wrote the record; null without run start.',
    torch_version Nullable(String) COMMENT 'torch.__version__; null without run start.',
    model_commit Nullable(String) COMMENT 'Git commit of the script''s repository; null outside git.',
    model_dirty Nullable(Bool) COMMENT 'Tracked files differ from model_commit; null outside git.',
    config_hash Nullable(String) COMMENT 'SHA-256 prefix over argv, parameter groups and module structure; null until they are known.',
    tokenizer_hash Nullable(String) COMMENT 'Tokenizer identity, from the user; null when unknown.',
    dataset_version Nullable(String) COMMENT 'Dataset identity, from the user; null when unknown.',
    precision Nullable(String) COMMENT 'fp32, bf16, fp16 or mixed, by parameters and autocast; null when unknown.',
    checkpoint_parent Nullable(String) COMMENT 'Last path read by torch.load before this record; null when none.'
) AS
SELECT
    k.run_id AS run_id,
    k.incarnation AS incarnation,
    any(k.attempt) AS attempt,
    min(k.started_ts) AS started_ts,
    max(k.last_ts) AS last_ts,
    max(k.last_ingest_ts) AS last_ingest_ts,
    coalesce(max(k.world_size), any(b.world_size)) AS world_size,
    count() AS ranks,
    countIf(k.outcome IS NOT NULL) AS ended_ranks,
    multiIf(
        countIf(k.outcome = 'failed') > 0, toNullable('failed'),
        countIf(k.outcome IS NOT NULL) < greatest(count(), ifNull(world_size, 0)), NULL,
        countIf(k.outcome = 'stopped') > 0, toNullable('stopped'),
        toNullable('finished')
    ) AS outcome,
    max(k.last_step) AS last_step,
    last_step + 1 AS steps,
    max(k.applied_steps) AS applied_steps,
    max(k.skipped_steps) AS skipped_steps,
    ifNull(any(b.bad_steps), 0) AS bad_steps,
    ifNull(any(b.incidents), 0) AS incidents,
    any(b.first_bad_step) AS first_bad_step,
    argMin(k.policy, k.rank) AS policy,
    toBool(min(k.steered)) AS steered,
    argMin(k.max_consecutive_skips, k.rank) AS max_consecutive_skips,
    argMin(k.max_skip_ratio, k.rank) AS max_skip_ratio,
    sum(k.records) AS records,
    sum(k.records_dropped) AS records_dropped,
    uniqExact(k.host) AS hosts,
    argMin(k.effective_global_batch, k.rank) AS effective_global_batch,
    argMin(k.agent_version, k.rank) AS agent_version,
    argMin(k.torch_version, k.rank) AS torch_version,
    argMin(k.model_commit, k.rank) AS model_commit,
    argMin(k.model_dirty, k.rank) AS model_dirty,
    argMin(k.config_hash, k.rank) AS config_hash,
    argMin(k.tokenizer_hash, k.rank) AS tokenizer_hash,
    argMin(k.dataset_version, k.rank) AS dataset_version,
    argMin(k.precision, k.rank) AS precision,
    argMin(k.checkpoint_parent, k.rank) AS checkpoint_parent
FROM ranks AS k
LEFT JOIN
(
    SELECT
        run_id,
        incarnation,
        toNullable(uniqExact(step)) AS bad_steps,
        toNullable(uniqExact(incident_id)) AS incidents,
        toNullable(min(step)) AS first_bad_step,
        max(world_size) AS world_size
    FROM
    (
        SELECT run_id, incarnation, step, toNullable(incident_id) AS incident_id, toNullable(world_size) AS world_size
        FROM verdict_records
        UNION ALL
        SELECT run_id, incarnation, step, NULL AS incident_id, NULL AS world_size
        FROM step_records
        WHERE first_bad_stage IS NOT NULL
    )
    GROUP BY run_id, incarnation
) AS b
    ON k.run_id = b.run_id AND k.incarnation = b.incarnation
GROUP BY k.run_id, k.incarnation;
