"""
Fine-tune a small GPT to write function bodies: the script of a user, who has not changed it for firstbad.

Plain PyTorch: DDP over gloo, gradient accumulation, AdamW, and a loss over the answers only. It keeps a log of its own,
one file per rank, with checks of its own; `firstbad demo` holds the ledger against that log.

    torchrun --standalone --nproc-per-node 4 train.py --data data.npz --out logs/bare
    torchrun --standalone --nproc-per-node 4 -m firstbad.agent train.py --data data.npz --out logs/guarded
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import firstbad.agent
from firstbad.cli.demo.model import GPT


def main() -> None:
    """Train on this rank."""
    parser = argparse.ArgumentParser(description="Fine-tune a small GPT on the standard library's functions.")
    parser.add_argument("--data", type=Path, required=True, help="samples and their order, as `firstbad demo` lays out")
    parser.add_argument("--out", type=Path, required=True, help="folder for the log of each rank")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = Log(options.out, rank)

    data = dict(np.load(options.data))
    tokens = torch.from_numpy(data["tokens"].astype(np.int64))  # (samples, context)
    prompt_tokens = torch.from_numpy(data["prompt_tokens"])  # (samples,)
    pad = int(data["pad"])
    order = data["order"]  # (steps, micro steps, ranks, samples of a micro-batch)
    steps, micro_steps, world_size, _ = order.shape
    if world_size != dist.get_world_size():
        raise SystemExit(f"the data is laid out for {world_size} ranks, not for {dist.get_world_size()}")

    model = DistributedDataParallel(
        GPT(vocabulary=int(data["vocabulary"]), context=tokens.shape[1], width=options.width)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    parameters = list(model.parameters())
    all_nan = False

    for step in range(steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        step_loss = 0.0
        for micro_step in range(micro_steps):
            samples = order[step, micro_step, rank]
            window = tokens[samples]
            inputs, targets = window[:, :-1], window[:, 1:]
            # A label is a token of the answer: neither prompt nor padding.
            position = torch.arange(1, window.shape[1])
            mask = (position >= prompt_tokens[samples, None]) & (targets != pad)
            sample_ids = data["sample_ids"][samples].tolist()
            if not mask.any():
                log.write("empty", step=step, micro_step=micro_step, sample_ids=sample_ids)

            # The one line for firstbad, so that it can name data; without the agent it does nothing.
            firstbad.agent.batch(
                shard_id=data["shards"][samples].tolist(),
                sample_ids=sample_ids,
                valid_tokens=int(mask.sum()),
                dataset_version=str(data["version"]),
                step=step,
            )

            last = micro_step == micro_steps - 1
            with nullcontext() if last else model.no_sync():
                logits = model(inputs)
                token_loss = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
                loss = (token_loss * mask).sum() / mask.sum() / micro_steps
                loss.backward()
            step_loss += loss.item()
        optimizer.step()

        nan_tensors = sum(bool(parameter.isnan().any()) for parameter in parameters)
        seconds = time.perf_counter() - started
        log.write("step", step=step, loss=step_loss, nan_tensors=nan_tensors, seconds=seconds)
        if nan_tensors == len(parameters) and not all_nan:
            all_nan = True
            log.write("all_nan", step=step, tensors=len(parameters))

    digest = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in parameters)).hexdigest()
    nan_tensors = sum(bool(parameter.isnan().any()) for parameter in parameters)
    log.write("end", steps=steps, tensors=len(parameters), nan_tensors=nan_tensors, parameters=digest)
    dist.destroy_process_group()


class Log:
    """What this rank saw, one JSON object a line; knows nothing of firstbad."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._rank = rank
        self._file = (folder / f"rank{rank}.jsonl").open("w", buffering=1)
        self.write("start", pid=os.getpid(), world_size=dist.get_world_size())

    def write(self, event: str, **facts: object) -> None:
        """Append one line."""
        self._file.write(json.dumps({"event": event, "rank": self._rank, **facts}) + "\n")


if __name__ == "__main__":
    main()
