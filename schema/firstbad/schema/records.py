"""
The records of the ledger: what an agent may say. Frozen and versioned; schema/README.md has the evolution rules.

Every field's description gives unit, range and what null means. The table DDL, the column docs and the examples are
tested against these classes, which are the one source of truth. `record` and `version` name the type on the wire.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from firstbad.schema.fields import (
    Column,
    Dims,
    Flag,
    Float,
    Hex32,
    Incarnation,
    Int64,
    Label,
    Micros,
    Name,
    Names,
    RunId,
    Text,
    UInt32,
    UInt64,
)
from firstbad.schema.vocabulary import Action, GapReason, IncidentKind, Outcome, Policy, TensorKind

StageLabel = Annotated[
    Literal["param", "input", "forward", "loss", "grad", "grad_reduced", "scaler", "update"],
    Column("LowCardinality(String)"),
]


class Record(BaseModel):
    """
    Fields that every record carries: whose it is, its place in that rank's sequence, and when it was made.

    Unknown fields of a newer writer are kept (`model_extra`) and land in the column `extra`.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="allow", ser_json_inf_nan="constants", use_enum_values=False
    )

    run_id: RunId = Field(description="Run, stable over restarts of one job.")
    incarnation: Incarnation = Field(description="One start of the run: a time-ordered 128-bit id shared by all ranks.")
    rank: UInt32 = Field(description="Global rank of the process that wrote the record, from 0.")
    seq: UInt64 = Field(
        description="Place in this rank's sequence, dense from 0 over all record types of one incarnation; "
        "a hole is a lost record."
    )
    ts: Micros = Field(description="When the record was made, UTC microseconds by the rank's own clock.")
    host: Name = Field(description="Host name of the writing process.")


class RunStart(Record):
    """The static context of one rank in one incarnation, written once before its first step."""

    record: Literal["run_start"] = "run_start"
    version: Literal[1] = 1

    world_size: UInt32 = Field(description="Ranks in this incarnation, at least 1.")
    local_rank: UInt32 | None = Field(None, description="Rank on this host (LOCAL_RANK); null when unknown.")
    dp_rank: UInt32 | None = Field(None, description="Data-parallel rank; null when unknown.")
    tp_rank: UInt32 | None = Field(None, description="Tensor-parallel rank; null when unknown.")
    pp_rank: UInt32 | None = Field(None, description="Pipeline-parallel rank; null when unknown.")
    dp_size: UInt32 | None = Field(None, description="Data-parallel size; null when unknown.")
    tp_size: UInt32 | None = Field(None, description="Tensor-parallel size; null when unknown.")
    pp_size: UInt32 | None = Field(None, description="Pipeline-parallel size; null when unknown.")
    effective_global_batch: UInt64 | None = Field(
        None, description="Samples per update = per-rank batch x data parallel x accumulation; null when unknown."
    )
    pid: UInt32 = Field(description="Process id on the host.")
    device: Name = Field(description="Device of the process, as torch prints it: cpu, cuda:0.")
    device_uuid: Name | None = Field(None, description="UUID of the accelerator; null on CPU or when unknown.")
    backend: Label | None = Field(None, description="Process-group backend: gloo, nccl; null without a group.")
    argv: Annotated[tuple[Text, ...], Field(max_length=1_024), Column("Array(String)")] = Field(
        description="The script's own sys.argv."
    )
    restart_count: UInt32 | None = Field(
        None, description="TORCHELASTIC_RESTART_COUNT; node-local; null without torchrun."
    )
    agent_version: Label = Field(description="Version of firstbad that wrote the record.")
    torch_version: Label = Field(description="torch.__version__.")
    python_version: Label = Field(description="Python version, as 3.11.7.")
    libraries: Annotated[dict[str, str], Column("Map(String, String)")] = Field(
        default_factory=dict,
        description="Versions of other libraries that shape the numbers: numpy, cuda, nccl, cudnn.",
    )
    policy: Policy = Field(description="observe, skip or stop.")
    max_consecutive_skips: UInt32 = Field(description="Skips in a row that are allowed; the next one stops the run.")
    max_skip_ratio: Float = Field(description="Allowed share of skips among the last 200 steps, 0 to 1.")
    steered: Flag = Field(
        description="False when the script is only observed although the policy would act: its GradScaler cannot be "
        "steered in this torch."
    )
    model_commit: Name | None = Field(None, description="Git commit of the script's repository; null outside git.")
    model_dirty: Flag | None = Field(None, description="Tracked files differ from model_commit; null outside git.")
    config_hash: Name | None = Field(
        None, description="SHA-256 prefix over argv, parameter groups and module structure; null until they are known."
    )
    tokenizer_hash: Name | None = Field(None, description="Tokenizer identity, from the user; null when unknown.")
    dataset_version: Name | None = Field(None, description="Dataset identity, from the user; null when unknown.")
    precision: Label | None = Field(
        None, description="fp32, bf16, fp16 or mixed, by parameters and autocast; null when unknown."
    )
    checkpoint_parent: Name | None = Field(
        None, description="Last path read by torch.load before this record; null when none."
    )
    clock_offset_seconds: Float | None = Field(
        None,
        description="This rank's clock minus rank 0's, seconds, as measured at start; null without a process group.",
    )


