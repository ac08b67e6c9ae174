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
    return " ".join(_repaired(text).split()).lower()


def _repaired(text: str) -> str:
    if text.isascii() and text.isprintable() and "&" not in text:
        return text  # there is nothing to repair, which takes longer to find out than all the rest
    import ftfy  # most presets do without

    return html.unescape(html.unescape(ftfy.fix_text(text)))


def canonical_form(text: str) -> str:
    """SigLIP's: ASCII punctuation removed (an underscore becomes a space), lower case, single
    spaces."""
    return " ".join(text.replace("_", " ").translate(_NO_PUNCTUATION).lower().split())


def open_clip_form(text: str) -> str:
    """SigLIP's in open_clip: repaired as CLIP's, then as :func:`canonical_form`."""
    return canonical_form(_repaired(text))


def unpunctuated_form(text: str) -> str:
    """SigLIP's in transformers: lower case first (which tells how a Greek sigma ends a word), then
    ASCII punctuation removed, an underscore too, single spaces."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def lower_form(text: str) -> str:
    """SigLIP 2's: each character in lower case (so a Greek sigma at the end of a word is one like
    all others, as in transformers); blanks stay."""
    return "".join(map(str.lower, text))
