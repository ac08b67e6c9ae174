"""Tiny models of other libraries with seeded weights, what they compute, and their gradients.

Runs in the second environment (`make parity`) as `peer_weights.py FOLDER [CASE …]`: a folder a case
with the weights as that library saves them, and `reference.npz`. With `--small` the models are a
few KB and gradients are left out: `tests/parity/fixtures` was written so. Imports nothing of this
project.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import torchvision_operators  # noqa: F401  before anything that imports torchvision
from torch.nn import functional

SMALL = "--small" in sys.argv
# width and hidden units of pictures' and of texts' tower, depth, heads, vocabulary, images
WIDTH, HIDDEN, TEXT_WIDTH, TEXT_HIDDEN = (16, 20, 12, 20) if SMALL else (48, 100, 32, 72)
DEPTH, HEADS, VOCABULARY, DIM, BATCH = (2, 2, 31, 8, 2) if SMALL else (3, 4, 99, 24, 6)


def shake(model, scale=0.1):
    """Moves every parameter off its start: biases of zero and norms of one hide what is swapped."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name == "logit_bias":
            noise = noise * 0 - 3.0
        parameter.data.add_(noise * scale if name != "logit_bias" else noise)
    return model.eval()


def rows_of_text(batch, length, vocabulary, seed=3):
    """Token ids: begin, words, the end token (the largest id) at different places, padding 0."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, vocabulary - 2, (batch, length))
    ids[:, 0] = vocabulary - 2
    for row, end in zip(ids, rng.integers(1, length, batch), strict=True):
        row[end] = vocabulary - 1
        row[end + 1 :] = 0
    return ids


def pixels(batch, height, width, seed=5):
    return np.random.default_rng(seed).normal(size=(batch, 3, height, width)).astype(np.float32)


def record(folder, model, images, ids, embed, loss, **more):
    """Runs a model forward and backward and saves what came out."""
    model.zero_grad()
    inputs = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
    tokens = torch.from_numpy(ids)
    x, y = embed(inputs, tokens)
    value = loss(x, y)
    value.backward()
    out = {"ids": ids, "image": x.detach().numpy(), "text": y.detach().numpy()}
    out |= {"pixels": images} if isinstance(images, np.ndarray) else {}
    out["loss"] = value.detach().numpy()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not SMALL:
            out[f"gradient/{name}"] = parameter.grad.numpy()
    np.savez(folder / "reference.npz", **out, **more)


# --- transformers -----------------------------------------------------------------------------


def clip(
    folder, *, activation="quick_gelu", image_size=20, patch=5, length=9, width=WIDTH, eps=1e-5
):
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": TEXT_HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "max_position_embeddings": length,
        "hidden_act": activation,
        "layer_norm_eps": eps,
        "bos_token_id": VOCABULARY - 2,
        "eos_token_id": VOCABULARY - 1,
        "pad_token_id": 0,
    }
    vision = {
        "hidden_size": width,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "image_size": image_size,
        "patch_size": patch,
        "hidden_act": activation,
        "layer_norm_eps": eps,
    }
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=DIM)
    model = shake(CLIPModel(config))
    model.save_pretrained(folder)

    def embed(images, tokens):
        out = model(input_ids=tokens, pixel_values=images, return_loss=True)
        model.last_loss = out.loss
        return out.image_embeds, out.text_embeds

    ids = rows_of_text(BATCH, length - 2, VOCABULARY)
    record(
        folder,
        model,
        pixels(BATCH, image_size, image_size),
        ids,
        embed,
        lambda x, y: model.last_loss,
    )


def clip_b32(folder):
    """The published size of CLIP ViT-B/32, whole; no gradients."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    text = {"bos_token_id": 49_406, "eos_token_id": 49_407, "pad_token_id": 0}
    model = shake(CLIPModel(CLIPConfig(text_config=text)), 0.02)
    model.save_pretrained(folder)
    images, ids = pixels(BATCH, 224, 224), rows_of_text(BATCH, 77, 49_408)
    with torch.no_grad():
        out = model(torch.from_numpy(ids), torch.from_numpy(images), return_loss=True)
    arrays = {"image": out.image_embeds, "text": out.text_embeds, "loss": out.loss}
    np.savez(folder / "reference.npz", pixels=images, ids=ids, **arrays)


