//! Chats with media: the prompt up to the first of them.
//!
//! Only the engine can count a medium's tokens, but what stands before it is text. With parts, the text that a template
//! makes is known as a whole, and vLLM then replaces the tokens that stand in it for media. With one string, vLLM puts
//! a text of the model's own into the message, so that nothing of that message is known.

use std::collections::BTreeSet;

use super::{
    CHAT, Kind as ChatKind, Prompt, PromptError, Prompter,
    build::{given, object, text, text_of},
    flag, media_field,
    messages::{Form, Media},
    pooling,
    render::Sheet,
    responses,
    truncation::Limit,
};
use crate::request::{
    Api, Request, is_media,
    json::{Json, Object},
};

/// What vLLM tells apart of media.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Image,
    Audio,
    Video,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Image, Self::Audio, Self::Video];

    /// Keys of parts, which are types of parts as well, in the order in which vLLM looks for them.
    const KEYS: [(&str, Self); 9] = [
        ("image_url", Self::Image),
        ("image_pil", Self::Image),
        ("image_embeds", Self::Image),
        ("audio_embeds", Self::Audio),
        ("video_embeds", Self::Video),
        ("audio_url", Self::Audio),
        ("input_audio", Self::Audio),
        ("video_url", Self::Video),
        ("input_image", Self::Image),
    ];

    /// Of a part that is a medium; `None` where it takes the place of tokens with vectors of its own, which change the
    /// names of all blocks, or is of a type that vLLM refuses.
    pub(super) fn of(part: &Object) -> Option<Self> {
        if part.contains_key("prompt_embeds") {
            return None;
        }
        let of_type = text_of(part, "type").filter(|_| given(part, "uuid").is_none());
        let found = match of_type {
            Some(kind) => Self::KEYS.iter().find(|(key, _)| *key == kind),
            None => Self::KEYS.iter().find(|(key, _)| part.contains_key(*key)),
        };
        found.map(|(_, kind)| *kind)
    }

    /// What a template finds as the part's type.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
        }
    }
}

/// A text that stands for a medium where the model's own one is not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandIn {
    pub(super) text: &'static str,
    /// Whether it is where the medium was (`--interleave-mm-strings`), and not in front of the message's texts.
    pub(super) is_inline: bool,
}

impl StandIn {
    /// The content of a message with so many `media` and that text.
    pub(super) fn before(self, media: usize, text: String) -> String {
        let mut lines = vec![self.text.to_owned(); media];
        if !text.is_empty() {
            lines.push(text);
        }
        lines.join("\n")
    }
}

/// Texts that begin with different letters, none of which a template looks for.
const WORDS: [&str; 2] = ["Zq", "7w"];

const STAND_INS: [StandIn; 3] = [
    StandIn { text: WORDS[0], is_inline: false },
    StandIn { text: WORDS[1], is_inline: false },
    StandIn { text: WORDS[0], is_inline: true },
];

impl Prompter {
    /// The prompts of a request with media: those that have some end before the first.
    pub(super) fn cut_prompts(&self, request: &Request) -> Result<Vec<Prompt>, PromptError> {
        let body = request.body();
        let refused = || PromptError::Media(media_field(request).into());
        if self.family.moves_media() || Limit::is_asked(request) || has_sound_in_video(body) {
            return Err(refused());
        }
        let cut = |body: &Object, kind| match self.cut_chat(body, kind) {
            Ok(prompt) if prompt.ids.is_empty() => Err(refused()),
            other => other,
        };
        match request.api {
            Api::ChatCompletions => Ok(vec![cut(body, CHAT)?]),
            Api::Messages => Ok(vec![self.messages(body, |chat| cut(&chat, CHAT))?]),
            Api::Responses => {
                let kind = ChatKind { calls_as_given: true, ..CHAT };
                Ok(vec![cut(&responses::to_chat(body)?, kind)?])
            }
            Api::Embeddings | Api::Pooling => match pooling::inputs(body)? {
                pooling::Inputs::Chats(chats) => {
                    let kind = ChatKind { has_defaults: false, ..CHAT };
                    chats.iter().map(|chat| cut(chat, kind)).collect()
                }
                pooling::Inputs::Prompts(_) => Err(refused()),
            },
            Api::Completions => Err(refused()),
        }
    }

    fn cut_chat(&self, body: &Object, kind: ChatKind) -> Result<Prompt, PromptError> {
        let sheet = Sheet::new(self, body, kind)?;
        let adds = flag(body, "add_special_tokens", false)?;
        if !sheet.given.iter().any(has_media) {
            let ids = self.encode(&sheet.print(sheet.messages(Media::Refused)?)?, adds)?;
            return Ok(ids.into());
        }
        let ids = match sheet.template.form() {
            Form::Parts => self.before_part(&sheet, adds)?,
            Form::Text => self.before_content(&sheet, adds)?,
        };
        Ok(Prompt { ids, media: Vec::new(), is_cut: true })
    }

