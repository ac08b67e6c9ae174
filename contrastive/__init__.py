"""contrastive: pretrain embedding models on pairs.

The public surface is small and stable:

* :mod:`contrastive.losses` and :mod:`contrastive.logits`: losses over a partitioned logit matrix.
* :mod:`contrastive.temperature`: the learned log-scale and its clip hook.
* :func:`contrastive.normalize`: unit rows in float32, safe at zero.
* :func:`contrastive.load`: a trained model that encodes images and text.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrastive.geometry import normalize
    from contrastive.loading import load

__all__ = ["load", "normalize"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Resolves the public names on first use, so that importing one layer does not import all."""
    if name == "normalize":
        from contrastive.geometry import normalize

        return normalize
    if name == "load":
        from contrastive.loading import load

        return load
    raise AttributeError(f"module 'contrastive' has no attribute {name!r}")
