"""Where a decoder attends: what goes into each layer's attention, what its heads return, and other answers instead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchcram.config import ModelConfig
from torchcram.ledger import Ledger
from torchcram.memory import Block, RoutingPolicy
from torchcram.models import AnyModel, Cram
from torchcram.models.baselines.attention import Attention
from torchcram.models.baselines.stack import BaselineBlock
from torchcram.pretrained.text import Windows

_OUTWARD = ("o_proj", "c_proj", "out_proj", "dense")


class Seen(NamedTuple):
    """What a layer's attention is given."""

    given: Tensor
    """[B, N, D]: the input of the attention block, after its norm."""
    tokens: Tensor
    """[B, N]"""


Predictor = Callable[[Seen], Tensor]
"""What the heads of a layer would return, side by side: [B, N, H · size]."""


@dataclass(frozen=True, eq=False)
class Site:
    """The attention of a layer."""

    name: str
    inward: nn.Module
    """What the input of the attention block goes into; or, if it `leaves` there, comes out of."""
    outward: nn.Module
    """The projection of what the heads return."""
    heads: int
    width: int
    """Of all heads together."""
    leaves: bool = False

    def on_input(self, take: Callable[[Tensor], None]) -> RemovableHandle:
        """Have the input of the attention block told, as it comes by."""
        if self.leaves:
            return self.inward.register_forward_hook(lambda module, args, out: take(out))
        return self.inward.register_forward_pre_hook(
            lambda module, args, kwargs: take(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )

    def project(self, heads: Tensor) -> Tensor:
        """[…, width] to the layer's output, without bias."""
        return heads @ self.weight.to(heads.dtype)

    @property
    def weight(self) -> Tensor:
        """[width, D] of the projection."""
        weight: Tensor = self.outward.weight  # type: ignore[assignment]
        return weight.T if isinstance(self.outward, nn.Linear) else weight

    @property
    def bias(self) -> Tensor | None:
        """[D] of the projection, if it has one."""
        bias: Tensor | None = getattr(self.outward, "bias", None)
        return bias


def find(model: nn.Module) -> list[Site]:
    """The attention blocks of a decoder, from the first layer to the last."""
    if isinstance(model, Own):
        return model.sites()
    heads = int(getattr(text_config(model), "num_attention_heads", 0))
    found = []
    for name, module in _decoder(model).named_modules():
        outward = next((part for key in _OUTWARD if isinstance(part := getattr(module, key, None), nn.Module)), None)
        if outward is None or not type(module).__name__.endswith("Attention"):
            continue
        weight: Tensor = outward.weight  # type: ignore[assignment]
        width = weight.shape[1] if isinstance(outward, nn.Linear) else weight.shape[0]
        if heads < 1 or width % heads:
            raise ValueError(f"{name} has an output projection of {width}, which is not a multiple of {heads} heads")
        found.append(Site(name, module, outward, heads, width))
    if not found:
        raise ValueError(
            f"no attention was found in {type(model).__name__}: known are modules named …Attention that have one of "
            f"{', '.join(_OUTWARD)}. Give a decoder that attends: GPT-2, Llama, Qwen, Gemma and others like them"
        )
    return found


def text_config(model: Any) -> Any:
    """What a model says of the part that reads text."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def recurrent(model: nn.Module, found: Sequence[Site]) -> bool:
    """Whether something other than attention takes what tokens say to later ones: a state, or a convolution."""
    if isinstance(model, Own):
        return isinstance(model.model, Cram) or len(found) < len(model.model.blocks)
    layers = int(getattr(text_config(model), "num_hidden_layers", 0))
    return len(found) < layers or any(isinstance(module, nn.Conv1d) for module in _decoder(model).modules())


def _decoder(model: Any) -> nn.Module:
    """The part that reads text, of a model that may also see."""
    decoder: nn.Module = model.get_decoder() if hasattr(model, "get_decoder") else model
    return decoder


class Said(NamedTuple):
    """What a model returns."""

    logits: Tensor


class Own(nn.Module):
    """One of this project's models of tokens, CRAM or a baseline, that looks like one of Hugging Face.

    CRAM reads everywhere here: what its reads would return is told by probes, whether it needs them by the ledger.
    """

    def __init__(self, model: AnyModel, *, released: bool = True) -> None:
        """`released`: It chooses who reads; before that, its choice is not used and means nothing."""
        super().__init__()
        self.released = released
        (field,) = model.config.inputs.tokens
        self.model, self.field = model, field.name
        self.head = model.config.outputs[0].name
        self.policy = RoutingPolicy(reads="dense") if isinstance(model, Cram) else None

    @property
    def config(self) -> ModelConfig:
        """Of the model."""
        return self.model.config

    @property
    def base_model(self) -> Own:
        """Itself."""
        return self

    def get_input_embeddings(self) -> nn.Module:
        """Of the tokens."""
        return self.model.encoder.tokens[f"{self.field}_ids"]

    def forward(self, tokens: Tensor, use_cache: bool = False) -> Said:
        """tokens [B, N] to logits [B, N, V]."""
        out = self.model({self.field: tokens}, policy=self.policy, keep_state=use_cache)
        return Said(out.predictions[self.head])

    @torch.no_grad()
    def executed(self, windows: Windows, batch: int, device: torch.device | str) -> dict[str, float]:
        """What it does by itself, reads chosen once they are released: the ledger, and the loss in nats a token."""
        ledger: Ledger | None = None
        nats, policy = 0.0, None if self.released else self.policy
        for tokens in windows.batches(batch, device):
            out = self.model({self.field: tokens}, policy=policy, keep_state=False)
            ledger = out.ledger() if ledger is None else ledger + out.ledger()
            logits = out.predictions[self.head][:, :-1].float()
            nats += float(nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())) * len(tokens)
        assert ledger is not None
        return {**ledger.to_dict(), "loss": nats / len(windows), "released": self.released}

    def sites(self) -> list[Site]:
        """Layers that attend."""
        found = []
        for number, block in enumerate(self.model.blocks):
            if isinstance(block, Block) and block.episodic is not None:
                parts = block.norm_memory, block.episodic.outward, block.episodic.config.heads
            elif isinstance(block, BaselineBlock) and isinstance(block.mixer, Attention):
                parts = block.norm_mixer, block.mixer.outward, block.mixer.config.heads
            else:
                continue
            inward, outward, heads = parts
            found.append(Site(f"blocks.{number}", inward, outward, heads, outward.in_features, leaves=True))
        if not found:
            raise ValueError("no layer of this model has attention at every position")
        return found


class Recording:
    """What went through each site in the last forward pass."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.given: list[Tensor | None] = [None] * len(sites)
        """[B, N, D] each: the input of attention."""
        self.heads: list[Tensor | None] = [None] * len(sites)
        """[B, N, width] each: what its heads returned."""

    def each(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Layer, input, and what heads returned."""
        for layer, (given, heads) in enumerate(zip(self.given, self.heads, strict=True)):
            if given is None or heads is None:
                raise ValueError(f"layer {layer} did not attend in this forward pass")
            yield layer, given, heads


@contextlib.contextmanager
def recording(sites: Sequence[Site]) -> Iterator[Recording]:
    """Keep what goes through each site, while the model computes as it always does."""
    kept = Recording(sites)
    with contextlib.ExitStack() as hooks:
        for layer, site in enumerate(sites):

            def take(given: Tensor, layer: int = layer) -> None:
                kept.given[layer] = given.detach()

            def leave(module: nn.Module, args: Any, layer: int = layer) -> None:
                kept.heads[layer] = args[0].detach()

            hooks.callback(site.on_input(take).remove)
            hooks.callback(site.outward.register_forward_pre_hook(leave).remove)
        yield kept


@contextlib.contextmanager
def replacing(
    sites: Sequence[Site], predictors: Mapping[int, Predictor], tokens: Callable[[], Tensor]
) -> Iterator[None]:
    """While inside, some layers' heads return what predictors say; tokens: of the forward pass that is under way."""
    with contextlib.ExitStack() as hooks:
        for layer, predictor in predictors.items():
            swap = _Swap(predictor, tokens)
            hooks.callback(sites[layer].on_input(swap.take).remove)
            hooks.callback(sites[layer].outward.register_forward_pre_hook(swap.put).remove)
        yield


class _Swap:
    """Puts what a predictor says in the place of what heads return."""

    def __init__(self, predictor: Predictor, tokens: Callable[[], Tensor]) -> None:
        self.predictor, self.tokens = predictor, tokens
        self.given: Tensor | None = None

    def take(self, given: Tensor) -> None:
        self.given = given

    def put(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert self.given is not None
        said = self.predictor(Seen(self.given, self.tokens())).to(args[0].dtype)
        self.given = None
        return (said, *args[1:])
