"""Records of the ledger, their bytes, tables and views. Imports neither torch, nor Kafka, nor ClickHouse."""

from firstbad.schema.codec import decode_record, encode_frame, encode_record
from firstbad.schema.errors import FirstbadError, FrameError, RecordError, UnknownRecord
from firstbad.schema.records import (
    RECORD_TYPES,
    Evidence,
    Gap,
    Record,
    RunEnd,
    RunStart,
    Step,
    Testimony,
    Verdict,
    record_name,
)
from firstbad.schema.vocabulary import Action, GapReason, IncidentKind, Outcome, Policy, Stage, TensorKind

__all__ = [
    "RECORD_TYPES",
    "Action",
    "Evidence",
    "FirstbadError",
    "FrameError",
    "Gap",
    "GapReason",
    "IncidentKind",
    "Outcome",
    "Policy",
    "Record",
    "RecordError",
    "RunEnd",
    "RunStart",
    "Stage",
    "Step",
    "TensorKind",
    "Testimony",
    "UnknownRecord",
    "Verdict",
    "decode_record",
    "encode_frame",
    "encode_record",
    "record_name",
]