class Step(Record):
    """L1: one rank's view of one attempted update, sealed with the verdict."""

    record: Literal["step"] = "step"
    version: Literal[1] = 1

    step: UInt64 = Field(description="Attempted updates, from 0 per incarnation; advances whether applied or not.")
    trainer_step: Int64 | None = Field(None, description="The trainer's own step count; null when not told.")
    applied_step: UInt64 = Field(description="Updates applied so far in this incarnation, this one included.")
    micro_steps: UInt32 = Field(description="Root backward calls in this step's window.")
    consumed_samples: UInt64 | None = Field(
        None,
        description="Samples this rank has used so far in this incarnation, skipped ones included; null when not told.",
    )
    loss: Float | None = Field(
        None,
        description="Sum over the window of what backward was called on, divided by the loss scale, on this rank, in "
        "float64; one NaN keeps it NaN; null when this rank called no backward on a scalar.",
    )
    loss_finite: Flag | None = Field(None, description="Every loss of the window was finite; null when loss is null.")
    total_grad_norm: Float | None = Field(
        None, description="The trainer's own global, unscaled, pre-clip gradient norm; null when it computed none."
    )
    grad_norm_finite: Flag | None = Field(None, description="Whether total_grad_norm is finite; null when it is null.")
    owned_grad_sq: Float | None = Field(
        None,
        description="Sum of squares of the gradient elements that this rank owns (each element on one rank), unscaled; "
        "null when not computed.",
    )
    loss_scale: Float | None = Field(None, description="Loss scale used in this step; null without a scaler.")
    loss_scale_after: Float | None = Field(
        None, description="Loss scale ordered for the next step; null without a scaler."
    )
    learning_rate: Float | None = Field(
        None, description="Learning rate of the first parameter group, as used; null when unknown."
    )
    lr_advanced: Flag | None = Field(
        None, description="A learning-rate scheduler was stepped since the previous row; null at the first row."
    )
    action: Action = Field(description="What all ranks did with the update: apply, skip or stop.")
    skipped_step: Flag | None = Field(
        None, description="Whether the update was left out, by us or by the script's own scaler; null when unknown."
    )
    skip_count: UInt64 = Field(description="Updates left out so far in this incarnation, this one included.")
    first_bad_stage: StageLabel | None = Field(
        None, description="Stage of the elected first offender; null on a good step."
    )
    local_bad_stage: StageLabel | None = Field(
        None, description="This rank's own first bad stage; null when it saw none."
    )
    degraded: Flag = Field(description="This rank's guard was broken by a fault of its own and sent neutral lanes.")
    global_batch_id: Name | None = Field(
        None, description="The trainer's name of the global batch; null when not told."
    )
    batch_fingerprint: UInt64 | None = Field(None, description="Hash over the integer inputs; null when not computed.")
    dataset_version: Name | None = Field(None, description="Dataset version in use; null when not told.")
    shard_id: Annotated[tuple[Name, ...], Field(max_length=16), Column("Array(String)")] = Field(
        (), description="Distinct data shards of all micro steps, in order of use, at most 16."
    )
    shard_count: UInt32 | None = Field(None, description="Distinct shards of the window; null when not told.")
    sample_ids: Names = Field((), description="Sample ids of all micro steps: ids or ranges 'a-b', at most 64.")
    sample_count: UInt64 | None = Field(
        None, description="Samples of all micro steps on this rank; null when not told."
    )
    valid_tokens: UInt64 | None = Field(
        None, description="Labels that count in the loss, summed over micro steps; null when not told."
    )
    effective_global_batch: UInt64 | None = Field(
        None,
        description="Samples of this update over all data-parallel ranks, as far as this rank knows; null when "
        "unknown.",
    )
    dp_rank: UInt32 | None = Field(None, description="Data-parallel rank; null when unknown.")
    tp_rank: UInt32 | None = Field(None, description="Tensor-parallel rank; null when unknown.")
    pp_rank: UInt32 | None = Field(None, description="Pipeline-parallel rank; null when unknown.")
    step_seconds: Float | None = Field(
        None, description="Wall time since the previous decision, seconds; null at the first row."
    )
    decision_seconds: Float | None = Field(
        None,
        description="Time the guard spent on the training thread in this window, seconds, waiting for peers included; "
        "null when not measured.",
    )


