"""Under autocast: what is narrow, in every model, and what is not."""

import pytest
import torch
from torch import nn

from torchcram import Cram, CramConfig, OutputConfig
from torchcram.config import BASELINES
from torchcram.memory import Timeline
from torchcram.models import baseline, build
from torchcram.models.baselines.space import SelectiveSpace, Switch
from torchcram.models.outputs import Heads


def seen(model: nn.Module, tokens: torch.Tensor) -> dict[str, set[torch.dtype]]:
    """The kinds of what each feed-forward net is given, and of its weights meanwhile."""
    kinds: dict[str, set[torch.dtype]] = {"given": set(), "weights": set()}

    def look(map_: nn.Linear, given: tuple[torch.Tensor]) -> None:
        kinds["given"].add(given[0].dtype)
        kinds["weights"].add(map_.weight.dtype)

    for block in model.blocks:
        block.feed[0].register_forward_pre_hook(look)
        block.register_forward_pre_hook(lambda _, given: kinds["given"].add(given[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens, keep_state=False)
    return kinds


@pytest.mark.parametrize("name", ["cram", *BASELINES])
def test_layers_are_narrow_where_they_learn(name, tiny, events):
    config = tiny({"block.expansion": 4.0, "contradiction.rank": 0})
    model = build(config if name == "cram" else baseline(name, config))
    tokens, _ = events(2, 20, seed=5)
    assert seen(model.train(), tokens) == {"given": {torch.bfloat16}, "weights": {torch.bfloat16}}
    with torch.no_grad():
        assert seen(model.eval(), tokens)["weights"] == {torch.float32}, "which autocast narrows by itself"


def test_means_over_a_sequence_are_not_narrow():
    """A sum of thousands would stop growing."""
    length = 3000
    heads = Heads(2, [OutputConfig(name="kind", kind="classification", size=2)])
    timeline = Timeline.build(torch.ones(1, length))
    x = torch.tensor([1.0, 0.5]).expand(1, length, 2).bfloat16()
    nn.init.eye_(heads.maps["kind_head"].weight)
    nn.init.zeros_(heads.maps["kind_head"].bias)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = heads(x, timeline, torch.zeros(1, 2))
    assert found["kind"].tolist() == [[1.0, 0.5]]


@pytest.mark.parametrize("name", ["cram", *BASELINES])
@torch.no_grad()
def test_weights_made_narrow_for_good_give_what_autocast_gives(name, tiny, events):
    """But where norms are given wide numbers, as in state spaces: autocast leaves their weights as they are."""
    torch.manual_seed(0)
    config = tiny({"block.expansion": 4.0, "contradiction.rank": 0})
    model = build(config if name == "cram" else baseline(name, config)).eval()
    for part in model.modules():
        if isinstance(part, nn.RMSNorm):
            part.weight.uniform_(0.5, 1.5)
    tokens, dt = events(2, 20, seed=5)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(tokens, dt=dt)
        model.narrow()
        found = model(tokens, dt=dt)
    assert model.blocks[0].feed[0].weight.dtype == torch.bfloat16
    off = 0.03 if any(isinstance(part, SelectiveSpace | Switch) for part in model.modules()) else 0.0
    close = {"rtol": off, "atol": off, "check_dtype": True}
    torch.testing.assert_close(found.logits, expected.logits, **close)
    for (kind, mine), (_, theirs) in zip(found.state.named_tensors(), expected.state.named_tensors(), strict=True):
        assert mine.dtype == theirs.dtype, kind
        torch.testing.assert_close(mine, theirs, **close)


@torch.no_grad()
def test_sums_over_a_stream_stay_wide_in_a_narrow_model():
    torch.manual_seed(0)
    task = {"inputs": "channels", "channels": 2, "outputs": "classification", "size": 3}
    model, exact = Cram(CramConfig.preset("tiny", **task)).eval(), None
    x = torch.randn(1, 3000, 2) + 1
    for narrow in (False, True):
        state = None
        if narrow:
            model.narrow()
        for part in x.split(10, dim=1):
            with torch.autocast("cpu", torch.bfloat16):
                state = model(part, state=state).state
        assert state.pooled.dtype == torch.float32
        exact = state.pooled if exact is None else exact
    torch.testing.assert_close(state.pooled, exact, rtol=0.02, atol=5)
