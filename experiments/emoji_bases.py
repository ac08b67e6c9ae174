"""Which emoji are the same thing: the base concept that the train / held-out split keeps whole.

A random split of the concepts leaks: *woman pilot* is drawn like *man pilot*, and an orange heart
like a yellow one. So concepts are joined into bases by three rules, and a base is never cut:

1. a whole Unicode subgroup whose members are one drawing with a changing detail (``SUBGROUPS``);
2. families listed by hand (``FAMILIES``): one picture in several colours, phases, directions,
   degrees or counts, an animal and its face, a thing and the same thing with a small addition.
   Different things of one kind (a tram and a bus, two moods of a face) are different bases;
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
    "keycap": "keycap",
    "zodiac": "zodiac sign",
    "arrow": "arrow",
    "punctuation": "punctuation",
    "person": "person",
}

# base: members, separated by ";". A trailing * stands for any ending, a leading * for any start.
FAMILIES = {
    "shaking face": "shaking face; head shaking *",
    "face with horns": "smiling face with horns; angry face with horns",
    "speech bubble": "speech balloon; eye in speech bubble; left speech bubble; "
    "right anger bubble; "
    "thought balloon",
    "sideways hand": "rightwards hand; leftwards hand; palm down hand; palm up hand; leftwards "
    "pushing "
    "hand; rightwards pushing hand",
    "pointing finger": "backhand index pointing *; index pointing up",
    "thumb": "thumbs up; thumbs down",
    "fist": "raised fist; oncoming fist; left-facing fist; right-facing fist",
    "ear": "ear; ear with hearing aid",
    "eye": "eye; eyes",
    "bust": "bust in silhouette; busts in silhouette",
    "person": "baby angel",
    "Claus": "Santa Claus; Mrs. Claus; Mx Claus",
    "pregnancy": "pregnant *",
    "feeding baby": "breast-feeding; * feeding baby",
    "deaf person": "deaf *",
    "merperson": "merperson; merman; mermaid",
    "frowning or pouting": "* frowning; * pouting",
    "camel": "camel; two-hump camel",
    "rabbit": "rabbit face; rabbit",
    "bear": "bear; polar bear",
    "chick": "hatching chick; baby chick; front-facing baby chick",
    "bird": "bird; black bird",
    "dragon": "dragon face; dragon",
    "fish": "fish; tropical fish",
    "rose": "rose; wilted flower",
    "clover": "shamrock; four leaf clover",
    "leaves": "maple leaf; fallen leaf; leaf fluttering in wind",
    "nest": "empty nest; nest with eggs",
    "mushroom": "mushroom; brown mushroom",
    "apple": "red apple; green apple",
    "ice cream": "soft ice cream; ice cream",
    "beer": "beer mug; clinking beer mugs",
    "globe": "globe showing *; globe with meridians",
    "post office": "Japanese post office; post office",
    "hotel": "hotel; love hotel",
    "sunrise": "sunrise over mountains; sunrise",
    "lorry": "delivery truck; articulated lorry",
    "traffic light": "horizontal traffic light; vertical traffic light",
    "airplane": "airplane; small airplane; airplane departure; airplane arrival",
    "hourglass": "hourglass done; hourglass not done",
    "clock face": "*o’clock; *-thirty",
    "moon": "new moon; waxing crescent moon; first quarter moon; waxing gibbous moon; full "
    "moon; waning gibbous moon; last quarter moon; waning crescent moon; crescent "
    "moon; new moon face; first quarter moon face; last quarter moon face; full moon "
    "face",
    "sun": "sun; sun with face",
    "star": "star; glowing star",
    "snowman": "snowman; snowman without snow",
    "medal": "military medal; sports medal; 1st place medal; 2nd place medal; 3rd place medal",
    "ticket": "admission tickets; ticket",
    "glasses": "glasses; sunglasses",
    "speaker": "muted speaker; speaker *",
    "bell": "bell; bell with slash",
    "musical note": "musical note; musical notes",
    "mobile phone": "mobile phone; mobile phone with arrow; vibration mode; mobile phone off",
    "battery": "battery; low battery",
    "disc": "optical disk; dvd",
    "magnifying glass": "magnifying glass *",
    "book": "closed book; green book; blue book; orange book",
    "notebook": "notebook; notebook with decorative cover",
    "page": "page with curl; page facing up",
    "newspaper": "newspaper; rolled-up newspaper",
    "banknote": "* banknote",
    "tray": "outbox tray; inbox tray",
    "mailbox": "*mailbox with *",
    "folder": "file folder; open file folder",
    "chart": "chart increasing; chart decreasing; chart increasing with yen",
    "pin": "pushpin; round pushpin",
    "paperclip": "paperclip; linked paperclips",
    "ruler": "straight ruler; triangular ruler",
    "padlock": "locked; unlocked; locked with pen; locked with key",
    "key": "key; old key",
    "toilet sign": "men’s room; women’s room; restroom; water closet",
    "media button": "shuffle tracks button; repeat button; repeat single button; play button; fast-"
    "forward button; next track button; play or pause button; reverse button; fast "
    "reverse button; last track button; upwards button; fast up button; downwards "
    "button; fast down button; pause button; stop button; record button; eject button",
    "brightness": "dim button; bright button",
    "maths sign": "multiply; plus; minus; divide; heavy equals sign",
    "check or cross": "check mark button; check box with check; check mark; cross mark; cross mark "
    "button",
    "mark in a circle": "copyright; registered; trade mark",
    "Japanese button": "Japanese “*",
    "word button": "A button*; AB button*; B button*; O button*; CL button; COOL button; FREE "
    "button; information; ID button; circled M; NEW button; NG button; OK button; P "
    "button; SOS button; UP! button; VS button",
    "input button": "input *",
    "grinning face": "grinning face*; beaming face*; grinning squinting face",
    "smiling face": "smiling face; smiling face with smiling eyes; slightly smiling face; relieved "
    "face",
    "kissing face": "kissing face*",
    "frowning face": "frowning face; slightly frowning face",
    "angry face": "enraged face; angry face",
    "heart": "red heart; pink heart; orange heart; yellow heart; green heart; blue heart; "
    "light blue heart; purple heart; brown heart; black heart; grey heart; white "
    "heart",
    "raised hand": "raised back of hand; raised hand; hand with fingers splayed",
    "family": "family; family:*",
    "monkey": "monkey face; monkey",
    "dog": "dog face; dog",
    "cat": "cat face; cat; black cat",
    "tiger": "tiger face; tiger",
    "horse": "horse face; horse",
    "cow": "cow face; cow",
    "pig": "pig face; pig",
    "mouse": "mouse face; mouse",
    "whale": "spouting whale; whale",
    "house": "house; house with garden",
    "cloud with rain": "cloud with *; sun behind rain cloud",
    "cloud": "sun behind small cloud; sun behind cloud; sun behind large cloud",
    "umbrella": "closed umbrella; umbrella; umbrella with rain drops; umbrella on ground",
    "car": "automobile; oncoming automobile",
    "police car": "police car; oncoming police car",
    "taxi": "taxi; oncoming taxi",
    "bus": "bus; oncoming bus",
    "bullet train": "high-speed train; bullet train",
    "tram": "tram; tram car",
    "train": "train; metro",
    "camera": "camera; camera with flash",
    "envelope": "incoming envelope; envelope with arrow",
    "calendar": "calendar; tear-off calendar",
    "cityscape": "cityscape; cityscape at dusk",
    "loop": "curly loop; double curly loop",
    "hammer and pick": "hammer and pick; hammer and wrench",
    "tree": "evergreen tree; Christmas tree",
    "crossed hands": "victory hand; crossed fingers",
    "circle": "* circle",
    "square": "* square*; * square button",
    "diamond": "* diamond",
    "triangle": "red triangle pointed *",
    "cat with smile": "grinning cat; grinning cat with smiling eyes; cat with wry smile",
    "motorized or manual wheelchair": "manual wheelchair; motorized wheelchair",
    "bowl of rice": "cooked rice; curry rice",
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
