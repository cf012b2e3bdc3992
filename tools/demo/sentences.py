"""English sentences of different lengths on twelve subjects, three on each."""

from __future__ import annotations

SUBJECTS = {
    "sea": (
        "The fishing boats came back to the harbour before the storm reached the coast.",
        "Sailors hurried into port as the wind rose and the waves broke over the pier.",
        "A lighthouse keeper wrote down every ship that passed the cape that night.",
    ),
    "kitchen": (
        "Knead the dough for ten minutes, then let it rise until it has doubled in size.",
        "Good bread needs little more than flour, water, salt, yeast and patience.",
        "Melt the butter, stir in the flour, add milk and salt, and bake.",
    ),
    "stars": (
        "The telescope recorded the light of a galaxy thirteen billion years old.",
        "Astronomers measured how fast a distant star moves by the shift of its spectral lines.",
        "On a clear night away from the city you can see the Milky Way with the naked eye.",
    ),
    "music": (
        "The string quartet rehearsed the slow movement until the cello sang.",
        "The pianist practised the sonata every morning before the concert.",
        "The orchestra tuned its instruments while the audience took their seats in the hall.",
    ),
    "garden": (
        "Plant the tulip bulbs in autumn, a hand deep, and they will flower in spring.",
        "Prune the roses early.",
        "She watered the tomatoes and the roses in her garden every evening, and picked the slugs"
        " off the young lettuce by hand before they could eat it.",
    ),
    "railway": (
        "The night train to Vienna leaves from platform nine at a quarter past eight.",
        "Passengers waited for hours at the station because the train had broken down.",
        "The old steam locomotive pulled six carriages up the mountain railway.",
    ),
    "medicine": (
        "The doctor listened to the patient's lungs and prescribed an antibiotic.",
        "A vaccine trains the immune system to recognise a virus before an infection.",
        "Nurses on the hospital ward measured her fever and blood pressure every hour.",
    ),
    "court": (
        "The judge adjourned the hearing because a witness had not appeared.",
        "The lawyers agreed on a settlement before the case went to trial.",
        "The jury found the defendant not guilty on all three counts.",
    ),
    "weather": (
        "Heavy snow is expected in the north, with temperatures well below zero.",
        "The forecast promises sunshine until Thursday, then showers from the west.",
        "A warm front brought fog to the valleys and drizzle to the hills.",
    ),
    "football": (
        "The goalkeeper saved a penalty in the last minute and the match ended in a draw.",
        "The striker scored twice after half-time and sent her team to the cup final.",
        "The football supporters cheered when their team scored in the last minute of the match.",
    ),
    "computers": (
        "The compiler turns the loop into vector instructions for the processor.",
        "A race between two threads corrupted the program's memory once in a million runs.",
        "She traced the software bug to an integer that overflowed in the parser.",
    ),
    "history": (
        "The Romans built towns, walls and straight roads all over Europe, and many of them were"
        " still in use in the fifteenth century.",
        "The printing press spread new ideas through the cities of fifteenth-century Europe.",
        "Archaeologists uncovered a medieval town wall beneath the market square.",
    ),
}

SENTENCES = tuple(sentence for group in SUBJECTS.values() for sentence in group)
SUBJECT_OF = tuple(subject for subject, group in SUBJECTS.items() for _ in group)
