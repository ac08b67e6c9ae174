"""torchvision is installed without its compiled operators; importing it needs their declarations,
which this module makes when it is imported. For the scripts beside it, in the second
environment."""

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
