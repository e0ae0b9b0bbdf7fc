-- One row per bad step: what all ranks decided, and what the rank that was elected to testify saw. Written by several
-- ranks, shown once. Columns that only the testimony holds are null, or empty, when it died with its rank. Two rows
-- for one step differ in content; see `conflict`.
CREATE OR REPLACE VIEW bad_steps
(
    event_id String COMMENT 'Hash of (run_id, incarnation, step).',
    incident_id String COMMENT 'event_id of the opening bad step of this incident.',
    kind String COMMENT 'fault or scale_probe.',
    escalates Nullable(String) COMMENT 'The incident''s opening id when this event turns a scale_probe into a fault; else null.',
    run_id LowCardinality(String) COMMENT 'Run, stable over restarts of one job.',
    incarnation LowCardinality(String) COMMENT 'One start of the run: a time-ordered 128-bit id shared by all ranks.',
    attempt UInt32 COMMENT 'Which start of the run this is, from 1: dense rank of its incarnations by their first time.',
    step UInt64 COMMENT 'The bad step: attempted updates, from 0.',
    origin_step UInt64 COMMENT 'Step that made the bad value: step, or step-1 when the stage is update.',
    last_good_step Int64 COMMENT 'Last step whose result is known good; -1 when there is none.',
    micro_step Nullable(UInt32) COMMENT 'First bad micro step, from 0; null when no observer saw which.',
    rank Nullable(UInt32) COMMENT 'The first offender; null when no rank can be called guilty: every rank saw it, or it was seen only after reduction.',
    elected_rank UInt32 COMMENT 'Rank with the smallest election key; the testimony, host, device and batch here are its own.',
    all_ranks Bool COMMENT 'Every rank of a world of two or more nominated itself at this stage.',
    first_bad_stage String COMMENT 'Stage of the first offender.',
    module Nullable(String) COMMENT 'Module where the bad value was first seen; null when not observed.',
    parameter Nullable(String) COMMENT 'Parameter whose gradient or value was first bad; null when not observed.',
    policy String COMMENT 'Policy in force.',
    action String COMMENT 'What all ranks did: apply (observe), skip or stop.',
    advised_action String COMMENT 'What policy skip with the same budget would have done.',
    reason String COMMENT 'One sentence for a person: why this action.',
    consecutive_skips UInt32 COMMENT 'Bad steps in a row up to this one, as the skip budget counts them.',
    window_skips UInt32 COMMENT 'Bad steps among the last 200 steps, as the skip budget counts them.',
    applied Nullable(Bool) COMMENT 'Whether the update was applied, by the ranks'' step rows, else by the action; null when that is unknown or ranks differ.',
    ts DateTime64(6, 'UTC') COMMENT 'When the first of the writing ranks made the verdict, UTC, by its own clock.',
    ingest_ts DateTime64(6, 'UTC') COMMENT 'When the collector began the insert of the row, UTC, by its own clock; of several copies the first.',
    loss Nullable(Float64) COMMENT 'Loss of the offending micro step on the elected rank, divided by the loss scale; null when unknown.',
    total_grad_norm Nullable(Float64) COMMENT 'The trainer''s own pre-clip norm; null when it computed none.',
    loss_scale_before Nullable(Float64) COMMENT 'Loss scale used; null without a scaler.',
    loss_scale_after Nullable(Float64) COMMENT 'Loss scale ordered for the next step; null without a scaler.',
    learning_rate Nullable(Float64) COMMENT 'Learning rate of the first parameter group; null when unknown.',
    trainer_step Nullable(Int64) COMMENT 'The trainer''s own step count; null when not told.',
    global_batch_id Nullable(String) COMMENT 'The trainer''s name of the global batch; null when not told.',
    batch_fingerprint Nullable(UInt64) COMMENT 'Hash over the integer inputs of the elected rank''s whole step; null when not computed.',
    dataset_version Nullable(String) COMMENT 'Dataset version of the batch, else of the run; null when not told.',
    shard_id Array(String) COMMENT 'Shards of the offending micro step, in order of use; empty when not told.',
    sample_ids Array(String) COMMENT 'All sample ids of the offending micro step, of the whole window when micro_step is null; empty when not told.',
    valid_tokens Nullable(UInt64) COMMENT 'Labels of the offending micro step that count in the loss; null when not told.',
    rng_state_hash Nullable(String) COMMENT 'SHA-256 prefix of the RNG states at the decision; null when unknown.',
    checkpoint_parent Nullable(String) COMMENT 'Last path read by torch.load before the decision; null when none, or without testimony.',
    host Nullable(String) COMMENT 'Host of the elected rank; null when neither testimony nor run start is here.',
    device Nullable(String) COMMENT 'Device, as torch prints it; null when unknown.',
    device_uuid Nullable(String) COMMENT 'UUID of the accelerator; null on CPU.',
    model_commit Nullable(String) COMMENT 'Git commit of the script''s repository; null outside git.',
    tokenizer_hash Nullable(String) COMMENT 'Tokenizer identity; null when not told.',
    config_hash Nullable(String) COMMENT 'As in run_start, complete once the optimizer is known; null when unknown.',
    precision Nullable(String) COMMENT 'fp32, bf16, fp16 or mixed; null when unknown.',
    reached_collective Nullable(UInt8) COMMENT '1: the bad value went through a collective to other ranks (seen after reduction, or in a bucket before it); 0: there is one rank only; null: not known.',
    reached_params Nullable(UInt8) COMMENT '1: a parameter or buffer was seen bad, or an update with bad gradients was applied; 0: the update was left out; null: not known.',
    reached_optimizer Nullable(UInt8) COMMENT '1: the optimizer took bad gradients; 0: the update was left out and parameters were good; null: not known.',
    reached_checkpoint Nullable(UInt8) COMMENT 'Whether a checkpoint holds the bad value; null: not known (no record tells yet).',
    order_index Nullable(UInt32) COMMENT 'Place in causal order inside the stage, over the whole model; null when unknown.',
    stages_any Array(String) COMMENT 'Stages in which at least one rank saw a bad value.',
    stages_all Array(String) COMMENT 'Stages in which every rank saw a bad value.',
    world_size UInt32 COMMENT 'Ranks that took part in the decision.',
    writers Array(UInt32) COMMENT 'Ranks whose copy of the verdict is here, ascending.',
    testified Bool COMMENT 'Whether the elected rank''s testimony is here.',
    conflict Bool COMMENT 'Whether there are different verdicts, or different testimonies, on this step; `conflicts` lists them.'
) AS
SELECT
    v.event_id AS event_id,
    v.incident_id AS incident_id,
    v.kind AS kind,
    v.escalates AS escalates,
    v.run_id AS run_id,
    v.incarnation AS incarnation,
    a.attempt AS attempt,
    v.step AS step,
    v.origin_step AS origin_step,
    v.last_good_step AS last_good_step,
    v.micro_step AS micro_step,
    v.offender_rank AS rank,
    v.elected_rank AS elected_rank,
    v.all_ranks AS all_ranks,
    v.first_bad_stage AS first_bad_stage,
    t.module AS module,
    t.parameter AS parameter,
    v.policy AS policy,
    v.action AS action,
    v.advised_action AS advised_action,
    v.reason AS reason,
    v.consecutive_skips AS consecutive_skips,
    v.window_skips AS window_skips,
    -- What the step rows say; ranks that differ, or an observed run without rows, leave it unknown.
    multiIf(
        w.least_skipped IS NOT NULL, if(w.least_skipped = w.most_skipped, toNullable(NOT w.least_skipped), NULL),
        v.action != 'apply', toNullable(false),
        NULL
    ) AS applied,
    v.ts AS ts,
    v.ingest_ts AS ingest_ts,
    t.loss AS loss,
    coalesce(t.total_grad_norm, s.total_grad_norm) AS total_grad_norm,
    coalesce(t.loss_scale_before, s.loss_scale) AS loss_scale_before,
    coalesce(t.loss_scale_after, s.loss_scale_after) AS loss_scale_after,
    coalesce(t.learning_rate, s.learning_rate) AS learning_rate,
    coalesce(t.trainer_step, s.trainer_step) AS trainer_step,
    t.global_batch_id AS global_batch_id,
    s.batch_fingerprint AS batch_fingerprint,
    coalesce(t.dataset_version, r.dataset_version) AS dataset_version,
    t.shard_id AS shard_id,
    t.sample_ids AS sample_ids,
    t.valid_tokens AS valid_tokens,
    t.rng_state_hash AS rng_state_hash,
    t.checkpoint_parent AS checkpoint_parent,
    coalesce(t.host, r.host) AS host,
    coalesce(t.device, r.device) AS device,
    coalesce(t.device_uuid, r.device_uuid) AS device_uuid,
    coalesce(t.model_commit, r.model_commit) AS model_commit,
    coalesce(t.tokenizer_hash, r.tokenizer_hash) AS tokenizer_hash,
    coalesce(t.config_hash, r.config_hash) AS config_hash,
    coalesce(t.precision, r.precision) AS precision,
    multiIf(
        v.world_size = 1, toNullable(toUInt8(0)),
        has(v.stages_any, 'grad_reduced') OR b.in_bucket IS NOT NULL, toNullable(toUInt8(1)),
        NULL
    ) AS reached_collective,
    multiIf(
        hasAny(v.stages_any, ['param', 'update']), toNullable(toUInt8(1)),
        applied IS NULL, NULL,
        NOT applied, toNullable(toUInt8(0)),
        hasAny(v.stages_any, ['grad', 'grad_reduced', 'scaler']), toNullable(toUInt8(1)),
        NULL
    ) AS reached_params,
    multiIf(
        applied IS NULL, NULL,
        applied AND hasAny(v.stages_any, ['grad', 'grad_reduced', 'scaler']), toNullable(toUInt8(1)),
        NOT applied AND NOT hasAny(v.stages_any, ['param', 'update']), toNullable(toUInt8(0)),
        NULL
    ) AS reached_optimizer,
    CAST(NULL, 'Nullable(UInt8)') AS reached_checkpoint,
    v.order AS order_index,
    v.stages_any AS stages_any,
    v.stages_all AS stages_all,
    v.world_size AS world_size,
    v.writers AS writers,
    toBool(t.testified IS NOT NULL) AS testified,
    toBool(c.conflict IS NOT NULL) AS conflict
