"""Texts that exported models are checked on, from empty to longer than a model reads."""

from __future__ import annotations

_SENTENCES = (
    "Hello.",
    "Is it raining?",
    "The cat sleeps on the warm stone wall.",
    "A man in a red jacket is climbing the steep side of a snowy mountain.",
    "Two children are building a castle of sand while their mother reads a book.",
    "She said that the meeting had been moved to Thursday afternoon at half past three.",
    "Prices rose by 3.2 % in March, more than most economists had expected.",
    "How do I reset my password if I no longer have access to that e-mail address?",
    "The function returns None when the key is missing, and raises an error in strict mode.",
    "Water boils at a lower temperature in the mountains, because the air pressure is lower there.",
    "After a long debate, parliament rejected the bill by a narrow majority of four votes.",
    "I would not recommend this hotel: the room was dirty and the staff were rude to everyone.",
    "An orchestra is playing on stage in front of a large audience.",
    "The first bridge across the river was finished in 1894 and replaced sixty years later.",
    "Nobody has been able to explain why the birds left the island so early that year.",
    "Cut the onions into thin slices and fry them gently in butter until they are golden.",
    "A black dog runs through the shallow water with a stick in its mouth.",
    "The treaty was signed in Paris, but it was never ratified by either government.",
    "Most of the students passed the examination; three of them have to repeat it in June.",
    "Light from the nearest star takes more than four years to reach us.",
    "Please send the parcel to our new office, not to the old address in Berlin.",
    "Their goalkeeper saved two penalties in the last ten minutes of the match.",
    "The patient was given a lower dose because of a mild reaction to the first injection.",
    "Café owners in Zürich and Kraków complained about the naïve new rules.",
)


def check_texts(max_length: int) -> list[str]:
    """Return texts from empty to longer than the model reads."""
    joined = [" ".join(_SENTENCES[i : i + 3]) for i in range(len(_SENTENCES))]
    lead = [sentence.split(", ")[0].rstrip(".?!").lower() for sentence in _SENTENCES]
    everything = " ".join(_SENTENCES)
    # Twice as many words as the model reads tokens, so the text is certainly cut.
    words = everything.split() * (1 + 2 * min(max_length, 1024) // len(everything.split()))
    return ["", *_SENTENCES, *lead, *joined, everything, " ".join(words)]
