"""A tf.data pipeline of the same pictures, timed; runs in an environment of its own.

    python -m venv .venv-tf && .venv-tf/bin/pip install tensorflow-cpu

Another side of `experiments/benchmarks/loader.py`, which starts it as a process and talks to it in
lines of JSON. It imports nothing of this project. The pictures are copied to TFRecords, tf.data's
own format; captions are carried along and not tokenised.
"""

import glob
import json
import os
import sys
import tarfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # pyright: ignore[reportMissingImports]

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def transform(data):
    """Random part of (0.9, 1.0), 224 pixels, bicubic with antialias, normalised."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(data),
        tf.zeros((1, 0, 4)),
        area_range=(0.9, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
    image = tf.image.resize(image, (224, 224), method="bicubic", antialias=True)
    image = tf.clip_by_value(image, 0.0, 255.0) / 255.0
    return (image - MEAN) / STD


def encoded(path: str) -> list[tuple[bytes, bytes]]:
    """Pictures and captions of a tar."""
    with tarfile.open(path) as tar:
        data = [tar.extractfile(member).read() for member in tar]
    return list(zip(data[::2], data[1::2], strict=True))


def write_records(folder: str) -> list[str]:
    """The tars as TFRecords."""
    paths = []
    for path in sorted(glob.glob(f"{folder}/photos-*.tar")):
        paths.append(path.removesuffix(".tar") + ".tfrecord")
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for picture, caption in encoded(path):
                values = {"image": picture, "text": caption}
                feature = {
                    name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
                    for name, value in values.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return paths


def transform_rate(paths: list[str], count: int) -> float:
    """Pictures a second of processor time."""
    pictures = list(tf.data.TFRecordDataset(paths).map(_parse).take(count).as_numpy_iterator())
    one = tf.function(transform, input_signature=[tf.TensorSpec((), tf.string)])
    one(pictures[0]["image"])
    began = time.process_time()
    for picture in pictures:
        one(picture["image"])
    return len(pictures) / (time.process_time() - began)


def loader_rate(paths: list[str], batch: int, batches: int) -> float:
    """Samples a second of wall time, two threads, from the second batch on."""
    dataset = tf.data.TFRecordDataset(paths).repeat().shuffle(1000).map(_parse)
    dataset = dataset.map(
        lambda row: (transform(row["image"]), row["text"]), num_parallel_calls=2, deterministic=True
    )
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    iterator = dataset.batch(batch).prefetch(2).with_options(options).as_numpy_iterator()
    next(iterator)
    began = time.perf_counter()
    for _ in range(batches):
        next(iterator)
    return batch * batches / (time.perf_counter() - began)


def _parse(record):
    strings = {name: tf.io.FixedLenFeature((), tf.string) for name in ("image", "text")}
    return tf.io.parse_single_example(record, strings)


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    paths = write_records(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        if request["what"] == "transform":
            rate = transform_rate(paths, request["count"])
        else:
            os.setpriority(os.PRIO_PROCESS, 0, 10)  # as the threads of the other side
            rate = loader_rate(paths, request["batch"], request["batches"])
        print(json.dumps({"rate": rate}), flush=True)


if __name__ == "__main__":
    main()