FROM internal_verdicts AS v
INNER JOIN internal_attempts AS a ON v.run_id = a.run_id AND v.incarnation = a.incarnation
LEFT JOIN (SELECT *, toNullable(true) AS testified FROM internal_testimonies) AS t
    ON v.run_id = t.run_id AND v.incarnation = t.incarnation AND v.step = t.step AND v.elected_rank = t.rank
LEFT JOIN internal_run_starts AS r
    ON v.run_id = r.run_id AND v.incarnation = r.incarnation AND v.elected_rank = r.rank
LEFT JOIN
(
    SELECT
        run_id,
        incarnation,
        step,
        rank,
        total_grad_norm,
        loss_scale,
        loss_scale_after,
        learning_rate,
        trainer_step,
        batch_fingerprint
    FROM step_records FINAL
    WHERE (run_id, incarnation, step) IN (SELECT run_id, incarnation, step FROM verdict_records)
    ORDER BY ingest_ts, content_hash
    LIMIT 1 BY run_id, incarnation, step, rank
) AS s
    ON v.run_id = s.run_id AND v.incarnation = s.incarnation AND v.step = s.step AND v.elected_rank = s.rank
LEFT JOIN
(
    SELECT run_id, incarnation, step, min(skipped_step) AS least_skipped, max(skipped_step) AS most_skipped
    FROM step_records
    WHERE (run_id, incarnation, step) IN (SELECT run_id, incarnation, step FROM verdict_records)
    GROUP BY run_id, incarnation, step
) AS w
    ON v.run_id = w.run_id AND v.incarnation = w.incarnation AND v.step = w.step
LEFT JOIN
(
    SELECT DISTINCT run_id, incarnation, step, toNullable(true) AS in_bucket
    FROM evidence_records
    WHERE kind = 'grad_bucket' AND is_bad
) AS b
    ON v.run_id = b.run_id AND v.incarnation = b.incarnation AND v.step = b.step
LEFT JOIN
(
    SELECT DISTINCT run_id, incarnation, step, toNullable(true) AS conflict
    FROM
    (
        SELECT run_id, incarnation, step
        FROM verdict_records
        GROUP BY run_id, incarnation, step
        HAVING min(content_hash) != max(content_hash)
        UNION ALL
        SELECT run_id, incarnation, step
        FROM testimony_records
        GROUP BY run_id, incarnation, step
        HAVING min(content_hash) != max(content_hash)
    )
) AS c
    ON v.run_id = c.run_id AND v.incarnation = c.incarnation AND v.step = c.step;
