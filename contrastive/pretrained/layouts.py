"""The layouts that many libraries share, as einops patterns from our axes to theirs, and the tables
of a transformer's blocks that are made of them.

Our letters: i inputs, o outputs of a product; w width, t the three of query, key and value, h
heads, k entries of a head; p q rows and columns of a patch, c colours.
"""

from collections.abc import Mapping

from contrastive.pretrained.mapping import Rule

LINEAR = "i o -> o i"  # PyTorch's Linear
QKV = "w t h k -> t (h k) w"  # three Linears
QKV_BIAS = "t h k -> t (h k)"
FUSED = "w t h k -> (t h k) w"  # one Linear, or nn.MultiheadAttention
FUSED_BIAS = "t h k -> (t h k)"
OUT = "h k w -> w (h k)"
PATCH = "(p q c) w -> w c p q"  # PyTorch's convolution
ROW = "1 w -> w"
ROW_3D = "1 w -> 1 1 w"
ONE = "-> 1"  # a number as a list of one


def linear(ours: str, theirs: str, *, bias: bool = True) -> list[Rule]:
    """A Linear of PyTorch: ``theirs.weight [out, in]`` and ``theirs.bias``."""
    rules = [Rule(f"{ours}/kernel", f"{theirs}.weight", LINEAR)]
    return [*rules, Rule(f"{ours}/bias", f"{theirs}.bias")] if bias else rules


def norm(ours: str, theirs: str, *, bias: bool = True, first_block: int = 0) -> list[Rule]:
    """A LayerNorm of PyTorch; where one without a bias is missing in the blocks before
    ``first_block``, ones."""
    rules = [Rule(f"{ours}/scale", f"{theirs}.weight", first_block=first_block)]
    return [*rules, Rule(f"{ours}/bias", f"{theirs}.bias")] if bias else rules


def patches(ours: str, theirs: str, size: int, *, bias: bool) -> list[Rule]:
    """The convolution that makes patches to rows."""
    sizes = {"p": size, "q": size, "c": 3}
    rules = [Rule(f"{ours}/kernel", f"{theirs}.weight", PATCH, sizes)]
    return [*rules, Rule(f"{ours}/bias", f"{theirs}.bias")] if bias else rules


def attention(ours: str, theirs: Mapping[str, str], *, bias: bool = True) -> list[Rule]:
    """Attention, either with ``q``, ``k``, ``v`` as Linears or with ``qkv`` in one; and ``out``.

    The values of ``theirs`` are names of Linears; for nn.MultiheadAttention ``qkv`` is
    ``….in_proj_`` (its parameters are ``in_proj_weight``, not ``in_proj.weight``).
    """
    if "qkv" in theirs:
        name = theirs["qkv"]
        dot = "" if name.endswith("_") else "."
        rules = [
            Rule(f"{ours}/qkv", f"{name}{dot}weight", FUSED),
            Rule(f"{ours}/qkv_bias", f"{name}{dot}bias", FUSED_BIAS),
        ]
    else:
        each = [theirs[letter] for letter in "qkv"]
        rules = [
            Rule(f"{ours}/qkv", tuple(f"{name}.weight" for name in each), QKV),
            Rule(f"{ours}/qkv_bias", tuple(f"{name}.bias" for name in each), QKV_BIAS),
        ]
    out = theirs["out"]
    rules += [Rule(f"{ours}/out", f"{out}.weight", OUT), Rule(f"{ours}/out_bias", f"{out}.bias")]
    return rules if bias else [rule for rule in rules if not str(rule.ours).endswith("_bias")]


def split_attention(ours: str, query: str, key_value: str, out: str) -> list[Rule]:
    """Attention with a Linear for queries and one for keys and values."""
    return [
        Rule(f"{ours}/qkv", (f"{query}.weight", f"{key_value}.weight"), FUSED, parts=(1, 2)),
        Rule(f"{ours}/qkv_bias", (f"{query}.bias", f"{key_value}.bias"), FUSED_BIAS, parts=(1, 2)),
        Rule(f"{ours}/out", f"{out}.weight", OUT),
        Rule(f"{ours}/out_bias", f"{out}.bias"),
    ]


def blocks(ours: str, theirs: str, names: Mapping[str, str]) -> list[Rule]:
    """Pre-norm blocks.

    Args:
      ours: Path of the stacked blocks.
      theirs: Name of a block, with ``{}`` for its number and a dot at the end.
      names: ``norm1, norm2, up, down, out`` and ``qkv`` or ``q, k, v``, inside a block.
    """
    full = {key: theirs + name for key, name in names.items()}
    return [
        *norm(f"{ours}/norm1", full["norm1"]),
        *attention(f"{ours}/attention", full),
        *norm(f"{ours}/norm2", full["norm2"]),
        *linear(f"{ours}/mlp/up", full["up"]),
        *linear(f"{ours}/mlp/down", full["down"]),
    ]