class Verdict(Record):
    """
    A bad step, in the words that all ranks hold: nothing in it depends on the writer but the envelope.

    Written by the offender's rank and two others, so it outlives any node. Equal by construction.
    """

    record: Literal["verdict"] = "verdict"
    version: Literal[1] = 1

    event_id: Hex32 = Field(description="Hash of (run_id, incarnation, step).")
    incident_id: Hex32 = Field(description="event_id of the opening bad step of this incident.")
    escalates: Hex32 | None = Field(
        None, description="The incident's opening id when this event turns a scale_probe into a fault; else null."
    )
    kind: IncidentKind = Field(description="fault or scale_probe.")
    step: UInt64 = Field(description="The bad step: attempted updates, from 0.")
    origin_step: UInt64 = Field(description="Step that made the bad value: step, or step-1 when the stage is update.")
    last_good_step: Int64 = Field(description="Last step whose result is known good; -1 when there is none.")
    micro_step: UInt32 | None = Field(
        None, description="First bad micro step, from 0; null when no observer saw which."
    )
    elected_rank: UInt32 = Field(
        description="Rank with the smallest election key; its testimony belongs to this event."
    )
    offender_rank: UInt32 | None = Field(
        default=None,
        description="The first offender; null when no rank can be called guilty: every rank saw it, or it was seen "
        "only after reduction.",
    )
    all_ranks: Flag = Field(description="Every rank of a world of two or more nominated itself at this stage.")
    first_bad_stage: StageLabel = Field(description="Stage of the first offender.")
    order: UInt32 | None = Field(None, description="Place in causal order inside the stage; null when unknown.")
    stages_any: Annotated[tuple[StageLabel, ...], Column("Array(String)")] = Field(
        description="Stages in which at least one rank saw a bad value."
    )
    stages_all: Annotated[tuple[StageLabel, ...], Column("Array(String)")] = Field(
        description="Stages in which every rank saw a bad value."
    )
    world_size: UInt32 = Field(description="Ranks that took part in the decision.")
    policy: Policy = Field(description="Policy in force.")
    action: Action = Field(description="What all ranks did: apply (observe), skip or stop.")
    advised_action: Action = Field(description="What policy skip with the same budget would have done.")
    consecutive_skips: UInt32 = Field(description="Bad steps in a row up to this one, as the skip budget counts them.")
    window_skips: UInt32 = Field(description="Bad steps among the last 200 steps, as the skip budget counts them.")
    reason: Text = Field(description="One sentence for a person: why this action.")


