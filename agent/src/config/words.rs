//! Fields whose values are words of their own.

use kvpick_agent_core::{engine::TIER_WEIGHTS, mirror::Copies};
use kvpick_proto::words::Tier;
use serde::{Deserialize, Serialize};

/// See [`super::EngineEntry::copies`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct CopiesWord(pub(super) String);

impl Default for CopiesWord {
    fn default() -> Self {
        Self("guarded".to_owned())
    }
}

impl CopiesWord {
    pub(super) fn meaning(&self) -> Option<Copies> {
        match self.0.as_str() {
            "guarded" => Some(Copies::Guarded),
            "set" => Some(Copies::Set),
            _ => None,
        }
    }
}

/// See [`super::EngineEntry::tier_weights`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TierWeights {
    /// In the engine's own memory.
    pub gpu: f32,
    /// In the host's memory, whence a block is copied faster than it is computed.
    pub cpu: f32,
    /// On a disk or behind a network, whence it is not much faster.
    pub storage: f32,
}

impl Default for TierWeights {
    fn default() -> Self {
        let of = |tier| TIER_WEIGHTS.iter().find(|it| it.0 == tier).map_or(0.0, |it| it.1);
        Self { gpu: of(Tier::Gpu), cpu: of(Tier::Cpu), storage: of(Tier::Storage) }
    }
}

/// `on` or `off`, or what YAML 1.1 makes of these words.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(from = "Word", into = "&'static str")]
pub enum Switch {
    /// Yes.
    #[default]
    On,
    /// No.
    Off,
    /// Neither word; reported with the other mistakes.
    Unknown,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Bool(bool),
    Text(String),
}

impl From<Word> for Switch {
    fn from(word: Word) -> Self {
        match word {
            Word::Bool(true) => Self::On,
            Word::Bool(false) => Self::Off,
            Word::Text(text) if text == "on" => Self::On,
            Word::Text(text) if text == "off" => Self::Off,
            Word::Text(_) => Self::Unknown,
        }
    }
}

impl From<Switch> for &'static str {
    fn from(it: Switch) -> Self {
        match it {
            Switch::On => "on",
            Switch::Off => "off",
            Switch::Unknown => "unknown",
        }
    }
}
