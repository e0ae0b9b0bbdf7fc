"""Where skipping cannot help the stop says so: the last good step, what is finite now, and what to load."""

from __future__ import annotations

import math

import hopeless
import ordered
import pytest
import torch
from ordered import Order
from played import Play
from torch import nn

from firstbad.agent.finiteness import scan
from firstbad.agent.models.modelmap import ModelMap
from firstbad.agent.testing import poison_parameter
from firstbad.schema import RunEnd, Verdict

FINE = ("", "", "")
EVERYWHERE = (
    "Skipping cannot help: since step {} every step was bad at every rank. The batches are bad, or the update of step "
    "{} has ruined the weights. Load the newest checkpoint from before step {}"
)
LOADED = "Skipping cannot help: weights were bad before step {}. Load a checkpoint older than DIR/step-200.pt"
UPDATED = "Skipping cannot help: the update of step 3 ruined the weights. Load the newest checkpoint from before step 3"
UNHEALED = "Skipping cannot heal what is not finite. Load the newest checkpoint from before step 2"
SOUND = "The weights are those after step 2. Load the newest checkpoint from before step 3"
CASES = {
    # step, last good step, what is not finite, what to load
    "huge_update": (6, 3, FINE, EVERYWHERE.format(4, 3, 3)),
    "infinite_update": (6, 2, ("inlet.weight", "", ""), UPDATED),
    "loaded_bad": (2, -1, ("inlet.weight", "", ""), LOADED.format(0)),
    "loaded_later": (5, 2, ("inlet.weight", "", ""), LOADED.format(3)),
    "batches": (5, 2, FINE, EVERYWHERE.format(3, 2, 2) + " (last read: DIR/step-100.pt)"),
    "state": (5, 2, ("", "", "exp_avg_sq of outlet.bias"), UNHEALED),
    "one_rank": (5, 2, FINE, SOUND),
    "once": (3, 2, FINE, SOUND),
}


@pytest.mark.parametrize(("world", "how"), [*((2, how) for how in CASES), (1, "huge_update"), (1, "loaded_bad")])
def test_a_stop_says_what_is_ruined_and_what_to_load(play: Play, world: int, how: str) -> None:
    """Every rank: in the error's attributes, in its text and in the run end."""
    step, good, finite, load = CASES[how]
    played = play(world, how, hopeless.train)

    assert played.one("step") == step
    assert played.one("last_good_step") == good
    assert played.one("finite") == finite
    assert played.one("load") == load
    text = played.one("text")
    assert text.endswith(f"{load}. Next: firstbad show r {step}")
    assert (f"last good step {good};" if good >= 0 else "no step was good so far;") in text
    assert ("on this rank finite: parameters, buffers, optimizer state." in text) is (finite == FINE)
    assert all(name in text for name in finite)
    assert {verdict.last_good_step for verdict in played.of(Verdict)} == {good}
    assert {end.error.endswith(f"show r {step}") for end in played.of(RunEnd)} == {True}


def test_what_is_not_finite_on_one_rank_alone_is_said_there(play: Play) -> None:
    """A buffer of rank 1, then a shard of rank 1."""
    buffers = play(2, "buffer", hopeless.train)
    fault = poison_parameter("outlet.weight", step=1, rank=1)
    shards = play(2, Order((fault,), wrap="fsdp2", settings=(("max_consecutive_skips", 1),)), ordered.train)

    assert [rank["finite"] for rank in buffers.ranks] == [FINE, ("", "mean", "")]
    texts = [rank["error"][1] for rank in shards.ranks]
    assert "on this rank finite: parameters, buffers, optimizer state." in texts[0]
    assert "on this rank finite: buffers, optimizer state; not finite: parameters (outlet.weight)." in texts[1]
    assert all("the update of step 0 ruined the weights. Load what this run began with" in text for text in texts)


FORMS = {
    "huge": (lambda: torch.full((4,), 3e38), ""),
    "float64": (lambda: torch.tensor([1.0, math.inf], dtype=torch.float64), "odd of weight"),
    "float8": (lambda: torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), ""),
    "float8_nan": (lambda: torch.tensor([1.0, math.nan]).to(torch.float8_e4m3fn), "odd of weight"),
    "complex": (lambda: torch.tensor([1j, complex(math.nan, 0)]), "odd of weight"),
    "bytes": (lambda: torch.tensor([1, 2], dtype=torch.uint8), ""),
    "sparse": (lambda: torch.sparse_coo_tensor([[0]], [math.nan], (3,), check_invariants=True), "odd of weight"),
    "meta": (lambda: torch.empty(3, device="meta"), ""),
    "empty": (lambda: torch.empty(0), ""),
    "nested": (lambda: {"deep": [torch.ones(1), (math.nan,)]}, "odd.deep.1.0 of weight"),
    "none": (lambda: None, ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_optimizer_state_of_any_form_is_read(form: str) -> None:
    """Huge but finite values, float8, complex, sparse, nested; what holds no numbers is passed over."""
    make, found = FORMS[form]
    model = nn.Linear(2, 2, bias=False)
    models = ModelMap()
    models.add(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["odd"] = make()

    result = scan([optimizer], models)

    assert (result.parameters, result.buffers, result.optimizer_state) == ("", "", found)


def test_what_cannot_be_read_is_not_known_and_does_no_harm() -> None:
    """An optimizer with no state at all."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state = None  # type: ignore[assignment]

    result = scan([optimizer], ModelMap())

    assert (result.parameters, result.buffers, result.optimizer_state) == ("", "", None)
    assert result.sentence() == "on this rank finite: parameters, buffers; not known: optimizer state"
