-- Base tables: one per record type, and the collector's own. Readers use the views instead.
-- A row's sorting key ends in its content: equal copies collapse to the first that came, different contents stay.
-- Statements may run twice: a migration is recorded only after its last statement.

CREATE TABLE IF NOT EXISTS schema_migrations
(
    `number` UInt32,
    `name` String,
    `checksum` String,
    `applied_ts` DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (number, checksum)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS run_start_records
(
    `run_id` LowCardinality(String),
    `incarnation` LowCardinality(String),
    `rank` UInt32,
    `seq` UInt64,
    `ts` DateTime64(6, 'UTC'),
    `host` String,
    `world_size` UInt32,
    `local_rank` Nullable(UInt32),
    `dp_rank` Nullable(UInt32),
    `tp_rank` Nullable(UInt32),
    `pp_rank` Nullable(UInt32),
    `dp_size` Nullable(UInt32),
    `tp_size` Nullable(UInt32),
    `pp_size` Nullable(UInt32),
    `effective_global_batch` Nullable(UInt64),
    `pid` UInt32,
    `device` String,
    `device_uuid` Nullable(String),
    `backend` LowCardinality(Nullable(String)),
    `argv` Array(String),
    `restart_count` Nullable(UInt32),
    `agent_version` LowCardinality(String),
    `torch_version` LowCardinality(String),
    `python_version` LowCardinality(String),
    `libraries` Map(String, String),
    `policy` LowCardinality(String),
    `max_consecutive_skips` UInt32,
    `max_skip_ratio` Float64,
    `steered` Bool,
    `model_commit` Nullable(String),
    `model_dirty` Nullable(Bool),
    `config_hash` Nullable(String),
    `tokenizer_hash` Nullable(String),
    `dataset_version` Nullable(String),
    `precision` LowCardinality(Nullable(String)),
    `checkpoint_parent` Nullable(String),
    `clock_offset_seconds` Nullable(Float64),
    `record_version` UInt16,
    `extra` String,
    `content_hash` UInt64,
    `ingest_ts` DateTime64(6, 'UTC'),
    keep_first UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)
)
ENGINE = ReplacingMergeTree(keep_first)
ORDER BY (run_id, incarnation, rank, content_hash)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS step_records
(
    `run_id` LowCardinality(String),
    `incarnation` LowCardinality(String),
    `rank` UInt32,
    `seq` UInt64,
    `ts` DateTime64(6, 'UTC'),
    `host` String,
    `step` UInt64,
    `trainer_step` Nullable(Int64),
    `applied_step` UInt64,
    `micro_steps` UInt32,
    `consumed_samples` Nullable(UInt64),
    `loss` Nullable(Float64),
    `loss_finite` Nullable(Bool),
    `total_grad_norm` Nullable(Float64),
    `grad_norm_finite` Nullable(Bool),
    `owned_grad_sq` Nullable(Float64),
    `loss_scale` Nullable(Float64),
    `loss_scale_after` Nullable(Float64),
    `learning_rate` Nullable(Float64),
    `lr_advanced` Nullable(Bool),
    `action` LowCardinality(String),
    `skipped_step` Nullable(Bool),
    `skip_count` UInt64,
    `first_bad_stage` LowCardinality(Nullable(String)),
    `local_bad_stage` LowCardinality(Nullable(String)),
    `degraded` Bool,
    `global_batch_id` Nullable(String),
    `batch_fingerprint` Nullable(UInt64),
    `dataset_version` Nullable(String),
    `shard_id` Array(String),
    `shard_count` Nullable(UInt32),
    `sample_ids` Array(String),
    `sample_count` Nullable(UInt64),
    `valid_tokens` Nullable(UInt64),
    `effective_global_batch` Nullable(UInt64),
    `dp_rank` Nullable(UInt32),
    `tp_rank` Nullable(UInt32),
    `pp_rank` Nullable(UInt32),
    `step_seconds` Nullable(Float64),
    `decision_seconds` Nullable(Float64),
    `record_version` UInt16,
    `extra` String,
    `content_hash` UInt64,
    `ingest_ts` DateTime64(6, 'UTC'),
    keep_first UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)
)
ENGINE = ReplacingMergeTree(keep_first)
ORDER BY (run_id, incarnation, step, rank, content_hash)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS verdict_records
(
    `run_id` LowCardinality(String),
    `incarnation` LowCardinality(String),
    `rank` UInt32,
    `seq` UInt64,
    `ts` DateTime64(6, 'UTC'),
    `host` String,
    `event_id` String,
    `incident_id` String,
    `escalates` Nullable(String),
    `kind` LowCardinality(String),
    `step` UInt64,
    `origin_step` UInt64,
    `last_good_step` Int64,
    `micro_step` Nullable(UInt32),
    `elected_rank` UInt32,
    `offender_rank` Nullable(UInt32),
    `all_ranks` Bool,
    `first_bad_stage` LowCardinality(String),
    `order` Nullable(UInt32),
    `stages_any` Array(String),
    `stages_all` Array(String),
    `world_size` UInt32,
    `policy` LowCardinality(String),
    `action` LowCardinality(String),
    `advised_action` LowCardinality(String),
    `consecutive_skips` UInt32,
    `window_skips` UInt32,
    `reason` String,
    `record_version` UInt16,
    `extra` String,
    `content_hash` UInt64,
    `ingest_ts` DateTime64(6, 'UTC'),
    keep_first UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)
)
ENGINE = ReplacingMergeTree(keep_first)
ORDER BY (run_id, incarnation, step, content_hash, rank, seq)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS testimony_records
(
    `run_id` LowCardinality(String),
    `incarnation` LowCardinality(String),
    `rank` UInt32,
    `seq` UInt64,
    `ts` DateTime64(6, 'UTC'),
    `host` String,
    `event_id` String,
    `step` UInt64,
    `micro_step` Nullable(UInt32),
    `stage` LowCardinality(String),
    `module` Nullable(String),
    `parameter` Nullable(String),
    `loss` Nullable(Float64),
    `total_grad_norm` Nullable(Float64),
    `loss_scale_before` Nullable(Float64),
    `loss_scale_after` Nullable(Float64),
    `learning_rate` Nullable(Float64),
    `trainer_step` Nullable(Int64),
    `global_batch_id` Nullable(String),
    `dataset_version` Nullable(String),
    `shard_id` Array(String),
    `sample_ids` Array(String),
    `valid_tokens` Nullable(UInt64),
    `rng_state_hash` Nullable(String),
    `checkpoint_parent` Nullable(String),
    `device` Nullable(String),
    `device_uuid` Nullable(String),
    `model_commit` Nullable(String),
    `config_hash` Nullable(String),
    `tokenizer_hash` Nullable(String),
    `precision` LowCardinality(Nullable(String)),
    `record_version` UInt16,
    `extra` String,
    `content_hash` UInt64,
    `ingest_ts` DateTime64(6, 'UTC'),
    keep_first UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)
)
ENGINE = ReplacingMergeTree(keep_first)
ORDER BY (run_id, incarnation, step, content_hash, rank, seq)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS evidence_records
(
    `run_id` LowCardinality(String),
    `incarnation` LowCardinality(String),
    `rank` UInt32,
    `seq` UInt64,
    `ts` DateTime64(6, 'UTC'),
    `host` String,
    `event_id` String,
    `step` UInt64,
    `micro_step` Nullable(UInt32),
    `order_index` UInt32,
    `kind` LowCardinality(String),
    `name` String,
    `module` Nullable(String),
    `param_group` Nullable(UInt32),
    `bucket_params` Array(String),
    `shape` Array(UInt64),
    `dtype` LowCardinality(String),
    `scaled` Nullable(Bool),
    `nan_count` Nullable(UInt64),
    `posinf_count` Nullable(UInt64),
    `neginf_count` Nullable(UInt64),
    `numel` UInt64,
    `absmax_finite` Nullable(Float64),
    `is_bad` Bool,
    `record_version` UInt16,
    `extra` String,
    `content_hash` UInt64,
    `ingest_ts` DateTime64(6, 'UTC'),
    keep_first UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)
)
ENGINE = ReplacingMergeTree(keep_first)
ORDER BY (run_id, incarnation, step, rank, order_index, content_hash)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS run_end_records
(
    `run_id` LowCardinality(String),
    `incarnation` LowCardinality(String),
    `rank` UInt32,
    `seq` UInt64,
    `ts` DateTime64(6, 'UTC'),
    `host` String,
    `outcome` LowCardinality(String),
    `exit_code` Nullable(Int64),
    `steps` UInt64,
    `applied_steps` UInt64,
    `step` Nullable(UInt64),
    `micro_step` Nullable(UInt32),
    `error_type` Nullable(String),
    `error` Nullable(String),
    `global_batch_id` Nullable(String),
    `shard_id` Array(String),
    `sample_ids` Array(String),
    `valid_tokens` Nullable(UInt64),
    `records_written` UInt64,
    `records_dropped` UInt64,
    `event_waits_timed_out` UInt64,
    `observers_off` Array(String),
    `record_version` UInt16,
    `extra` String,
    `content_hash` UInt64,
    `ingest_ts` DateTime64(6, 'UTC'),
    keep_first UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)
)
ENGINE = ReplacingMergeTree(keep_first)
ORDER BY (run_id, incarnation, rank, content_hash)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS gap_records
(
    `run_id` LowCardinality(String),
    `incarnation` LowCardinality(String),
    `rank` UInt32,
    `seq` UInt64,
    `ts` DateTime64(6, 'UTC'),
    `host` String,
    `first_seq` UInt64,
    `last_seq` UInt64,
    `dropped` UInt64,
    `reason` LowCardinality(String),
    `detail` Nullable(String),
    `record_version` UInt16,
    `extra` String,
    `content_hash` UInt64,
    `ingest_ts` DateTime64(6, 'UTC'),
    keep_first UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)
)
ENGINE = ReplacingMergeTree(keep_first)
ORDER BY (run_id, incarnation, rank, seq, content_hash)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Bytes of a journal that could not become a row. `bytes` is exact and need not be text; `file` is relative to the
-- journal folder and begins with the host.
CREATE TABLE IF NOT EXISTS dead_letter_records
(
    `file` String,
    `offset` UInt64,
    `reason` LowCardinality(String),
    `detail` String,
    `bytes` String,
    `content_hash` UInt64,
    `ingest_ts` DateTime64(6, 'UTC'),
    keep_first UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)
)
ENGINE = ReplacingMergeTree(keep_first)
ORDER BY (file, offset, content_hash)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- How far each segment was loaded. The newest row counts, not the largest offset: a segment may be read again.
CREATE TABLE IF NOT EXISTS segment_progress
(
    `file` String,
    `inode` UInt64,
    `offset` UInt64,
    `sealed` Bool,
    `updated_ts` DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(updated_ts)
ORDER BY file
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
