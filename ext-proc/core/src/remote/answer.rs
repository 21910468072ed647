//! What a server that makes prompts has answered. Nothing of it is believed that is not checked: it comes over a network.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{Failure, Form};
use crate::{
    prompts::{Medium, Prompt},
    request::Api,
};

/// Most token ids of a prompt.
const MOST_IDS: usize = 4_000_000;

/// Most prompts of a request; as many as vLLM takes of a completion.
const MOST_PROMPTS: usize = 1_024;

/// Most media of a prompt.
const MOST_MEDIA: usize = 4_096;

/// Longest identifier of a medium, in bytes. A client may name one as it likes.
const MOST_IDENTIFIER: usize = 1_024;

/// Characters of a refusal that are kept for the log.
const MOST_MESSAGE: usize = 200;

/// How the answer to a question is to be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reading {
    /// The route that was asked.
    pub form: Form,
    /// The API of the request.
    pub api: Api,
    /// How many prompts it has.
    pub prompts: usize,
    /// Whether media are among its tokens.
    pub has_media: bool,
}

/// What an answer's status means.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The body holds the prompts.
    Read,
    /// The server does not have the route that was asked.
    Absent,
}

impl Reading {
    /// Judges the status of an answer; `body` is needed, or a beginning of it, where the status is none of success.
    ///
    /// # Errors
    /// What speaks against the request or the server.
    pub fn judge(&self, status: u16, body: &[u8]) -> Result<Verdict, Failure> {
        match status {
            200 => Ok(Verdict::Read),
            404 if says_not_found(body) => Err(Failure::UnknownModel),
            404 | 405 | 501 => Ok(Verdict::Absent),
            401 | 403 => Err(Failure::Denied(status)),
            408 | 429 => Err(Failure::Overloaded),
            400..=499 if self.form == Form::Render && !matches!(self.api, Api::Embeddings | Api::Pooling) => {
                Err(Failure::Refused { status, message: beginning(body) })
            }
            // The engine may take what this route does not.
            400..=499 => Err(Failure::Inexact("the route that was asked in place of another one refuses it")),
            _ => Err(Failure::Down(format!("status {status}"))),
        }
    }

    /// The prompts that the body of a good answer holds.
    ///
    /// # Errors
    /// [`Failure::BadAnswer`] where it is not understood, [`Failure::Inexact`] where it does not tell all.
    pub fn prompts(&self, body: &[u8]) -> Result<Vec<Prompt>, Failure> {
        let bad = |error: &dyn fmt::Display| Failure::BadAnswer(error.to_string());
        let is_list = body.trim_ascii_start().first() == Some(&b'[');
        let rendered: Vec<Rendered> = match (self.form, self.api, is_list) {
            (Form::Tokenize, ..) => {
                let Tokenized { tokens } = serde_json::from_slice(body).map_err(|it| bad(&it))?;
                if self.api == Api::ChatCompletions && tokens.0.first() == Some(&HARMONY_START) {
                    return Err(Failure::Inexact(
                        "/tokenize does not write chats in the Harmony format as engines do",
                    ));
                }
                vec![Rendered { token_ids: tokens, features: None }]
            }
            (Form::Render, Api::ChatCompletions, true) => {
                let Conversation(_, list) = serde_json::from_slice(body).map_err(|it| bad(&it))?;
                list.0
            }
            (Form::Render, Api::Completions | Api::Embeddings | Api::Pooling, _) => {
                serde_json::from_slice::<Bounded<Rendered, MOST_PROMPTS>>(body).map_err(|it| bad(&it))?.0
            }
            (Form::Render, Api::ChatCompletions | Api::Responses | Api::Messages, _) => {
                vec![serde_json::from_slice(body).map_err(|it| bad(&it))?]
            }
        };
        if rendered.len() != self.prompts {
            return Err(bad(&format_args!("{} prompts instead of {}", rendered.len(), self.prompts)));
        }
        let prompts = rendered.into_iter().map(Rendered::prompt).collect::<Result<Vec<_>, _>>();
        let prompts = prompts.map_err(|it| bad(&it))?;
        if self.has_media && prompts.iter().all(|it| it.media.is_empty()) {
            return Err(Failure::Inexact("the answer tells nothing of the media"));
        }
        Ok(prompts)
    }
}

/// The token that every Harmony prompt begins with (`<|start|>` of o200k_harmony).
const HARMONY_START: u32 = 200_006;

/// Until 0.17 a chat is answered with its messages and the engine's prompts.
#[derive(Deserialize)]
struct Conversation(IgnoredAny, Bounded<Rendered, MOST_PROMPTS>);

