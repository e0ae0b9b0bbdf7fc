-- Internal. Every stored record of every type, copies included: whose it is and its place in the sequence.
CREATE OR REPLACE VIEW internal_record_index AS
SELECT 'run_start' AS record, run_id, incarnation, rank, seq, ts, host, ingest_ts, content_hash FROM run_start_records
UNION ALL
SELECT 'step' AS record, run_id, incarnation, rank, seq, ts, host, ingest_ts, content_hash FROM step_records
UNION ALL
SELECT 'verdict' AS record, run_id, incarnation, rank, seq, ts, host, ingest_ts, content_hash FROM verdict_records
UNION ALL
SELECT 'testimony' AS record, run_id, incarnation, rank, seq, ts, host, ingest_ts, content_hash FROM testimony_records
UNION ALL
SELECT 'evidence' AS record, run_id, incarnation, rank, seq, ts, host, ingest_ts, content_hash FROM evidence_records
UNION ALL
SELECT 'run_end' AS record, run_id, incarnation, rank, seq, ts, host, ingest_ts, content_hash FROM run_end_records
UNION ALL
SELECT 'gap' AS record, run_id, incarnation, rank, seq, ts, host, ingest_ts, content_hash FROM gap_records;