class Testimony(Record):
    """The first offender's own words about a bad step. May die with its rank."""

    record: Literal["testimony"] = "testimony"
    version: Literal[1] = 1

    event_id: Hex32 = Field(description="The verdict it belongs to.")
    step: UInt64 = Field(description="The bad step.")
    micro_step: UInt32 | None = Field(None, description="First bad micro step on this rank; null when unknown.")
    stage: StageLabel = Field(description="This rank's first bad stage.")
    module: Name | None = Field(None, description="Module where the bad value was first seen; null when not observed.")
    parameter: Name | None = Field(
        None, description="Parameter whose gradient or value was first bad; null when not observed."
    )
    loss: Float | None = Field(
        None, description="Loss of the offending micro step, divided by the loss scale; null when unknown."
    )
    total_grad_norm: Float | None = Field(
        None, description="The trainer's own pre-clip norm; null when it computed none."
    )
    loss_scale_before: Float | None = Field(None, description="Loss scale used; null without a scaler.")
    loss_scale_after: Float | None = Field(
        None, description="Loss scale ordered for the next step; null without a scaler."
    )
    learning_rate: Float | None = Field(
        None, description="Learning rate of the first parameter group; null when unknown."
    )
    trainer_step: Int64 | None = Field(None, description="The trainer's own step count; null when not told.")
    global_batch_id: Name | None = Field(
        None, description="The trainer's name of the global batch; null when not told."
    )
    dataset_version: Name | None = Field(None, description="Dataset version; null when not told.")
    shard_id: Annotated[tuple[Name, ...], Field(max_length=1_024), Column("Array(String)")] = Field(
        (), description="Shards of the offending micro step, in order of use."
    )
    sample_ids: Annotated[tuple[Name, ...], Field(max_length=65_536), Column("Array(String)")] = Field(
        (), description="All sample ids of the offending micro step; of the whole window when micro_step is null."
    )
    valid_tokens: UInt64 | None = Field(
        None, description="Labels of the offending micro step that count in the loss; null when not told."
    )
    rng_state_hash: Name | None = Field(
        None, description="SHA-256 prefix of the RNG states at the decision; null when unknown."
    )
    checkpoint_parent: Name | None = Field(None, description="Last path read by torch.load; null when none.")
    device: Name | None = Field(None, description="Device, as torch prints it; null when unknown.")
    device_uuid: Name | None = Field(None, description="UUID of the accelerator; null on CPU.")
    model_commit: Name | None = Field(None, description="Git commit of the script's repository; null outside git.")
    config_hash: Name | None = Field(
        None, description="As in run_start, complete once the optimizer is known; null when unknown."
    )
    tokenizer_hash: Name | None = Field(None, description="Tokenizer identity; null when not told.")
    precision: Label | None = Field(None, description="fp32, bf16, fp16 or mixed; null when unknown.")


