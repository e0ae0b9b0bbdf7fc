-- Internal. One row per start of a run, numbered.
CREATE OR REPLACE VIEW internal_attempts AS
SELECT
    i.run_id AS run_id,
    i.incarnation AS incarnation,
    toUInt32(dense_rank() OVER (PARTITION BY i.run_id ORDER BY i.started_ts, i.incarnation)) AS attempt
FROM
(
    SELECT run_id, incarnation, min(ts) AS started_ts
    FROM internal_record_index
    GROUP BY run_id, incarnation
) AS i;
