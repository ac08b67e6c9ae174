"""open_clip's own data pipeline, timed; runs in the second environment (`make parity`).

The other side of `experiments/benchmarks/loader.py`, which starts it as a process and talks to it
in lines of JSON. It imports nothing of this project. It needs the package webdataset.
"""

import glob
import io
import json
import os
import sys
import tarfile
import time

import torch

# torchvision is installed without its compiled operators; importing it needs these two declared.
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import open_clip  # noqa: E402
import webdataset as wds  # noqa: E402
from open_clip.transform import image_transform  # noqa: E402
from PIL import Image  # noqa: E402


def encoded(folder: str, count: int) -> list[bytes]:
    """The first pictures of the tars."""
    found: list[bytes] = []
    for path in sorted(glob.glob(f"{folder}/photos-*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    found.append(tar.extractfile(member).read())
                if len(found) == count:
                    return found
    return found


def transform_rate(transform, pictures: list[bytes]) -> float:
    """Pictures a second of processor time, one thread."""
    began = time.process_time()
    for data in pictures:
        transform(Image.open(io.BytesIO(data)))
    return len(pictures) / (time.process_time() - began)


def loader_rate(folder: str, transform, tokenizer, batch: int, batches: int) -> float:
    """Samples a second of wall time, two workers, from the second batch on."""
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(sorted(glob.glob(f"{folder}/photos-*.tar")) * 8),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(1000, initial=250),
        wds.decode("pilrgb"),
        wds.rename(image="jpg;png;jpeg;webp", text="txt"),
        wds.map_dict(image=transform, text=lambda text: tokenizer(text)[0]),
        wds.to_tuple("image", "text"),
        wds.batched(batch, partial=False),
    )
    loader = wds.WebLoader(pipeline, batch_size=None, shuffle=False, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    began = time.perf_counter()
    for _ in range(batches):
        next(iterator)
    return batch * batches / (time.perf_counter() - began)


def main() -> None:
    torch.set_num_threads(1)
    folder = sys.argv[1]
    transform = image_transform(224, is_train=True)
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    for line in sys.stdin:
        request = json.loads(line)
        if request["what"] == "transform":
            rate = transform_rate(transform, encoded(folder, request["count"]))
        else:
            os.setpriority(os.PRIO_PROCESS, 0, 10)  # as the threads of the other side
            rate = loader_rate(folder, transform, tokenizer, request["batch"], request["batches"])
        print(json.dumps({"rate": rate}), flush=True)


if __name__ == "__main__":
    main()