class Evidence(Record):
    """L2: statistics of one tensor on a bad step, taken before clipping."""

    record: Literal["evidence"] = "evidence"
    version: Literal[1] = 1

    event_id: Hex32 = Field(description="The verdict it belongs to.")
    step: UInt64 = Field(description="The bad step.")
    micro_step: UInt32 | None = Field(None, description="Micro step in which the tensor was seen; null when unknown.")
    order_index: UInt32 = Field(description="Place in the order of observation within this rank and event, from 0.")
    kind: TensorKind = Field(description="param, buffer, input, output, loss, grad or grad_bucket.")
    name: Name = Field(description="Parameter, buffer, input or bucket name.")
    module: Name | None = Field(None, description="Owning module; null when it has none.")
    param_group: UInt32 | None = Field(None, description="Index of the optimizer parameter group; null when in none.")
    bucket_params: Names = Field((), description="Parameters in the bucket, at most 64; empty for other kinds.")
    shape: Dims = Field(description="Shape of the local tensor.")
    dtype: Label = Field(description="torch dtype without its prefix: float32, bfloat16.")
    scaled: Flag | None = Field(None, description="Values still carry the loss scale; null when unknown.")
    nan_count: UInt64 | None = Field(None, description="Elements that are NaN; null when not counted.")
    posinf_count: UInt64 | None = Field(None, description="Elements that are +Inf; null when not counted.")
    neginf_count: UInt64 | None = Field(None, description="Elements that are -Inf; null when not counted.")
    numel: UInt64 = Field(description="Elements of the local tensor.")
    absmax_finite: Float | None = Field(
        None, description="Largest magnitude of the finite elements; null when there is none."
    )
    is_bad: Flag = Field(
        description="At least one element is not finite; false rows are the nearest finite neighbours."
    )


class RunEnd(Record):
    """How one rank's incarnation ended. Absent when the process was killed."""

    record: Literal["run_end"] = "run_end"
    version: Literal[1] = 1

    outcome: Outcome = Field(description="finished, stopped or failed.")
    exit_code: Int64 | None = Field(
        None, description="Exit code that the process is about to return; null when unknown."
    )
    steps: UInt64 = Field(description="Step windows decided in this incarnation.")
    applied_steps: UInt64 = Field(description="Updates applied in this incarnation.")
    step: UInt64 | None = Field(
        None, description="The step in progress when an exception left the script; null otherwise."
    )
    micro_step: UInt32 | None = Field(None, description="The micro step in progress; null when none was.")
    error_type: Name | None = Field(None, description="Class of the exception; null when there was none.")
    error: Text | None = Field(None, description="Text of the exception, cut at 4096 characters.")
    global_batch_id: Name | None = Field(None, description="Batch in progress; null when not told.")
    shard_id: Names = Field((), description="Shards of the micro batch in progress.")
    sample_ids: Names = Field((), description="Sample ids of the micro batch in progress, at most 64.")
    valid_tokens: UInt64 | None = Field(
        None, description="Valid labels of the micro batch in progress; null when not told."
    )
    records_written: UInt64 = Field(description="Records of this rank written to the journal before this one.")
    records_dropped: UInt64 = Field(description="Records of this rank that were dropped and counted.")
    event_waits_timed_out: UInt64 = Field(description="Events for which the training thread stopped waiting after 1 s.")
    observers_off: Names = Field((), description="Observers that a fault of their own switched off.")


class Gap(Record):
    """An agent's own admission that it dropped records: which sequence numbers, and why."""

    record: Literal["gap"] = "gap"
    version: Literal[1] = 1

    first_seq: UInt64 = Field(description="First dropped sequence number.")
    last_seq: UInt64 = Field(description="Last dropped sequence number, inclusive.")
    dropped: UInt64 = Field(description="Records dropped in that range, at least 1.")
    reason: GapReason = Field(description="queue_full, journal_full, write_failed or invalid.")
    detail: Text | None = Field(None, description="Error text, when there was one.")


RECORD_TYPES: tuple[type[Record], ...] = (RunStart, Step, Verdict, Testimony, Evidence, RunEnd, Gap)
"""Every record type, newest version of each."""

AnyRecord = Annotated[
    RunStart | Step | Verdict | Testimony | Evidence | RunEnd | Gap,
    Field(discriminator="record"),
]


def record_name(record: Record | type[Record]) -> str:
    """The name of the record type on the wire, as `step`."""
    model: type[Any] = record if isinstance(record, type) else type(record)
    return str(model.model_fields["record"].default)
