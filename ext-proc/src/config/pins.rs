//! Which replica keeps which response.

use std::{sync::Arc, time::Duration};

use kvpick_core::pins::Bounds;
use serde::{Deserialize, Serialize};

/// How it is remembered which replica keeps which response of `/v1/responses`; see `kvpick_core::pins`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PinsConfig {
    /// Most responses and sessions remembered, about 150 bytes each; the longest unused are forgotten.
    pub max: usize,
    /// In seconds since the last use.
    pub expiry_s: u64,
    /// The request header by which clients name their session, in small letters; none for `null`. A request that names a
    /// response of unknown place goes to the replica of its session's last response.
    pub session_header: Option<String>,
}

impl Default for PinsConfig {
    fn default() -> Self {
        let Bounds { most, expiry } = Bounds::default();
        Self { max: most, expiry_s: expiry.as_secs(), session_header: Some("x-session-id".to_owned()) }
    }
}

impl PinsConfig {
    /// As the core wants them.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        Bounds { most: self.max, expiry: Duration::from_secs(self.expiry_s) }
    }

    /// The session header's name.
    #[must_use]
    pub fn header(&self) -> Option<Arc<str>> {
        self.session_header.as_deref().map(Arc::from)
    }

    /// Whether the header's name is one as Envoy writes them.
    pub(super) fn is_header_plain(&self) -> bool {
        let plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"-_.".contains(&it);
        self.session_header.as_ref().is_none_or(|it| !it.is_empty() && it.bytes().all(plain))
    }
}