def siglip(
    folder,
    *,
    image_size=20,
    patch=5,
    length=9,
    heads=HEADS,
    activation="gelu_pytorch_tanh",
    vocabulary=VOCABULARY,
):
    from transformers import SiglipConfig, SiglipModel

    torch.manual_seed(1)
    common = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "hidden_act": activation,
    }
    text = common | {
        "vocab_size": vocabulary,
        "intermediate_size": TEXT_HIDDEN,
        "max_position_embeddings": length,
    }
    vision = common | {"intermediate_size": HIDDEN, "image_size": image_size, "patch_size": patch}
    model = shake(SiglipModel(SiglipConfig(text_config=text, vision_config=vision)))
    model.save_pretrained(folder)

    def embed(images, tokens):
        out = model(input_ids=tokens, pixel_values=images, return_loss=True)
        model.last_loss = out.loss
        return out.image_embeds, out.text_embeds

    ids = np.random.default_rng(2).integers(0, vocabulary, (BATCH, length))
    record(
        folder,
        model,
        pixels(BATCH, image_size, image_size),
        ids,
        embed,
        lambda x, y: model.last_loss,
    )


def vit(folder, *, image_size=20, patch=5, activation="gelu"):
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(4)
    config = ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        image_size=image_size,
        patch_size=patch,
        hidden_act=activation,
    )
    model = shake(ViTModel(config))
    model.save_pretrained(folder)
    _record_pictures(
        folder, model, image_size, lambda images: model(images).last_hidden_state[:, 0]
    )


def shake_statistics(model):
    """Running means and variances of batch normalisation, moved too."""
    generator = torch.Generator().manual_seed(8)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(0.2 * torch.randn(buffer.shape, generator=generator))
        if name.endswith("running_var"):
            buffer.mul_(0.5 + torch.rand(buffer.shape, generator=generator))


def resnet(folder, *, block="bottleneck", image_size=64, train=False, **options):
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(5)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2], layer_type=block, **options
    )
    model = shake(ResNetModel(config), 0.05)
    shake_statistics(model)
    model.save_pretrained(folder)
    size = {"shortest_edge": image_size}
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": size, "crop_pct": 0.875}))
    model.train(train)
    _record_pictures(folder, model, image_size, lambda x: model(x).pooler_output[:, :, 0, 0])


def convnext(folder, *, image_size=40, activation="gelu", **options):
    from transformers import ConvNextConfig, ConvNextModel

    torch.manual_seed(9)
    config = ConvNextConfig(
        hidden_sizes=[8, 12] if SMALL else [16, 24, 40],
        depths=[1, 2] if SMALL else [1, 2, 1],
        num_stages=2 if SMALL else 3,
        image_size=image_size,
        hidden_act=activation,
        **options,
    )
    model = shake(ConvNextModel(config))
    model.save_pretrained(folder)
    size = {"shortest_edge": image_size}
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": size, "crop_pct": 0.875}))
    _record_pictures(folder, model, image_size, lambda x: model(x).pooler_output)


