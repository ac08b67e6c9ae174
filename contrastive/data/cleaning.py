"""The forms that published models put a text into before it is cut into tokens.

The same form is applied in training, evaluation and use, because it belongs to the tokenizer.
"""

import html
import string

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def clip_form(text: str) -> str:
    """CLIP's: repaired by ftfy (text that was decoded wrongly, curly quotes, ligatures, letters of
    double width, composed accents, control characters), HTML entities resolved (twice), single
    spaces, lower case."""
    import ftfy  # the other presets do without

    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split()).lower()


def canonical_form(text: str) -> str:
    """SigLIP's: ASCII punctuation removed (an underscore becomes a space), lower case, single
    spaces."""
    return " ".join(text.replace("_", " ").translate(_NO_PUNCTUATION).lower().split())


def lower_form(text: str) -> str:
    """SigLIP 2's: lower case."""
    return text.strip().lower()
