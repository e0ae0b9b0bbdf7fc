"""The file that all ranks of both trainings read: samples as tokens, and their order."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firstbad.cli.demo.corpus import PAD, VOCABULARY, Sample
from firstbad.cli.demo.order import Order, Place
from firstbad.cli.demo.recipe import Recipe


def save(path: Path, samples: Sequence[Sample], order: Order, recipe: Recipe) -> None:
    """
    Write the samples that the order uses, so that no rank has to parse the library.

    Arrays: `tokens` (samples, context) uint16, `prompt_tokens`, `sample_ids`, `shards` (samples,), `order` (steps,
    micro steps, ranks, samples of a micro-batch) into the samples; scalars `pad`, `vocabulary`, `version`.
    """
    used = sorted(set(order.picked))
    place = {index: number for number, index in enumerate(used)}
    np.savez(
        path,
        tokens=np.array([samples[index].tokens(recipe.context) for index in used], dtype=np.uint16),
        prompt_tokens=np.array([len(samples[index].prompt) for index in used], dtype=np.int64),
        sample_ids=np.array([samples[index].id for index in used]),
        shards=np.array([samples[index].shard for index in used]),
        order=np.array([place[index] for index in order.picked], dtype=np.int64).reshape(
            recipe.steps, recipe.micro_steps, recipe.world, recipe.batch
        ),
        pad=np.int64(PAD),
        vocabulary=np.int64(VOCABULARY),
        version=np.array(f"python-{platform.python_version()}"),
    )


def samples_at(samples: Sequence[Sample], order: Order, recipe: Recipe, place: Place) -> list[Sample]:
    """The samples of one micro-batch."""
    batch = (place.step * recipe.micro_steps + place.micro_step) * recipe.world + place.rank
    return [samples[index] for index in order.picked[batch * recipe.batch : (batch + 1) * recipe.batch]]