/// A prompt: since 0.18 of the request that an engine would be sent, before that one of the engine itself.
#[derive(Deserialize)]
struct Rendered {
    #[serde(alias = "prompt_token_ids")]
    token_ids: Bounded<u32, MOST_IDS>,
    features: Option<Features>,
}

#[derive(Deserialize)]
struct Tokenized {
    tokens: Bounded<u32, MOST_IDS>,
}

/// The media of a prompt, by modality.
#[derive(Deserialize)]
struct Features {
    mm_hashes: Entries<String>,
    mm_placeholders: Entries<Place>,
}

/// A range of tokens. Which of them are embeddings of the medium does not enter a block's hash.
#[derive(Clone, Copy, Deserialize)]
struct Place {
    offset: u32,
    length: u32,
}

impl Rendered {
    fn prompt(self) -> Result<Prompt, &'static str> {
        let ids = self.token_ids.0;
        if ids.is_empty() {
            return Err("a prompt has no token");
        }
        let media = self.features.map_or_else(|| Ok(Vec::new()), |it| it.media(ids.len()))?;
        Ok(Prompt { ids, media, is_cut: false })
    }
}

impl Features {
    /// All media, in the order of their first tokens. Of those that begin together the modality named first is first,
    /// as in vLLM (`multimodal/utils.py`).
    fn media(self, tokens: usize) -> Result<Vec<Medium>, &'static str> {
        let Self { mm_hashes, mut mm_placeholders } = self;
        let mut media = Vec::new();
        for (modality, hashes) in mm_hashes.0 {
            let at = mm_placeholders.0.iter().position(|(it, _)| *it == modality);
            let places = at.map_or_else(Vec::new, |at| mm_placeholders.0.remove(at).1.0);
            if hashes.0.len() != places.len() {
                return Err("media have another number of hashes than of places");
            }
            for (identifier, place) in hashes.0.into_iter().zip(places) {
                let (offset, length) = (place.offset as usize, place.length as usize);
                if tokens < offset.saturating_add(length) {
                    return Err("a medium lies outside of its prompt");
                }
                if MOST_IDENTIFIER < identifier.len() {
                    return Err("the identifier of a medium is too long");
                }
                media.push(Medium { identifier, offset, length });
            }
        }
        if mm_placeholders.0.iter().any(|(_, places)| !places.0.is_empty()) {
            return Err("media have a place and no hash");
        }
        if MOST_MEDIA < media.len() {
            return Err("too many media");
        }
        media.sort_by_key(|it| it.offset);
        Ok(media)
    }
}

/// A list of at most `N` items; a longer one is an error before it is read to its end.
struct Bounded<T, const N: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Bounded<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const N: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Items<T, N> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {N} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    if list.len() == N {
                        return Err(A::Error::invalid_length(N + 1, &self));
                    }
                    list.push(item);
                }
                Ok(list)
            }
        }

        deserializer.deserialize_seq(Items::<T, N>(PhantomData)).map(Self)
    }
}

/// A list by name, in the order given.
struct Entries<T>(Vec<(String, Bounded<T, MOST_MEDIA>)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Modalities that there may be; vLLM knows of three.
        const MOST: usize = 64;
        struct Map<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
            type Value = Vec<(String, Bounded<T, MOST_MEDIA>)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {MOST} lists")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries: Self::Value = Vec::new();
                while let Some((name, list)) = map.next_entry::<String, _>()? {
                    if entries.len() == MOST || entries.iter().any(|(it, _)| *it == name) {
                        return Err(A::Error::custom("too many modalities, or one of them twice"));
                    }
                    entries.push((name, list));
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(Map(PhantomData)).map(Self)
    }
}

/// What an error says, in either of vLLM's forms.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Complaint {
    error: Option<Said>,
    #[serde(rename = "type")]
    kind: Option<String>,
    message: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    #[serde(rename = "type")]
    kind: Option<String>,
    message: Option<String>,
}

fn complaint(body: &[u8]) -> Said {
    let it: Complaint = serde_json::from_slice(body).unwrap_or_default();
    it.error.unwrap_or(Said { kind: it.kind, message: it.message })
}

/// Whether an error is about a model that is not served, and not about a path that is not.
fn says_not_found(body: &[u8]) -> bool {
    complaint(body).kind.as_deref() == Some("NotFoundError")
}

fn beginning(body: &[u8]) -> String {
    let said = complaint(body).message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    said.chars().take(MOST_MESSAGE).collect()
}
