"""Names of classes and prompts for zero-shot classification, from the packages that carry them.

    python -m experiments.data.class_sets --output=contrastive/evaluation/class_sets

The output is committed; this is how it came about, and how it is brought up to date.

Licence: names and prompts of open_clip (MIT-style) and of CLIP_benchmark (MIT), which took them
from CLIP's repository (MIT); the file of licences beside the output has their notices.
"""

import ast
import json
import zipfile
from typing import Any

from contrastive.whole import whole_file
from experiments.data.packages import arguments, wheel

OPEN_CLIP = "open_clip_torch==3.3.0"
CLIP_BENCHMARK = "clip_benchmark==1.6.2"
# Ours: theirs. What asks for counts and distances is left out.
SETS = {
    "imagenet": "imagenet1k",
    "caltech101": "caltech101",
    "country211": "country211",
    "eurosat": "eurosat",
    "fer2013": "fer2013",
    "flowers": "flowers",
    "gtsrb": "gtsrb",
    "mnist": "mnist",
    "pcam": "pcam",
    "pets": "pets",
    "svhn": "svhn",
}
TEMPLATES = (
    "imagenet1k", "caltech101", "cars", "cifar10", "country211", "dtd", "eurosat", "fer2013",
    "fgvc_aircraft", "flowers", "food101", "gtsrb", "mnist", "pcam", "pets", "resisc45", "stl10",
    "sun397", "svhn", "voc2007",
)  # fmt: skip
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100 = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm"""
# What each number means is public knowledge of these sets; the names are their authors'.
BY_HAND = {
    "cifar10": (CIFAR10, "cifar10"),
    "cifar100": (CIFAR100, "cifar10"),
    "fashion_mnist": (
        "t-shirt_or_top trouser pullover dress coat sandal shirt sneaker bag ankle_boot",
        "cifar10",
    ),
}


def literals(archive: zipfile.ZipFile, name: str, wanted: set[str]) -> dict[str, Any]:
    """The lists that a module assigns to these names, wherever in it."""
    found = {}
    for node in ast.walk(ast.parse(archive.read(name))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0].id
            if target in wanted:
                found[target] = ast.literal_eval(node.value)
    return found


def main() -> None:
    options = arguments(__doc__, "contrastive/evaluation/class_sets")
    bench = wheel(CLIP_BENCHMARK, options.packages)
    folder = "clip_benchmark/datasets/"
    names = json.loads(bench.read(folder + "en_classnames.json"))
    templates = json.loads(bench.read(folder + "en_zeroshot_classification_templates.json"))
    variants = {"imagenet_a": "imagenet_a_wnids", "imagenet_r": "imagenet_r_wnids"}
    keys = literals(bench, folder + "builder.py", {"all_imagenet_wordnet_ids", *variants.values()})
    sets: dict[str, Any] = {
        ours: {"names": names[theirs], "templates": theirs} for ours, theirs in SETS.items()
    }
    sets["imagenet"]["keys"] = keys["all_imagenet_wordnet_ids"]
    for ours, theirs in variants.items():
        sets[ours] = {"of": "imagenet", "keys": sorted(keys[theirs])}
    for ours in ("imagenet_v2", "imagenet_sketch"):
        sets[ours] = {"of": "imagenet"}  # the same classes under the same numbers
    for ours, (text, prompts) in BY_HAND.items():
        words = [name.replace("_", " ") for name in text.split()]
        sets[ours] = {"names": words, "templates": prompts}
    prompts = {name: [x.replace("{c}", "{}") for x in templates[name]] for name in TEMPLATES}
    open_clip = wheel(OPEN_CLIP, options.packages).read("open_clip/zero_shot_metadata.py")
    found: dict[str, Any] = {}
    exec(open_clip, found)
    if list(found["IMAGENET_CLASSNAMES"]) != names["imagenet1k"]:
        raise SystemExit("open_clip and CLIP_benchmark call ImageNet's classes differently.")
    prompts["imagenet_simple"] = [make("{}") for make in found["SIMPLE_IMAGENET_TEMPLATES"]]
    with whole_file(options.output / "class_sets.json") as path:
        text = json.dumps({"templates": prompts, "sets": sets}, ensure_ascii=False, indent=0)
        path.write_text(text + "\n", encoding="utf-8")
    print(f"{options.output}: {len(sets)} sets of classes, {len(prompts)} of templates")


if __name__ == "__main__":
    main()