    /// The ids before the content of the first message with a medium.
    fn before_content(&self, sheet: &Sheet<'_>, adds: bool) -> Result<Vec<u32>, PromptError> {
        let print = |it| sheet.print(sheet.messages(Media::Kept(it))?);
        let texts = STAND_INS.into_iter().map(print).collect::<Result<Vec<_>, _>>()?;
        let end = common(&texts[0], &texts[1..]);
        self.settled_twice(&texts[0][..end], &[], adds)
    }

    /// The ids before the first part that is a medium.
    fn before_part(&self, sheet: &Sheet<'_>, adds: bool) -> Result<Vec<u32>, PromptError> {
        let messages = sheet.messages(Media::Kept(STAND_INS[0]))?;
        let whole = sheet.print(messages.clone())?;
        let marks = Marks::new(self, sheet)?;
        let end = end_of_text(sheet, &messages, &whole, &marks)?;
        let (head, rest) = whole.split_at(end);
        let own = first_medium(&messages).and_then(|kind| marks.of(kind));
        let mut ids = match own {
            // The engine looks for a token, and finds it where it is.
            Some(own) if !own.ids.is_empty() => match marks.plain().filter_map(|it| head.find(it)).min() {
                Some(_) => self.settled_twice(head, &marks.texts(), adds)?,
                None => self.before_token(&whole, head, rest, adds)?,
            },
            _ => self.settled_twice(head, &marks.texts(), adds)?,
        };
        // Who types what stands for a medium has it there, in place of where it was meant to be.
        if let Some(typed) = ids.iter().position(|id| marks.has(*id)) {
            ids.truncate(typed);
        }
        // Where runs of line feeds are tokens, as Gemma has them, the engine joins those on both sides of a picture's
        // beginning.
        while self.tokenizer.has_line_feeds()
            && ids.last().is_some_and(|id| self.tokenizer.decode(&[*id]).trim_matches('\n').is_empty())
        {
            ids.pop();
        }
        Ok(ids)
    }

    /// The ids of `head` at the beginning of `whole`, all of them if `rest` begins with a token that cuts any text.
    fn before_token(&self, whole: &str, head: &str, rest: &str, adds: bool) -> Result<Vec<u32>, PromptError> {
        let next = self.tokenizer.cut_at_start(rest);
        if let Some(next) = next {
            let (all, ids) = (self.tokenizer.open(whole, adds)?, self.tokenizer.open(head, adds)?);
            if all.starts_with(&ids) && all.get(ids.len()) == Some(&next) {
                return Ok(ids);
            }
        }
        self.tokenizer.settled(head, adds)
    }

    /// The ids of `text` that stand whatever follows, up to what may be taken for a medium, such as `marks`. Where what
    /// stands for a medium is no token, vLLM may put the tokens' text together, and encode it again.
    fn settled_twice(&self, text: &str, marks: &[&str], adds: bool) -> Result<Vec<u32>, PromptError> {
        let typed = marks.iter().filter_map(|mark| text.find(mark)).chain(mark_at(text)).min();
        let ids = self.tokenizer.settled(&text[..typed.unwrap_or(text.len())], adds)?;
        let again = self.tokenizer.encode(&self.tokenizer.decode(&ids), false)?;
        Ok(if again == ids { ids } else { Vec::new() })
    }
}

/// Where the first medium stands in the text `whole` of `messages`, or what depends on it.
fn end_of_text(
    sheet: &Sheet<'_>,
    messages: &[Json],
    whole: &str,
    marks: &Marks,
) -> Result<usize, PromptError> {
    let print = |it| sheet.print(it);
    let replaced = WORDS.map(|word| print(with_words(messages, word)));
    let [a, b] = replaced;
    let without_media = common(whole, &[a?, b?]);
    // A template may say other things from the beginning where there is a medium at all. If a word put before the first
    // one stands just where that begins, that is its place.
    let [Ok(a), Ok(b)] = WORDS.map(|word| print(with_word_before(messages, word))) else {
        return Ok(without_media);
    };
    let with_media = common(whole, &[a, b]);
    let mark = first_medium(messages).and_then(|kind| marks.of(kind));
    let is_there = |mark: &Mark| {
        whole[with_media..].trim_start().starts_with(&mark.text) && !whole[..with_media].contains(&mark.text)
    };
    Ok(if mark.is_some_and(is_there) { with_media.max(without_media) } else { without_media })
}

/// What a template prints for a medium.
struct Mark {
    kind: Kind,
    text: String,
    /// The added tokens in it.
    ids: BTreeSet<u32>,
}

struct Marks(Vec<Mark>);

impl Marks {
    /// Finds out by printing a medium of each kind between two words.
    fn new(prompter: &Prompter, sheet: &Sheet<'_>) -> Result<Self, PromptError> {
        let mut marks = Vec::new();
        for kind in Kind::ALL {
            let word = |it| Json::Object(object([("type", text("text")), ("text", text(it))]));
            let medium = Json::Object(object([("type", text(kind.name()))]));
            let content = Json::Array(vec![word("Zq1"), medium, word("7w2")]);
            let message = Json::Object(object([("role", text("user")), ("content", content)]));
            let Ok(printed) = sheet.print_new(vec![message]) else { continue };
            let between = printed.rsplit_once("Zq1").and_then(|(_, rest)| rest.split_once("7w2"));
            let Some(mark) = between.map(|(mark, _)| mark.trim()).filter(|mark| !mark.is_empty()) else {
                continue;
            };
            let ids = prompter.tokenizer.added_among(&prompter.tokenizer.encode(mark, false)?);
            marks.push(Mark { kind, text: mark.to_owned(), ids });
        }
        Ok(Self(marks))
    }

