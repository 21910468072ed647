//! The words that all text here is made of: questions, system prompts, and what engines answer.
//!
//! They are short and common, so that most tokenizers have one token for each with a space before it. An answer made
//! of such tokens is tokenized into the same ids again when a client sends it back as history.

use crate::seeded::Seeded;

/// Words in lower case, ASCII, each once.
pub const WORDS: &[&str] = &[
    "able", "about", "above", "across", "action", "active", "add", "after", "again", "age", "air", "all",
    "also", "always", "amount", "animal", "answer", "any", "apple", "area", "arm", "army", "art", "ask",
    "away", "baby", "back", "bad", "ball", "bank", "bar", "base", "bed", "before", "began", "behind", "best",
    "better", "big", "bird", "black", "blood", "blue", "board", "boat", "body", "book", "both", "bottom",
    "box", "boy", "bread", "bridge", "bring", "broken", "brother", "brown", "build", "bus", "business",
    "buy", "call", "came", "camp", "capital", "car", "card", "care", "carry", "case", "cat", "cause", "cell",
    "center", "chair", "chance", "change", "child", "city", "class", "clean", "clear", "climb", "clock",
    "close", "cloud", "coast", "cold", "color", "common", "company", "complete", "cook", "cool", "copy",
    "corner", "cost", "cotton", "count", "country", "course", "cover", "cross", "cry", "cup", "current",
    "cut", "dance", "dark", "day", "deal", "deep", "desert", "design", "doctor", "dog", "door", "double",
    "down", "draw", "dream", "dress", "drink", "drive", "dry", "during", "early", "earth", "east", "easy",
    "eat", "edge", "effect", "egg", "electric", "end", "energy", "engine", "enough", "equal", "evening",
    "event", "every", "exact", "example", "eye", "face", "fact", "fair", "family", "famous", "farm", "fast",
    "father", "feet", "field", "fight", "figure", "final", "find", "fine", "finger", "fire", "first", "fish",
    "floor", "flow", "flower", "food", "foot", "force", "forest", "form", "forward", "free", "fresh",
    "friend", "front", "fruit", "full", "game", "garden", "gas", "girl", "glass", "gold", "good", "grand",
    "grass", "great", "green", "ground", "group", "grow", "guess", "guide", "hair", "half", "hand", "happy",
    "hard", "hat", "head", "hear", "heart", "heat", "heavy", "help", "high", "hill", "history", "hole",
    "home", "horse", "hot", "hour", "house", "human", "hundred", "hunt", "ice", "idea", "industry", "inside",
    "iron", "island", "job", "join", "jump", "key", "kind", "king", "kitchen", "know", "lady", "lake",
    "land", "language", "large", "last", "late", "laugh", "law", "lead", "learn", "leave", "left", "leg",
    "letter", "level", "lie", "life", "light", "line", "list", "listen", "little", "live", "long", "loud",
    "love", "low", "machine", "made", "main", "make", "many", "map", "mark", "market", "master", "match",
    "matter", "measure", "meat", "meet", "metal", "middle", "mile", "milk", "million", "mind", "minute",
    "mix", "modern", "money", "month", "moon", "morning", "mother", "mountain", "mouth", "move", "much",
    "music", "name", "nation", "natural", "nature", "near", "neck", "never", "new", "next", "night", "noise",
    "north", "nose", "note", "number", "object", "ocean", "offer", "office", "oil", "old", "open", "orange",
    "order", "other", "outside", "own", "page", "paint", "pair", "paper", "parent", "part", "party", "past",
    "path", "pay", "people", "perfect", "period", "person", "phone", "phrase", "picture", "piece", "place",
    "plain", "plan", "plane", "plant", "play", "point", "poor", "port", "position", "power", "press",
    "pretty", "price", "print", "problem", "product", "public", "pull", "push", "question", "quick", "quiet",
    "race", "radio", "rain", "range", "reach", "read", "ready", "real", "reason", "record", "red", "region",
    "rest", "result", "rich", "ride", "right", "ring", "rise", "river", "road", "rock", "roll", "room",
    "root", "rope", "round", "row", "rule", "run", "safe", "sail", "salt", "same", "sand", "scale", "school",
    "science", "sea", "season", "seat", "second", "seed", "sell", "send", "sense", "serve", "settle",
    "shape", "share", "sharp", "ship", "shoe", "shop", "shore", "short", "shoulder", "show", "side", "sign",
    "silver", "simple", "sing", "sister", "size", "skin", "sky", "sleep", "slow", "small", "smile", "snow",
    "soft", "soil", "solid", "son", "song", "sound", "south", "space", "speak", "special", "speed", "spring",
    "square", "stand", "star", "start", "state", "station", "steel", "step", "stick", "still", "stone",
    "store", "story", "strange", "stream", "street", "strong", "student", "study", "sugar", "summer", "sun",
    "supply", "surface", "swim", "symbol", "system", "table", "tail", "tall", "teach", "team", "test",
    "thick", "thin", "third", "thought", "thousand", "time", "tiny", "tool", "top", "total", "touch", "town",
    "track", "trade", "train", "travel", "tree", "triangle", "trip", "truck", "true", "try", "turn", "type",
    "under", "unit", "use", "valley", "value", "view", "village", "visit", "voice", "walk", "wall", "war",
    "warm", "wash", "watch", "water", "wave", "way", "weather", "week", "weight", "west", "wheel", "white",
    "whole", "wide", "wild", "wind", "window", "winter", "wish", "woman", "wonder", "wood", "word", "work",
    "world", "write", "wrong", "yard", "year", "yellow", "young",
];

/// `count` words with spaces between them: about as many tokens, as tokenizers go.
#[must_use]
pub fn text(seeded: &mut Seeded, count: usize) -> String {
    let mut text = String::with_capacity(count * 6);
    for i in 0..count {
        if i != 0 {
            text.push(' ');
        }
        text.push_str(WORDS[seeded.below(WORDS.len())]);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_plain_and_differ() {
        assert!(WORDS.iter().all(|word| word.bytes().all(|b| b.is_ascii_lowercase())));
        assert_eq!(WORDS.iter().collect::<BTreeSet<_>>().len(), WORDS.len());
    }

    #[test]
    fn text_has_as_many_words_as_asked() {
        let text = text(&mut Seeded::new(&[1]), 20);
        assert_eq!(text.split(' ').count(), 20);
    }
}
