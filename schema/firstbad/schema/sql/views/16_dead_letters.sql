-- One row per piece of a journal that could not become a row; its bytes are kept exactly.
CREATE OR REPLACE VIEW dead_letters
(
    host String COMMENT 'Folder of the segment in the journal: the host that wrote it.',
    segment String COMMENT 'The segment, as its path under the journal folder.',
    offset UInt64 COMMENT 'Where the bytes begin in the segment, from 0.',
    length UInt64 COMMENT 'How many bytes.',
    reason LowCardinality(String) COMMENT 'Why: damaged_frame, torn_frame, foreign_bytes, zero_hole, bad_record, unknown_record, truncated_segment or replaced_segment.',
    detail String COMMENT 'The error, for a person.',
    preview String COMMENT 'The first 200 bytes, what is not printable ASCII as dots.',
    bytes_hex String COMMENT 'All bytes, in hexadecimal.',
    ingest_ts DateTime64(6, 'UTC') COMMENT 'When the collector first met them, UTC, by its own clock.'
) AS
SELECT
    splitByChar('/', d.file)[1] AS host,
    d.file AS segment,
    d.offset AS offset,
    length(d.bytes) AS length,
    d.reason AS reason,
    d.detail AS detail,
    replaceRegexpAll(toValidUTF8(substring(d.bytes, 1, 200)), '[^ -~]', '.') AS preview,
    lower(hex(d.bytes)) AS bytes_hex,
    d.ingest_ts AS ingest_ts
FROM dead_letter_records AS d FINAL;
