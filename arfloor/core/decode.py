"""The decode step of a tensor-parallel model: how many reduces, of what size, in how long a step.

A step of batch b takes C(b) for everything else plus, for each of its R reduces, the exposed part of
A(S), with S = b x tokens per sequence x hidden x bytes an element. A decoder layer ends in two
reduces (after the attention's output projection, after the feed-forward block), and the
vocabulary-parallel embedding adds one: R = 2 x layers + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arfloor.core.cases import Estimate, record
from arfloor.core.errors import InputError


class MissingInput(InputError):
    """Something the answer needs was not given; the message names it and says how to give it."""


@record
class ModelShape:
    """What decides the reduces of a decode step. `sources` says, figure by figure, who published it;
    `assumed` names the figures that nobody published.

    `attention` is `gqa`, `mla`, `mqa` or `hybrid`; `residual` is `add` or `hyper_connections`
    (several residual streams that a mixing step joins between the reduce and the norm).
    `separate_shared_reduces`: 1 where the runtime reduces the shared expert's output apart from the
    routed experts'; 0 where it adds them first, as SGLang and vLLM do.
    """

    name: str
    hidden: int
    layers: int
    dense_layers: int = 0
    routed_experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    mtp_layers: int = 0
    attention: str = "gqa"
    residual: str = "add"
    reduces_per_layer: int = 2
    other_reduces: int = 1
    separate_shared_reduces: int = 0
    activation_bytes: int = 2
    sources: tuple[tuple[str, str], ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers if self.routed_experts else 0

    @property
    def reduces(self) -> int:
        """All-reduces in one decode step under tensor parallelism."""
        separate = self.separate_shared_reduces * self.moe_layers
        return self.reduces_per_layer * self.layers + self.other_reduces + separate

    def message_nbytes(self, tokens: int) -> int:
        """Bytes of one reduce when `tokens` tokens (sequences x tokens a sequence) are in the step."""
        return tokens * self.hidden * self.activation_bytes


def ring_wire_bytes(world: int, nbytes: int) -> float:
    """Bytes each rank sends, and receives, in a bandwidth-optimal all-reduce: 2 (n-1)/n S."""
    return 2 * (world - 1) / world * nbytes


def reduce_traffic_gbps(shape: ModelShape, world: int, tokens: int, steps_per_s: float) -> float:
    """Mean rate that the reduces of decode put on each direction of each GPU's link, in GB/s.

    Payload only, at the ring's 2 (n-1)/n S a reduce; the LL protocol doubles it (a flag a word).
    """
    wire = ring_wire_bytes(world, shape.message_nbytes(tokens))
    return shape.reduces * wire * steps_per_s / 1e9


def step_us(sequences: int, tok_s: float, emitted: float = 1.0) -> float:
    """Length of a step in us, from tokens a second over all sequences."""
    return sequences * emitted / tok_s * 1e6


def step_estimate(sequences: int, tok_s: Estimate) -> Estimate:
    """Length of a step with its interval (a faster server has the shorter step)."""
    return Estimate(
        value=step_us(sequences, tok_s.value),
        lo=step_us(sequences, tok_s.hi),
        hi=step_us(sequences, tok_s.lo),
        n=tok_s.n,
        unit="us",
    )


_HYBRID_KEYS = ("linear_num_value_heads", "linear_attn_config", "full_attention_interval", "mamba_d_state")


def shape_from_config(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """Shape from a Hugging Face config.json: dense or MoE, MLA or GQA, text or multimodal.

    The number of reduces a layer (two) and outside the layers (one, the embedding) are the
    runtime's, not the config's: they are listed in `assumed`. Raises MissingInput naming the key
    that is absent.
    """
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    assert isinstance(text, Mapping)
    origin = f"config.json of {name or config.get('_name_or_path') or config.get('model_type', 'the model')}"
    hidden = _integer(text, ("hidden_size", "n_embd"), origin)
    layers = _integer(text, ("num_hidden_layers", "n_layer"), origin)
    experts = _optional(text, ("n_routed_experts", "num_local_experts", "num_experts"))
    shared = _optional(text, ("n_shared_experts", "num_shared_experts"))
    if not shared and text.get("shared_expert_intermediate_size"):
        shared = 1
    figures = ("hidden", "layers", "dense_layers", "routed_experts", "shared_experts", "mtp_layers")
    return ModelShape(
        name=name or str(config.get("_name_or_path") or config.get("model_type", "model")),
        hidden=hidden,
        layers=layers,
        dense_layers=_dense_layers(text, layers) if experts else layers,
        routed_experts=experts,
        experts_per_token=_optional(text, ("num_experts_per_tok", "experts_per_token")),
        shared_experts=shared,
        mtp_layers=_optional(text, ("num_nextn_predict_layers", "mtp_num_hidden_layers")),
        attention=_attention(text),
        residual="hyper_connections" if text.get("hc_mult") else "add",
        sources=tuple((figure, origin) for figure in figures),
        assumed=("reduces_per_layer", "other_reduces", "separate_shared_reduces", "activation_bytes"),
    )


def _integer(text: Mapping[str, Any], keys: tuple[str, ...], origin: str) -> int:
    for key in keys:
        if _whole(text.get(key)):
            if not 1 <= text[key] <= _MOST:
                found = "less" if text[key] < 1 else "more"
                raise MissingInput(f"{origin}: expected {key!r} from 1 to {_MOST}, found {found}")
            return int(text[key])
        if text.get(key) is not None:
            raise MissingInput(
                f"{origin}: expected a whole number for {key!r}, found {ascii(text[key])[:40]}"
            )
    raise MissingInput(f"{origin}: expected the key {keys[0]!r}, found none; give a complete config.json")


_MOST = 1 << 24  # of layers, experts or hidden elements: beyond any model


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _optional(text: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    return next((int(text[key]) for key in keys if _whole(text.get(key)) and 0 <= text[key] <= _MOST), 0)


def _dense_layers(text: Mapping[str, Any], layers: int) -> int:
    if _whole(text.get("first_k_dense_replace")):
        return int(min(max(text["first_k_dense_replace"], 0), layers))
    only = text.get("mlp_only_layers")
    if isinstance(only, list) and only:
        return sum(layer in only for layer in range(layers))
    each = text.get("moe_layer_freq")
    if isinstance(each, list) and len(each) == layers:  # 1 where a layer has experts
        return layers - sum(map(bool, each))
    step = text.get("decoder_sparse_step") or each or 1
    return layers - layers // step if isinstance(step, int) and step > 1 else 0


def _attention(text: Mapping[str, Any]) -> str:
    if any(key in text for key in _HYBRID_KEYS):
        return "hybrid"
    if text.get("kv_lora_rank"):
        return "mla"
    return "mqa" if text.get("num_key_value_heads") == 1 else "gqa"
