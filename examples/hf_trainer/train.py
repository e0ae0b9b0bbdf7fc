"""
Hugging Face Trainer on a tiny GPT-2 with random weights: fine-tuning where a row may have no label.

Without --callback the script knows nothing of firstbad; with it, the ledger also has the Trainer's step and the rows.
"""

import argparse
import os

import torch
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator

MICRO_STEPS, ROWS, LENGTH, WORDS = 2, 2, 8, 64


class Rows(Dataset):
    """Rows of random tokens; those in `unlabelled` are prompt only and have no label."""

    def __init__(self, count: int, unlabelled: range) -> None:
        self.tokens = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))
        self.unlabelled = unlabelled

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, object]:
        labels = torch.full((LENGTH,), -100) if index in self.unlabelled else self.tokens[index]
        return {"sample_ids": index, "input_ids": self.tokens[index], "labels": labels}


def mean_over_labels(outputs: object, labels: torch.Tensor, num_items_in_batch: object = None) -> torch.Tensor:
    """0/0 when a batch has no label, and its gradient is NaN."""
    del num_items_in_batch
    logits, labels = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    mask = labels != -100
    losses = functional.cross_entropy(logits, labels.clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum() / MICRO_STEPS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--bad-step", type=int, help="the step whose first micro-batch has no label on --bad-rank")
    parser.add_argument("--bad-rank", type=int, default=1)
    parser.add_argument("--callback", action="store_true", help="use FirstbadCallback")
    parser.add_argument("--save", help="folder for each rank's weights")
    options = parser.parse_args()

    world = int(os.environ.get("WORLD_SIZE", "1"))
    unlabelled = range(0)
    if options.bad_step is not None:  # whole batches go to the ranks in turn
        first = (options.bad_step * MICRO_STEPS * world + options.bad_rank) * ROWS
        unlabelled = range(first, first + ROWS)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=options.steps,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=MICRO_STEPS,
        train_sampling_strategy="sequential",
        average_tokens_across_devices=False,  # else a loss of our own is multiplied by the number of ranks
        learning_rate=1e-2,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=not options.callback,
    )
    collator, callbacks = default_data_collator, []
    if options.callback:
        from firstbad.agent.integrations.transformers import FirstbadCallback, FirstbadCollator

        collator, callbacks = FirstbadCollator(default_data_collator), [FirstbadCallback()]
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    rows = Rows(options.steps * MICRO_STEPS * ROWS * world, unlabelled)
    trainer = Trainer(model, arguments, collator, rows, compute_loss_func=mean_over_labels, callbacks=callbacks)
    trainer.train()
    if options.save:
        torch.save(model.state_dict(), f"{options.save}/rank{arguments.process_index}.pt")


if __name__ == "__main__":
    main()