    fn of(&self, kind: Kind) -> Option<&Mark> {
        self.0.iter().find(|it| it.kind == kind)
    }

    fn has(&self, id: u32) -> bool {
        self.0.iter().any(|it| it.ids.contains(&id))
    }

    fn texts(&self) -> Vec<&str> {
        self.0.iter().map(|it| it.text.as_str()).collect()
    }

    /// Those that are no tokens.
    fn plain(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|it| it.ids.is_empty()).map(|it| it.text.as_str())
    }
}

/// Whether the engine is to take the sound out of videos, for which some models' prompts are made anew.
fn has_sound_in_video(body: &Object) -> bool {
    let kwargs = body.get("mm_processor_kwargs").and_then(Json::as_object);
    kwargs.is_some_and(|it| given(it, "use_audio_in_video").is_some_and(|it| *it != Json::Bool(false)))
}

/// Whether a message as a client sends it carries a medium.
fn has_media(message: &Json) -> bool {
    let content = message.as_object().and_then(|it| it.get("content")?.as_array());
    content.into_iter().flatten().filter_map(Json::as_object).any(is_media)
}

/// The kind of a part as a template sees it, if that is a medium.
fn kind_of(part: &Json) -> Option<Kind> {
    let kind = text_of(part.as_object()?, "type")?;
    Kind::ALL.into_iter().find(|it| it.name() == kind)
}

fn parts_of(message: &mut Json) -> Option<&mut Vec<Json>> {
    match message {
        Json::Object(message) => match message.get_mut("content") {
            Some(Json::Array(parts)) => Some(parts),
            _ => None,
        },
        _ => None,
    }
}

fn first_medium(messages: &[Json]) -> Option<Kind> {
    let contents = messages.iter().filter_map(|it| it.as_object()?.get("content")?.as_array());
    contents.flatten().find_map(kind_of)
}

fn word_part(word: &str) -> Json {
    Json::Object(object([("type", text("text")), ("text", text(word))]))
}

/// The same with a word in place of each medium.
fn with_words(messages: &[Json], word: &str) -> Vec<Json> {
    let mut messages = messages.to_vec();
    for part in messages.iter_mut().filter_map(parts_of).flatten() {
        if kind_of(part).is_some() {
            *part = word_part(word);
        }
    }
    messages
}

/// The same with a word before the first medium.
fn with_word_before(messages: &[Json], word: &str) -> Vec<Json> {
    let mut messages = messages.to_vec();
    for parts in messages.iter_mut().filter_map(parts_of) {
        if let Some(at) = parts.iter().position(|part| kind_of(part).is_some()) {
            parts.insert(at, word_part(word));
            break;
        }
    }
    messages
}

/// How far `text` is the same as all `others`.
fn common(text: &str, others: &[String]) -> usize {
    let same = |other: &String| text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let mut end = others.iter().map(same).min().unwrap_or(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// Where in `text` a word in brackets begins that some model may take for a medium. Their names are many, all of them
/// speak of what they stand for.
fn mark_at(text: &str) -> Option<usize> {
    const LONGEST: usize = 48;
    const SPEAKING: [&str; 11] =
        ["image", "img", "video", "audio", "vision", "media", "unused", "patch", "pad", "speech", "embed"];
    let opening = text.match_indices(['<', '[']);
    opening.map(|(at, _)| at).find(|at| {
        let inside = &text[at + 1..];
        let end = inside.bytes().take(LONGEST).position(|it| matches!(it, b'>' | b']'));
        let Some(inside) = end.map(|end| &inside[..end]) else { return false };
        let is_word = !inside.contains(char::is_whitespace);
        let inside = inside.to_lowercase();
        is_word && SPEAKING.iter().any(|it| inside.contains(it))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_may_stand_for_media_are_seen() {
        for mark in [
            "<image>",
            "<|image_1|>",
            "(<video>./</video>)",
            "<IMG_CONTEXT>",
            "[unused19]",
            "<|AUDIO|>",
            "<im_patch>",
        ] {
            assert_eq!(
                mark_at(&format!("é a > b <x> {mark}")),
                Some(13 + usize::from(mark.starts_with('('))),
                "{mark}"
            );
        }
        for text in ["", "an image", "<im", "<think>", "<video src='a'>", "[a] image <b>", "<|im_start|"] {
            assert_eq!(mark_at(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_common_ends_between_letters() {
        assert_eq!(common("aé", &["aè".to_owned()]), 1);
        assert_eq!(common("ab", &["abc".to_owned(), "ab".to_owned()]), 2);
    }
}
