"""Which emoji are the same thing: the base concept that the train / held-out split keeps whole.

A random split of the concepts leaks: *woman pilot* is drawn like *man pilot*, and an orange heart
like a yellow one. So concepts are joined into bases by three rules, and a base is never cut:

1. a whole Unicode subgroup whose members are one drawing with a changing detail (``SUBGROUPS``);
2. families listed by hand (``FAMILIES``): one picture in several colours, phases, directions,
   degrees or counts, an animal and its face, a thing and the same thing with an addition;
3. people: what is left of the name without the words for man, woman, person and direction.

Anything else is its own base. ``base_of`` raises for a family member that does not exist, so that
a new Unicode version cannot silently drop one.
"""

import re
from collections.abc import Iterable

SUBGROUPS = {
    "country-flag": "flag",
    "subdivision-flag": "flag",
    "flag": "flag",
    "family": "family",
    "cat-face": "cat",
    "keycap": "keycap",
    "zodiac": "zodiac sign",
    "geometric": "shape",
    "arrow": "arrow",
    "punctuation": "punctuation",
    "person": "person",
}

# base: members, separated by ";". A trailing * stands for any ending, a leading * for any start.
FAMILIES = {
    # faces
    "smiling face": "grinning face*; beaming face*; grinning squinting face;"
    "face with tears of joy; rolling on the floor laughing; slightly smiling face;"
    "upside-down face; melting face;"
    "smiling face; smiling face with smiling eyes; smiling face with halo; smiling face with tear;"
    "smiling face with hearts; smiling face with heart-eyes; smiling face with open hands;"
    "star-struck; relieved face; winking face; smirking face; face blowing a kiss; kissing face*",
    "face with tongue": "*face with tongue; face savoring food; zany face",
    "shaking face": "shaking face; head shaking *",
    "frowning face": "slightly frowning face; frowning face; worried face; confused face;"
    "face with diagonal mouth; disappointed face; pensive face; pleading face;"
    "face holding back tears; neutral face; expressionless face; face without mouth;"
    "dotted line face; unamused face; face with rolling eyes; face with raised eyebrow;"
    "face with open mouth; hushed face; astonished face; anguished face;"
    "frowning face with open mouth; fearful face; anxious face with sweat; flushed face;"
    "face screaming in fear; face with hand over mouth; face with open eyes and hand over mouth",
    "crying face": "crying face; loudly crying face; sad but relieved face; sleepy face",
    "weary face": "weary face; tired face; confounded face; persevering face; yawning face;"
    "downcast face with sweat",
    "angry face": "enraged face; angry face; face with symbols on mouth; face with steam from nose",
    "face with horns": "smiling face with horns; angry face with horns",
    "vomiting face": "nauseated face; face vomiting",
    "dizzy face": "woozy face; face with crossed-out eyes; face with spiral eyes;"
    "hot face; cold face",
    "face in glasses": "smiling face with sunglasses; nerd face; disguised face",
    "skull": "skull; skull and crossbones",
    "Japanese mask": "ogre; goblin",
    # signs of emotion, hands, body
    "heart": "heart with arrow; heart with ribbon; sparkling heart; growing heart; beating heart;"
    "revolving hearts; two hearts; heart decoration; heart exclamation; broken heart;"
    "heart on fire; mending heart; heart suit; spade suit; diamond suit; club suit;"
    "red heart; pink heart; orange heart; yellow heart; green heart; blue heart; light blue heart;"
    "purple heart; brown heart; black heart; grey heart; white heart",
    "speech bubble": "speech balloon; eye in speech bubble; left speech bubble;"
    "right anger bubble; thought balloon",
    "open hand": "waving hand; raised back of hand; hand with fingers splayed; raised hand;"
    "vulcan salute",
    "sideways hand": "rightwards hand; leftwards hand; palm down hand; palm up hand;"
    "leftwards pushing hand; rightwards pushing hand",
    "pointing finger": "backhand index pointing *; index pointing up",
    "thumb": "thumbs up; thumbs down",
    "fist": "raised fist; oncoming fist; left-facing fist; right-facing fist",
    "pinching hand": "pinched fingers; pinching hand",
    "crossed fingers": "victory hand; crossed fingers; hand with index finger and thumb crossed",
    "horns hand": "love-you gesture; sign of the horns",
    "open palms": "open hands; palms up together",
    "leg": "leg; foot",
    "ear": "ear; ear with hearing aid",
    "eye": "eye; eyes",
    "mouth": "mouth; biting lip; kiss mark",
    "family": "family; family:*; people hugging",
    "bust": "bust in silhouette; busts in silhouette",
    # people whose names rule 3 does not join
    "person": "baby angel",
    "royalty": "person with crown; prince; princess",
    "Claus": "Santa Claus; Mrs. Claus; Mx Claus",
    "pregnancy": "pregnant *",
    "feeding baby": "breast-feeding; * feeding baby",
    "deaf person": "deaf *",
    "merperson": "merperson; merman; mermaid",
    "frowning or pouting": "* frowning; * pouting",
    "person, facing right": "* walking*; * running*; * standing; * kneeling*; * with white cane*;"
    "white cane; * in motorized wheelchair*; * in manual wheelchair*; manual wheelchair;"
    "motorized wheelchair",
    "gesturing": "* gesturing *",
    "getting hair or massage": "* getting *",
    "worker": "*health worker; *office worker",
    "biking": "* biking",
    "skiing": "skier; snowboarder",
    # animals
    "monkey": "see-no-evil monkey; hear-no-evil monkey; speak-no-evil monkey; monkey face; monkey",
    "ape": "gorilla; orangutan",
    "dog": "dog face; dog; guide dog; service dog; poodle",
    "cat": "cat face; cat; black cat",
    "big cat": "tiger face; tiger; leopard",
    "horse": "horse face; horse; unicorn; zebra; donkey; horse racing; carousel horse",
    "cow": "cow face; ox; water buffalo; cow",
    "pig": "pig face; pig; boar; pig nose",
    "sheep": "ram; ewe; goat",
    "camel": "camel; two-hump camel",
    "elephant": "elephant; mammoth",
    "mouse": "mouse face; mouse; rat",
    "rabbit": "rabbit face; rabbit",
    "bear": "bear; polar bear",
    "chicken": "chicken; rooster",
    "chick": "hatching chick; baby chick; front-facing baby chick",
    "bird": "bird; black bird",
    "waterfowl": "duck; goose; swan",
    "dragon": "dragon face; dragon",
    "whale": "spouting whale; whale",
    "dolphin": "dolphin; orca",
    "fish": "fish; tropical fish",
    "beetle": "beetle; lady beetle",
    # plants and food
    "rose": "rose; wilted flower",
    "blossom": "blossom; hibiscus; cherry blossom; white flower",
    "tree": "evergreen tree; deciduous tree; leafless tree; Christmas tree",
    "clover": "shamrock; four leaf clover",
    "leaves": "maple leaf; fallen leaf; leaf fluttering in wind",
    "nest": "empty nest; nest with eggs",
    "mushroom": "mushroom; brown mushroom",
    "apple": "red apple; green apple",
    "citrus": "tangerine; lemon; lime",
    "pepper": "hot pepper; bell pepper",
    "flatbread": "flatbread; stuffed flatbread",
    "frying pan": "cooking; shallow pan of food",
    "bowl of rice": "cooked rice; curry rice",
    "ice cream": "soft ice cream; ice cream",
    "cake": "birthday cake; shortcake",
    "beer": "beer mug; clinking beer mugs",
    "wine": "wine glass; clinking glasses; cocktail glass",
    "glass": "glass of milk; tumbler glass",
    "cutlery": "fork and knife with plate; fork and knife",
    # places, transport, sky
    "globe": "globe showing *; globe with meridians",
    "mountain": "snow-capped mountain; mountain; mount fuji",
    "tent": "camping; tent",
    "house": "houses; derelict house; house; house with garden",
    "post office": "Japanese post office; post office",
    "hotel": "hotel; love hotel",
    "church": "church; wedding",
    "cityscape": "night with stars; cityscape; cityscape at dusk; sunset",
    "sunrise": "sunrise over mountains; sunrise",
    "train": "railway car; high-speed train; bullet train; train; metro; light rail; station; tram;"
    "monorail; mountain railway; tram car",
    "bus": "bus; oncoming bus; trolleybus; minibus",
    "car": "automobile; oncoming automobile; sport utility vehicle; police car;"
    "oncoming police car; taxi; oncoming taxi",
    "lorry": "delivery truck; articulated lorry",
    "motor bike": "motorcycle; motor scooter",
    "traffic light": "horizontal traffic light; vertical traffic light",
    "motor boat": "speedboat; motor boat",
    "ship": "passenger ship; ferry; ship",
    "airplane": "airplane; small airplane; airplane departure; airplane arrival",
    "cable car": "suspension railway; mountain cableway; aerial tramway",
    "hourglass": "hourglass done; hourglass not done",
    "clock face": "*o’clock; *-thirty",
    "moon": "new moon; waxing crescent moon; first quarter moon; waxing gibbous moon; full moon;"
    "waning gibbous moon; last quarter moon; waning crescent moon; crescent moon; new moon face;"
    "first quarter moon face; last quarter moon face; full moon face",
    "sun": "sun; sun with face",
    "star": "star; glowing star",
    "shooting star": "shooting star; comet",
    "cloud": "cloud; cloud with *; sun behind *",
    "umbrella": "closed umbrella; umbrella; umbrella with rain drops; umbrella on ground;"
    "beach with umbrella",
    "snowman": "snowman; snowman without snow",
    "droplet": "droplet; drop of blood",
    # activities
    "medal": "military medal; sports medal; 1st place medal; 2nd place medal; 3rd place medal",
    "baseball": "baseball; softball",
    "rugby": "american football; rugby football",
    "ticket": "admission tickets; ticket",
    "fireworks": "fireworks; sparkler",
    # objects
    "glasses": "glasses; sunglasses",
    "helmet": "military helmet; rescue worker’s helmet",
    "speaker": "muted speaker; speaker *",
    "megaphone": "loudspeaker; megaphone",
    "bell": "bell; bell with slash",
    "musical note": "musical note; musical notes",
    "mobile phone": "mobile phone; mobile phone with arrow; vibration mode; mobile phone off",
    "telephone": "telephone; telephone receiver",
    "battery": "battery; low battery",
    "disc": "optical disk; dvd",
    "camera": "camera; camera with flash; video camera; movie camera; film projector",
    "magnifying glass": "magnifying glass *",
    "book": "closed book; green book; blue book; orange book",
    "notebook": "notebook; notebook with decorative cover",
    "page": "page with curl; page facing up",
    "newspaper": "newspaper; rolled-up newspaper",
    "banknote": "* banknote",
    "envelope": "envelope; e-mail; incoming envelope; envelope with arrow; love letter",
    "tray": "outbox tray; inbox tray",
    "mailbox": "*mailbox with *",
    "pen": "pen; fountain pen; black nib",
    "pencil": "pencil; memo",
    "folder": "file folder; open file folder",
    "calendar": "calendar; tear-off calendar; spiral calendar; spiral notepad",
    "chart": "chart increasing; chart decreasing; chart increasing with yen",
    "pin": "pushpin; round pushpin",
    "paperclip": "paperclip; linked paperclips",
    "ruler": "straight ruler; triangular ruler",
    "padlock": "locked; unlocked; locked with pen; locked with key",
    "key": "key; old key",
    "hammer": "hammer; pick; hammer and pick; hammer and wrench",
    "blade": "dagger; crossed swords; kitchen knife",
    "chain": "link; broken chain; chains",
    # symbols
    "toilet sign": "men’s room; women’s room; restroom; water closet",
    "luggage sign": "baggage claim; left luggage",
    "officer sign": "passport control; customs",
    "prohibition sign": "no entry; prohibited; no bicycles; no smoking; no littering;"
    "non-potable water; no pedestrians; no mobile phones; no one under eighteen",
    "six-pointed star": "star of David; dotted six-pointed star",
    "cross": "latin cross; orthodox cross",
    "media button": "shuffle tracks button; repeat button; repeat single button; play button;"
    "fast-forward button; next track button; play or pause button; reverse button;"
    "fast reverse button; last track button; upwards button; fast up button; downwards button;"
    "fast down button; pause button; stop button; record button; eject button",
    "brightness": "dim button; bright button",
    "signal": "antenna bars; wireless",
    "gender sign": "female sign; male sign; transgender symbol",
    "maths sign": "multiply; plus; minus; divide; heavy equals sign",
    "check or cross": "check mark button; check box with check; check mark; cross mark;"
    "cross mark button",
    "shape": "hollow red circle",
    "loop": "curly loop; double curly loop",
    "star tile": "eight-spoked asterisk; eight-pointed star; sparkle",
    "mark in a circle": "copyright; registered; trade mark",
    "Japanese button": "Japanese “*",
    "word button": "A button*; AB button*; B button*; O button*; CL button; COOL button;"
    "FREE button; information; ID button; circled M; NEW button; NG button; OK button; P button;"
    "SOS button; UP! button; VS button",
    "input button": "input *",
}

