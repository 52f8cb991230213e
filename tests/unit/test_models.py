"""Model shapes: the library's, each figure with its source, and those read from a Hugging Face config."""

from __future__ import annotations

import pytest

from arfloor import models
from arfloor.core.decode import MissingInput, shape_from_config


def test_every_model_of_the_library_cites_every_figure():
    for name in models.names():
        shape = models.load(name)
        cited = {figure for figure, source in shape.sources if len(source) > 10}
        assert {"hidden", "layers", "reduces_per_layer", "other_reduces", "activation_bytes"} <= cited
        assert set(shape.assumed) <= cited
        assert models.load(name.upper()) == shape


@pytest.mark.parametrize(
    "text", ["[hidden]\nvalue = 1\n", "[colour]\nvalue = 1\nsource = 'x'\n", "hidden = 4096\n"]
)
def test_a_figure_without_a_source_is_refused(text):
    with pytest.raises(ValueError, match="source"):
        models.from_toml(text, "m")


CONFIGS = {
    "dense": ({"hidden_size": 8192, "num_hidden_layers": 80, "num_key_value_heads": 8}, 161, 0, "gqa"),
    "mla moe": (
        {
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "first_k_dense_replace": 3,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "kv_lora_rank": 512,
            "num_nextn_predict_layers": 1,
        },
        123,
        58,
        "mla",
    ),
    "multimodal moe": (
        {
            "text_config": {
                "hidden_size": 4096,
                "num_hidden_layers": 60,
                "num_experts": 512,
                "full_attention_interval": 4,
            }
        },
        121,
        60,
        "hybrid",
    ),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_hugging_face_config_gives_the_shape(kind):
    config, reduces, moe_layers, attention = CONFIGS[kind]
    shape = shape_from_config(config, name=kind)
    assert (shape.reduces, shape.moe_layers, shape.attention) == (reduces, moe_layers, attention)
    assert "reduces_per_layer" in shape.assumed


def test_a_config_that_lacks_a_key_names_it():
    with pytest.raises(MissingInput, match="num_hidden_layers"):
        shape_from_config({"hidden_size": 1024})
