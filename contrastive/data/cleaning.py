"""The forms that published models put a text into before it is cut into tokens.

The same form is applied in training, evaluation and use, because it belongs to the tokenizer.
CLIP's own code also runs ftfy, which repairs text that was decoded wrongly; that is not done here.
"""

import html
import string
import unicodedata

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def clip_form(text: str) -> str:
    """CLIP's: HTML entities resolved (twice), composed, single spaces, lower case."""
    text = html.unescape(html.unescape(text))
    return " ".join(unicodedata.normalize("NFC", text).split()).lower()


def canonical_form(text: str) -> str:
    """SigLIP's: ASCII punctuation removed (an underscore becomes a space), lower case, single
    spaces."""
    return " ".join(text.replace("_", " ").translate(_NO_PUNCTUATION).lower().split())


def lower_form(text: str) -> str:
    """SigLIP 2's: lower case."""
    return text.strip().lower()
