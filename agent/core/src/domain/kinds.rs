//! How sure a naming is, in words.

use kvpick_proto::{
    naming::{Algorithm, ExtraKeyShape},
    words::{KeyKind, KeyKindStatus, KeyState},
};

use super::{MISFITS, Naming, version::Version};

/// What to do about an engine whose hashes nobody else can make.
const REPRODUCIBLE: &str = "start the engine with --prefix-caching-hash-algo sha256_cbor and the environment variable \
                            PYTHONHASHSEED=0, or add its PYTHONHASHSEED to `roots` in the agent's configuration";

fn unverified(reason: impl Into<String>, remedy: impl Into<String>) -> KeyState {
    KeyState::Unverified { reason: reason.into(), remedy: remedy.into() }
}

impl Naming {
    /// How sure the domain is, per kind of key.
    #[must_use]
    pub fn key_kinds(&self) -> Vec<KeyKindStatus> {
        let plain = self.plain();
        let is_known = !matches!(plain, KeyState::Unverified { .. });
        let mut all = vec![KeyKindStatus { kind: KeyKind::Plain, state: plain }];
        if is_known {
            let others = [KeyKind::Adapter, KeyKind::Salt, KeyKind::Media, KeyKind::Embeds];
            let state = |kind| if self.is_translating() { self.translated(kind) } else { self.other(kind) };
            all.extend(others.map(|kind| KeyKindStatus { kind, state: state(kind) }));
        }
        all
    }

    fn plain(&self) -> KeyState {
        if self.is_foreign {
            return unverified(
                "its metrics are not vLLM's, and other engines name blocks in other ways",
                "none is needed: it is served by what was sent there; with vLLM it would be by what it holds",
            );
        }
        if self.verified.contains(&KeyKind::Plain) {
            return KeyState::Verified;
        }
        if self.is_translating() {
            return KeyState::Translated;
        }
        if self.found.is_some() {
            let evidence = "that is how the engine named blocks before it restarted, or may have".to_owned();
            return KeyState::Assumed { evidence };
        }
        if let Some((_, evidence)) = self.assumed() {
            return KeyState::Assumed { evidence };
        }
        if self.misfits >= MISFITS {
            let reason = format!("the last {MISFITS} prompts stored were hashed in no known way");
            return unverified(reason, REPRODUCIBLE);
        }
        match self.algorithm.as_deref() {
            Some(name) if Algorithm::from_name(name).is_none() => unverified(
                format!("the engine hashes with {name}, which can't be reproduced outside it"),
                REPRODUCIBLE,
            ),
            _ => unverified(
                "no prompt was stored from its first token yet",
                "send the engine a request longer than one block",
            ),
        }
    }

    fn other(&self, kind: KeyKind) -> KeyState {
        if self.verified.contains(&kind) {
            return KeyState::Verified;
        }
        if self.misfitting.contains(&kind) {
            return unverified(
                "plain prompts are hashed as expected, but not those with such a key",
                "check that the engine answers /version and /v1/models with what it really runs",
            );
        }
        match self.version {
            None => unverified(
                "the engine's version is not known",
                "let the agent reach /version of the engine's API",
            ),
            Some(it) if kind == KeyKind::Adapter && it < Version(0, 11, 2) => unverified(
                "vLLM before 0.11.2 hashes an adapter's number in that engine",
                "use vLLM 0.11.2 or later",
            ),
            Some(it) => KeyState::Assumed { evidence: format!("that is how vLLM {it} hashes such keys") },
        }
    }

    /// Of an engine whose blocks are renamed: only what its events tell can enter the new names.
    fn translated(&self, kind: KeyKind) -> KeyState {
        let hides = self.hides_extra_keys || self.version.is_some_and(Version::hides_extra_keys);
        match kind {
            KeyKind::Plain => KeyState::Translated,
            KeyKind::Adapter if self.version.is_some_and(|it| !it.names_adapters()) => unverified(
                "vLLM before 0.14 announces an adapter by its number in that engine",
                "use vLLM 0.14 or later",
            ),
            KeyKind::Adapter => KeyState::Translated,
            KeyKind::Salt | KeyKind::Media | KeyKind::Embeds if hides => {
                unverified("vLLM before 0.17 does not announce such keys", "use vLLM 0.19 or later")
            }
            KeyKind::Salt | KeyKind::Media if self.shown_shape() == ExtraKeyShape::Bare => unverified(
                "vLLM before 0.19 announces a salt and a media item alike, and its version may be such a one",
                "use vLLM 0.19 or later, and let the agent reach /version of the engine's API",
            ),
            KeyKind::Salt | KeyKind::Media | KeyKind::Embeds => KeyState::Translated,
        }
    }
}
