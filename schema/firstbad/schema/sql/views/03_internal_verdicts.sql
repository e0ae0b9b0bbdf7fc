-- Internal. Verdicts with their copies collapsed: one row per step and content.
CREATE OR REPLACE VIEW internal_verdicts AS
SELECT
    v.run_id AS run_id,
    v.incarnation AS incarnation,
    v.step AS step,
    any(v.event_id) AS event_id,
    any(v.incident_id) AS incident_id,
    any(v.escalates) AS escalates,
    any(v.kind) AS kind,
    any(v.origin_step) AS origin_step,
    any(v.last_good_step) AS last_good_step,
    any(v.micro_step) AS micro_step,
    any(v.elected_rank) AS elected_rank,
    any(v.offender_rank) AS offender_rank,
    any(v.all_ranks) AS all_ranks,
    any(v.first_bad_stage) AS first_bad_stage,
    any(v.order) AS order,
    any(v.stages_any) AS stages_any,
    any(v.stages_all) AS stages_all,
    any(v.world_size) AS world_size,
    any(v.policy) AS policy,
    any(v.action) AS action,
    any(v.advised_action) AS advised_action,
    any(v.consecutive_skips) AS consecutive_skips,
    any(v.window_skips) AS window_skips,
    any(v.reason) AS reason,
    arraySort(groupUniqArray(v.rank)) AS writers,
    min(v.ts) AS ts,
    min(v.ingest_ts) AS ingest_ts,
    v.content_hash AS content_hash
FROM verdict_records AS v
GROUP BY v.run_id, v.incarnation, v.step, v.content_hash;
