"""A few hundred texts as people write them, for comparisons of token ids; imports nothing."""

_PLAIN = (
    "a photo of a cat",
    "A Photo Of A DOG, running!",
    "don't stop: 3.14 & more #1 \N{EM DASH} “quoted”",
    "snake_case_name and __dunder__ _ end_",
    "_leading, trailing_ a_b_c __ ___",
    "e-mail: someone@example.org (100% free?) $5.00 [x] {y} <z> |w| ~v~ ^u^ `t` =s=",
    "café naïve coöperate",
    "½ ² ™ ﬁne ＦＵＬＬ ① Å",
    "Straße ÄÖÜ ẞ",
    "ΟΔΟΣ Σίσυφος ΑΣ ΣΑΣ",
    "İstanbul ISPARTA ığdır",
    "кошка сидит на окне, ЁЖИК",
    "日本語の猫、「かわいい」。",
    "高興的貓!",
    "고양이가 자고 있다",
    "قطة صغيرة، جدا",
    "חתול קטן",
    "บ้านแมว",
    "नमस्ते बिल्ली",
    "🐶 dog 👨\u200d👩\u200d👧 family 🏳️\u200d🌈",
    "tab\tand\nnew\r\nline\vand\ffeed",
    "no\u00a0break\u2003em\u3000wide\u2028line",
    "zero\u200bwidth\ufeffmark soft\u00adhyphen",
    "control\x01chars\x1funit\x7f",
    "“‘curly’” – dash … ellipsis • bullet ‹angle› ¿que? ¡si!",
    "x",
    "!!!",
    "?",
    "1234567890 12,345.67 1e-5",
    "C++ C# .NET AT&T R&D 24/7",
    "▁ lower block▁inside",
    "http://example.org/a_b?c=d&e=f#g",
    "<b>bold</b> &amp; &quot;text&quot;",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)
MARKERS = ("a </s> b", "</s>", "<unk> cat", "<eos> dog", "x<pad>y", "<bos>z")
"""Texts that spell a marker of a vocabulary."""


def odd_texts() -> list[str]:
    """Each plain text also in capitals, with blanks and marks around it, underscored, and long."""
    found = ["", " ", "   \t\n "]
    for text in _PLAIN:
        found += [text, text.upper(), f"  {text} ", f"({text})...", text.replace(" ", "_")]
        found += [text.replace(" ", "   "), f"{text}. " * 30, f"Word {text}"]
    return found