def _record_pictures(folder, model, image_size, embed):
    """For a model without texts, the loss is the sum of sines of its rows. Buffers are those after
    the forward pass."""
    images = pixels(BATCH, image_size, image_size)
    rows = embed(torch.from_numpy(images))
    loss = torch.sin(rows).sum()
    loss.backward()
    out = {"pixels": images, "image": rows.detach().numpy(), "loss": loss.detach().numpy()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not SMALL:
            out[f"gradient/{name}"] = parameter.grad.numpy()
    if model.training:
        out |= {f"after/{name}": buffer.numpy() for name, buffer in model.named_buffers()}
    np.savez(folder / "reference.npz", **out)


def naflex(folder, *, patch=4, grid=3, most=16, length=9, vocabulary=VOCABULARY):
    """SigLIP 2 on pictures of three aspects, prepared by its own code."""
    from PIL import Image
    from transformers import Siglip2Config, Siglip2Model
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    torch.manual_seed(8)
    common = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    text = common | {"vocab_size": vocabulary, "intermediate_size": TEXT_HIDDEN}
    text |= {"max_position_embeddings": length}
    vision = common | {"intermediate_size": HIDDEN, "patch_size": patch, "num_patches": grid**2}
    model = shake(Siglip2Model(Siglip2Config(text_config=text, vision_config=vision)))
    model.save_pretrained(folder)
    processor = Siglip2ImageProcessorPil(patch_size=patch, max_num_patches=most)
    processor.save_pretrained(folder)
    sizes = SIZES[: 2 if SMALL else None]
    shown = {f"picture/{i}": picture(*size) for i, size in enumerate(sizes)}
    given = processor(images=[Image.fromarray(x) for x in shown.values()], return_tensors="pt")
    ids = np.random.default_rng(2).integers(0, vocabulary, (len(shown), length))

    def embed(images, tokens):
        out = model(input_ids=tokens, **images, return_loss=True)
        model.last_loss = out.loss
        return out.image_embeds, out.text_embeds

    shapes = given["spatial_shapes"].numpy()
    loss = lambda x, y: model.last_loss  # noqa: E731
    record(folder, model, dict(given), ids, embed, loss, shapes=shapes, **shown)


# --- open_clip --------------------------------------------------------------------------------


def _save_open_clip(folder, model, config, image_size):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    whole = {"model_cfg": config, "preprocess_cfg": {"size": image_size}}
    (folder / "open_clip_config.json").write_text(json.dumps(whole))


def _record_open_clip(folder, model, images, ids, sigmoid):
    from open_clip.loss import ClipLoss, SigLipLoss

    def embed(images, tokens):
        x, y = model.encode_image(images), model.encode_text(tokens)
        return functional.normalize(x, dim=-1), functional.normalize(y, dim=-1)

    def loss(x, y):
        if sigmoid:
            return SigLipLoss()(x, y, model.logit_scale.exp(), model.logit_bias)
        return ClipLoss()(x, y, model.logit_scale.exp())

    record(folder, model, images, ids, embed, loss)


def open_clip_vit(folder, *, quick=True, image_size=20, patch=5, length=9, custom=False):
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP

    torch.manual_seed(2)
    vision = {
        "image_size": image_size,
        "layers": DEPTH,
        "width": WIDTH,
        "head_width": WIDTH // HEADS,
        "patch_size": patch,
        "mlp_ratio": 2.3,
    }
    text = {"context_length": length, "vocab_size": VOCABULARY}
    text |= {"width": TEXT_WIDTH, "heads": HEADS, "layers": 2}
    config = {"embed_dim": DIM, "quick_gelu": quick, "vision_cfg": vision, "text_cfg": text}
    if custom:
        text |= {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
        text |= {"norm_kwargs": {"eps": 1e-6}, "act_kwargs": {"approximate": "tanh"}}
        config |= {"custom_text": True, "init_logit_bias": -10}
    kind = CustomTextCLIP if custom else CLIP
    model = kind(
        embed_dim=DIM,
        quick_gelu=quick,
        vision_cfg=CLIPVisionCfg(**vision),
        text_cfg=CLIPTextCfg(**text),
        **({"init_logit_bias": -10} if custom else {}),
    )
    shake(model)
    _save_open_clip(folder, model, config, image_size)
    ids = rows_of_text(BATCH, length, VOCABULARY)
    _record_open_clip(folder, model, pixels(BATCH, image_size, image_size), ids, custom)


def open_clip_resnet(folder, *, image_size=64, length=9):
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    torch.manual_seed(6)
    vision = {"image_size": image_size, "layers": [1, 2, 1, 1], "width": 8, "head_width": 32}
    text = {"context_length": length, "vocab_size": VOCABULARY}
    text |= {"width": TEXT_WIDTH, "heads": HEADS, "layers": 2}
    config = {"embed_dim": DIM, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}
    model = CLIP(
        embed_dim=DIM,
        quick_gelu=True,
        vision_cfg=CLIPVisionCfg(**vision),
        text_cfg=CLIPTextCfg(**text),
    )
    shake(model, 0.05)
    shake_statistics(model)
    _save_open_clip(folder, model, config, image_size)
    ids = rows_of_text(BATCH, length, VOCABULARY)
    _record_open_clip(folder, model, pixels(BATCH, image_size, image_size), ids, False)


def open_clip_siglip(folder, *, image_size=20, length=9):
    """open_clip's SigLIP: the image tower is timm's."""
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP
    from timm.models import register_model
    from timm.models.vision_transformer import VisionTransformer

    def vit_tiny_patch5_siglip_20(pretrained=False, **kwargs):
        kwargs = {k: v for k, v in kwargs.items() if k in ("num_classes", "global_pool")}
        return VisionTransformer(
            img_size=image_size,
            patch_size=5,
            embed_dim=48,  # a multiple of the three heads that a tiny one has
            depth=2,
            num_heads=3,
            mlp_ratio=2.5,
            class_token=False,
            **({"global_pool": "map"} | kwargs),
        )

    vit_tiny_patch5_siglip_20.__module__ = "timm.models.vision_transformer"
    register_model(vit_tiny_patch5_siglip_20)
    torch.manual_seed(3)
    vision = {
        "image_size": image_size,
        "timm_model_name": "vit_tiny_patch5_siglip_20",
        "timm_model_pretrained": False,
        "timm_pool": "map",
        "timm_proj": "none",
    }
    text = {
        "context_length": length,
        "vocab_size": VOCABULARY,
        "width": 48,
        "heads": 4,
        "layers": 2,
    }
    text |= {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
    text |= {"norm_kwargs": {"eps": 1e-6}}
    config = {
        "embed_dim": 48,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": vision,
        "text_cfg": text,
    }
    model = CustomTextCLIP(
        embed_dim=48,
        vision_cfg=CLIPVisionCfg(**vision),
        text_cfg=CLIPTextCfg(**text),
        init_logit_bias=-10,
    )
    shake(model)
    _save_open_clip(folder, model, config, image_size)
    ids = np.random.default_rng(2).integers(0, VOCABULARY, (BATCH, length))
    _record_open_clip(folder, model, pixels(BATCH, image_size, image_size), ids, True)


# --- Pictures and texts -------------------------------------------------------------------------

SIZES = [(40, 31), (31, 40), (57, 20), (20, 20), (23, 90), (19, 64), (120, 77)]


def picture(width, height):
    """Soft shapes with some grain."""
    from PIL import Image

    rng = np.random.default_rng(width * 1000 + height)
    coarse = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
    soft = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 8, (height, width, 3))
    return np.clip(np.asarray(soft) + grain, 0, 255).astype(np.uint8)


def pictures(folder):
    """The values that each library's own preparation hands to its towers, before they are
    normalised: whole numbers."""
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    crop = {"height": 20, "width": 20}
    plain = {"do_rescale": False, "do_normalize": False}
    processors = {
        "clip": CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size=crop, **plain),
        "clip-share": CLIPImageProcessorPil(size={"shortest_edge": 25}, crop_size=crop, **plain),
        "siglip": SiglipImageProcessorPil(size=crop, **plain),
        "siglip-bilinear": SiglipImageProcessorPil(size=crop, resample=2, **plain),
    }
    out = {}
    for size in SIZES:
        values = picture(*size)
        name = f"{size[0]}x{size[1]}"
        out[f"picture/{name}"] = values
        image = Image.fromarray(values)
        for key, processor in processors.items():
            shown = np.asarray(processor(images=image, return_tensors="np").pixel_values[0])
            out[f"{key}/{name}"] = shown.transpose(1, 2, 0)
        for mode in ("shortest", "squash"):
            config = PreprocessCfg(size=20, resize_mode=mode, mean=(0.0,) * 3, std=(1.0,) * 3)
            shown = image_transform_v2(config, is_train=False)(image).numpy()
            out[f"open_clip-{mode}/{name}"] = np.rint(shown.transpose(1, 2, 0) * 255)
    folder.mkdir(exist_ok=True)
    np.savez(folder / "reference.npz", **out)


TEXTS = [
    "a photo of a cat",
    "  Two   DOGS, running!  ",
    "caf\u00e9 na\u00efve \u00bd",
    "don't stop: 3.14 & more_than #1 \u2014 \u201cquoted\u201d",
    "\u65e5\u672c\u8a9e\u306e\u732b \U0001f436 x",
    "<b>bold</b> &amp; <|endoftext|> after",
    "",
    "word " * 100,
]


def clip_tokens(folder):
    """CLIP's vocabulary as transformers saves it, and its ids."""
    import gzip

    import open_clip
    from transformers import CLIPTokenizer

    path = pathlib.Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    merges = lines[1 : 49152 - 256 - 2 + 1]
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in letters] + [chr(256 + i) for i in range(256 - len(letters))]
    pieces = [*letters, *(f"{c}</w>" for c in letters), *("".join(m.split()) for m in merges)]
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[tuple(m.split()) for m in merges],
        model_max_length=77,
    )
    tokenizer.save_pretrained(folder)
    options = {"padding": "max_length", "truncation": True, "max_length": 77}
    ids = tokenizer(TEXTS, return_tensors="np", **options).input_ids
    again = CLIPTokenizer.from_pretrained(folder)(TEXTS, return_tensors="np", **options).input_ids
    assert (ids == again).all()
    theirs = open_clip.tokenizer.SimpleTokenizer()(TEXTS).numpy()
    np.savez(folder / "reference.npz", ids=ids, open_clip=theirs)