PERSON_GROUPS = ("person-gesture", "person-role", "person-fantasy", "person-activity",
                 "person-sport", "person-resting")  # fmt: skip
_PERSON = re.compile(
    r"^(?:(?:man|woman|person|men|women|people)\b\s*)(?:in |with )?|: facing right$"
)


def _matches(pattern: str, names: Iterable[str]) -> list[str]:
    expression = re.escape(pattern).replace(r"\*", ".*")
    return [name for name in names if re.fullmatch(expression, name)]


def bases(concepts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The base of every concept.

    Args:
        concepts: (name, subgroup) pairs; names are unique.

    Returns:
        {name: base}.

    Raises:
        ValueError: a family names something that is not there, or two families claim one concept.
    """
    subgroup_of = dict(concepts)
    base: dict[str, str] = {}
    for family, members in FAMILIES.items():
        for pattern in filter(None, (member.strip() for member in members.split(";"))):
            found = _matches(pattern, subgroup_of)
            if not found:
                raise ValueError(f"family {family!r}: no concept is called {pattern!r}")
            for name in found:
                if base.setdefault(name, family) != family:
                    raise ValueError(f"{name!r} is in the families {base[name]!r} and {family!r}")
    for name, subgroup in subgroup_of.items():
        if name in base:
            continue
        if subgroup in SUBGROUPS:
            base[name] = SUBGROUPS[subgroup]
        elif subgroup in PERSON_GROUPS:
            base[name] = _PERSON.sub("", _PERSON.sub("", name)).strip()
        else:
            base[name] = name
    return base
