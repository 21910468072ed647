//! What differs between the versions of vLLM that are imitated, apart from the layout of events ([`super::wire`]).

use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, ExtraKeyShape};

use super::{attention::Group, pool::Reuse, wire::Encoding};

/// A version of vLLM. Later ones compare as greater.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd, clap::ValueEnum)]
pub enum Version {
    /// 0.11.2: old and new names of metrics, no names of adapters in events.
    #[value(name = "0.11")]
    V0_11,
    /// 0.16.0: the first routes that render.
    #[value(name = "0.16")]
    V0_16,
    /// 0.23.0: the last one whose events are arrays.
    #[value(name = "0.23")]
    V0_23,
    /// 0.24.0: the first one whose events are maps.
    #[value(name = "0.24")]
    V0_24,
    /// 0.32.0: says where it publishes events, tags what it hashes besides tokens.
    #[default]
    #[value(name = "0.32")]
    V0_32,
}

/// How the render routes answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RenderForm {
    /// Not at all.
    Absent,
    /// A list of the conversation and the engine's prompts (0.15 to 0.17).
    Prompts,
    /// The request that the engine would be sent, as one object (since 0.18).
    Request,
}

impl Version {
    /// As `/version` says it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_11 => "0.11.2",
            Self::V0_16 => "0.16.0",
            Self::V0_23 => "0.23.0",
            Self::V0_24 => "0.24.0",
            Self::V0_32 => "0.32.0",
        }
    }

    /// How its events are laid out.
    #[must_use]
    pub const fn encoding(self) -> Encoding {
        match self {
            Self::V0_11 => Encoding::Array7,
            Self::V0_16 => Encoding::Array8,
            Self::V0_23 => Encoding::Array,
            Self::V0_24 | Self::V0_32 => Encoding::Map,
        }
    }

    /// The latest version with that layout.
    #[must_use]
    pub const fn of_encoding(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Array7 => Self::V0_11,
            Encoding::Array8 => Self::V0_16,
            Encoding::Array => Self::V0_23,
            Encoding::Map => Self::V0_32,
        }
    }

    /// How it hashes what enters a block's hash besides tokens.
    #[must_use]
    pub const fn extra_keys(self) -> ExtraKeyShape {
        match self {
            Self::V0_11 | Self::V0_16 => ExtraKeyShape::Bare,
            Self::V0_23 | Self::V0_24 => ExtraKeyShape::BareWithOffset,
            Self::V0_32 => ExtraKeyShape::Tagged,
        }
    }

    /// The algorithms that it offers: xxhash came with 0.13.
    #[must_use]
    pub const fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Self::V0_11 => &[Algorithm::Sha256Cbor, Algorithm::Sha256Pickle],
            _ => &Algorithm::ALL,
        }
    }

    /// The string whose hash is the parent of first blocks where `PYTHONHASHSEED` is unset; `None` where that parent is
    /// random: before 0.29, and with xxhash in all versions.
    #[must_use]
    pub const fn default_root(self, algorithm: Algorithm) -> Option<&'static str> {
        match (self, algorithm) {
            (Self::V0_32, Algorithm::Sha256Cbor | Algorithm::Sha256Pickle) => Some(DEFAULT_ROOT),
            _ => None,
        }
    }

    /// Whether answers to a replay carry the topic (0.26 and later).
    #[must_use]
    pub const fn replays_topic(self) -> bool {
        matches!(self, Self::V0_32)
    }

    /// Whether events tell the request's session (0.30 and later).
    #[must_use]
    pub const fn tells_sessions(self) -> bool {
        matches!(self, Self::V0_32)
    }

    /// Whether a request can have its hit announced again, by `kv_cache_report_mode=full` (0.26 and later).
    #[must_use]
    pub const fn reports_hits(self) -> bool {
        matches!(self, Self::V0_32)
    }

    /// When freed blocks of such a group are reused that hold nothing.
    #[must_use]
    pub const fn reuse(self, group: Group) -> Reuse {
        match (self, group) {
            (Self::V0_11 | Self::V0_16, _) | (Self::V0_23, Group::Full) => Reuse::Queued,
            (Self::V0_23, Group::Window(_)) | (Self::V0_24 | Self::V0_32, _) => Reuse::EmptyFirst,
        }
    }

    /// Whether a request is admitted only where its whole prompt fits, instead of what the next step computes of it.
    #[must_use]
    pub const fn reserves_whole_prompts(self) -> bool {
        matches!(self, Self::V0_23 | Self::V0_24 | Self::V0_32)
    }

    /// Whether `prefix_cache_queries` counts a request whenever its admission is tried, instead of once.
    #[must_use]
    pub const fn counts_every_lookup(self) -> bool {
        matches!(self, Self::V0_11 | Self::V0_16 | Self::V0_23 | Self::V0_24)
    }

    /// Whether sliding windows keep only the blocks at which a later prompt can resume
    /// (`prefix_cache_retention_interval` 0 by default), instead of every block.
    #[must_use]
    pub const fn keeps_window_ends_only(self) -> bool {
        matches!(self, Self::V0_32)
    }

    /// How the render routes answer.
    #[must_use]
    pub const fn render(self) -> RenderForm {
        match self {
            Self::V0_11 => RenderForm::Absent,
            Self::V0_16 => RenderForm::Prompts,
            Self::V0_23 | Self::V0_24 | Self::V0_32 => RenderForm::Request,
        }
    }

    /// Whether `/v1/messages` (0.29 and later) and `/v1/responses` (0.30 and later) have render routes.
    #[must_use]
    pub const fn renders_all_apis(self) -> bool {
        matches!(self, Self::V0_32)
    }

    /// Whether `/kv_event_sources` says where events are published (0.31 and later).
    #[must_use]
    pub const fn shows_event_sources(self) -> bool {
        matches!(self, Self::V0_32)
    }

    /// Whether cache metrics have their names with `gpu_` as well (until 0.11).
    #[must_use]
    pub const fn has_gpu_names(self) -> bool {
        matches!(self, Self::V0_11)
    }

    /// Whether waiting requests are counted by reason too (0.20 and later).
    #[must_use]
    pub const fn counts_waiting_by_reason(self) -> bool {
        matches!(self, Self::V0_23 | Self::V0_24 | Self::V0_32)
    }

    /// Whether `/reset_prefix_cache` says if it did; older ones answer with an empty body.
    #[must_use]
    pub const fn says_if_reset(self) -> bool {
        matches!(self, Self::V0_32)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn a_layout_leads_to_a_version_that_has_it() {
        for encoding in Encoding::value_variants() {
            assert_eq!(Version::of_encoding(*encoding).encoding(), *encoding);
        }
    }

    #[test]
    fn versions_are_named_by_their_first_two_numbers() {
        for version in Version::value_variants() {
            let name = version.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default();
            assert!(version.as_str().starts_with(&format!("{name}.")), "{name}");
        }
    }
}
