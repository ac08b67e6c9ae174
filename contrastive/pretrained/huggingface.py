"""CLIP and SigLIP as Hugging Face's transformers library names and configures them."""

from typing import Any

from contrastive.data.config import DataConfig
from contrastive.errors import WeightsError
from contrastive.pretrained import layouts
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import TextTransformerConfig, TwoTowerConfig, VisionTransformerConfig
from contrastive.towers.layers import Activation

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
BLOCK = {
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.out_proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}


def activation(settings: Settings, default: str) -> Activation:
    """Our name of the activation.

    Raises:
      WeightsError: It is another one than this project has.
    """
    name = settings.get("hidden_act", default)
    if name not in ACTIVATIONS:
        raise WeightsError(
            f"{settings.where}: hidden_act = {name!r} is not known here; known are "
            f"{', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def shape(settings: Settings, *, width: int, hidden: int, depth: int, heads: int) -> dict[str, Any]:
    """Width, depth, heads and MLP of a transformer; the arguments are the library's defaults."""
    w = settings.get("hidden_size", width)
    return {
        "width": w,
        "depth": settings.get("num_hidden_layers", depth),
        "heads": settings.get("num_attention_heads", heads),
        "mlp_ratio": settings.get("intermediate_size", hidden) / w,
    }


# --- CLIP -------------------------------------------------------------------------------------


def _describe_clip(source: Source) -> Description:
    config = Settings(source.config, str(source.folder / "config.json"))
    text, vision = config.group("text_config"), config.group("vision_config")
    dim = config.get("projection_dim", 512)
    length = text.get("max_position_embeddings", 77)
    end = text.get("eos_token_id", 49407)
    size = vision.get("image_size", 224)
    image_tower = VisionTransformerConfig(
        **shape(vision, width=768, hidden=3072, depth=12, heads=12),
        activation=activation(vision, "quick_gelu"),
        epsilon=vision.get("layer_norm_eps", 1e-5),
        patch_size=vision.get("patch_size", 32),
        pooling="cls",
        pre_norm=True,
        patch_bias=False,
    )
    vocabulary = text.get("vocab_size", 49408)
    text_tower = TextTransformerConfig(
        **shape(text, width=512, hidden=2048, depth=12, heads=8),
        activation=activation(text, "quick_gelu"),
        epsilon=text.get("layer_norm_eps", 1e-5),
        vocabulary_size=vocabulary,
        length=length,
        causal=True,
        pooling="last",
    )
    return Description(
        data=DataConfig(image_size=size, text_length=length),
        model=TwoTowerConfig(image=image_tower, text=text_tower, embedding_dim=dim),
        # Configurations written before 2023 say 2, and mean the largest id.
        end_id=vocabulary - 1 if end == 2 else end,
    )


def _clip_rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, VisionTransformerConfig)
    vision, text = "vision_model.", "text_model."
    return [
        Rule("image/class_token", f"{vision}embeddings.class_embedding", layouts.ROW),
        *layouts.patches(
            "image/patches", f"{vision}embeddings.patch_embedding", image.patch_size, bias=False
        ),
        Rule("image/positions", f"{vision}embeddings.position_embedding.weight"),
        *layouts.norm("image/norm_before", f"{vision}pre_layrnorm"),
        *layouts.blocks("image/transformer/blocks", f"{vision}encoder.layers.{{}}.", BLOCK),
        *layouts.norm("image/norm", f"{vision}post_layernorm"),
        *layouts.linear("image/projection", "visual_projection", bias=False),
        Rule("text/tokens", f"{text}embeddings.token_embedding.weight"),
        Rule("text/positions", f"{text}embeddings.position_embedding.weight"),
        *layouts.blocks("text/transformer/blocks", f"{text}encoder.layers.{{}}.", BLOCK),
        *layouts.norm("text/norm", f"{text}final_layer_norm"),
        *layouts.linear("text/projection", "text_projection", bias=False),
        Rule("log_scale", "logit_scale"),
    ]


CLIP = Family(
    name="clip",
    recognises=lambda source: source.config.get("model_type") == "clip",
    describe=_describe_clip,
    rules=_clip_rules,
    ignored=(r".*\.position_ids",),
    renamed=((r"\.pre_layernorm\.", ".pre_layrnorm."),),
)