def read_back(folder):
    """What the library makes of pictures and texts by an exported folder: `FOLDER.npz`."""
    import transformers
    from PIL import Image

    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    arrays = {f"picture/{i}": picture(*size) for i, size in enumerate(SIZES)}
    given = processor(images=[Image.fromarray(x) for x in arrays.values()], return_tensors="pt")
    if hasattr(model, "text_model"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = tokenizer(TEXTS, padding="max_length", truncation=True, return_tensors="pt").input_ids
        with torch.no_grad():
            out = model(input_ids=ids, **given)
        arrays |= {"ids": ids.numpy(), "image": out.image_embeds, "text": out.text_embeds}
    else:
        with torch.no_grad():
            out = model(**given)
        first = model.config.model_type == "vit"  # its class token
        arrays["image"] = out.last_hidden_state[:, 0] if first else out.pooler_output.flatten(1)
    np.savez(folder.with_suffix(".npz"), **arrays)


def read_back_open_clip(folder):
    """The same with open_clip."""
    import open_clip
    from PIL import Image

    model, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    ids = tokenizer(TEXTS)
    arrays = {f"picture/{i}": picture(*size) for i, size in enumerate(SIZES)}
    shown = torch.stack([prepare(Image.fromarray(x)) for x in arrays.values()])
    with torch.no_grad():
        x, y = model.encode_image(shown), model.encode_text(ids)
    np.savez(folder.with_suffix(".npz"), **arrays, ids=ids.numpy(), image=x, text=y)


CASES = {
    "pictures": pictures,
    "clip_tokens": clip_tokens,
    "clip": lambda f: clip(f),
    "clip-gelu": lambda f: clip(f, activation="gelu", image_size=33, patch=11, length=13, eps=1e-3),
    "clip-tanh": lambda f: clip(
        f, activation="gelu_pytorch_tanh", image_size=21, patch=7, width=64
    ),
    "clip-b32": clip_b32,
    "siglip": lambda f: siglip(f),
    "siglip-odd": lambda f: siglip(f, image_size=35, patch=7, length=5, heads=6, activation="gelu"),
    "siglip2": lambda f: siglip(f, image_size=35, patch=7, length=16, vocabulary=512),
    "naflex": lambda f: naflex(f),
    "naflex-texts": lambda f: naflex(f, length=16, vocabulary=512),
    "naflex-wide": lambda f: naflex(f, patch=3, grid=5, most=25),
    "vit": lambda f: vit(f),
    "vit-odd": lambda f: vit(f, image_size=33, patch=11, activation="gelu_pytorch_tanh"),
    "resnet": lambda f: resnet(f),
    "resnet-basic": lambda f: resnet(
        f, block="basic", image_size=45, downsample_in_first_stage=True
    ),
    "resnet-early": lambda f: resnet(f, downsample_in_bottleneck=True, image_size=50),
    "resnet-batch": lambda f: resnet(f, train=True),
    "convnext": lambda f: convnext(f),
    "convnext-odd": lambda f: convnext(
        f, image_size=46, activation="gelu_pytorch_tanh", layer_norm_eps=1e-5, patch_size=3
    ),
    "open_clip-resnet": lambda f: open_clip_resnet(f),
    "open_clip": lambda f: open_clip_vit(f),
    "open_clip-gelu": lambda f: open_clip_vit(f, quick=False, image_size=33, patch=11, length=7),
    "open_clip-text": lambda f: open_clip_vit(f, quick=False, custom=True),
    "open_clip-siglip": lambda f: open_clip_siglip(f),
}


def main(root, *names):
    if root in ("--read-back", "--read-back-open-clip"):
        read = read_back if root == "--read-back" else read_back_open_clip
        for name in names:
            read(pathlib.Path(name))
        return
    for name in [name for name in names if name != "--small"] or CASES:
        folder = pathlib.Path(root) / name
        folder.mkdir(parents=True, exist_ok=True)
        CASES[name](folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
