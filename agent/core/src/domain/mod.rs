//! Finds out how an engine names its blocks, by naming some of them itself.
//!
//! A store that begins at token 0 of a prompt carries all that its hashes are made of. If one combination of
//! algorithm and root gives every hash in it, that is the engine's. Nothing about hashing has to be configured.

use std::{collections::BTreeSet, num::NonZeroU32};

use kvpick_proto::{
    naming::{Algorithm, DEFAULT_ROOT, Domain, ExtraKey, ExtraKeyShape, Hasher},
    words::{Adapter, KeyKind, KeyKindStatus, KeyState},
};

use crate::decode::{ExtraItem, Stored};

mod learnt;

pub use learnt::Learnt;

/// Plain stores in a row that must fit nothing before an engine's naming counts as unknown. One may be hidden keys:
/// vLLM before 0.17 does not publish a salt.
const MISFITS: u32 = 8;

/// Roots that are tried on every engine: vLLM's own since 0.29, and what people set `PYTHONHASHSEED` to.
const ROOTS: [&str; 3] = [DEFAULT_ROOT, "0", "42"];

/// What is known of how one engine names its blocks.
#[derive(Clone, Debug)]
pub struct Naming {
    candidates: Vec<(Algorithm, String, Hasher)>,
    version: Option<Version>,
    shape: ExtraKeyShape,
    /// As the engine's metrics name it.
    algorithm: Option<String>,
    block_size: Option<NonZeroU32>,
    adapters: Vec<Adapter>,
    /// Index of the candidate that fitted, and tokens in a block.
    found: Option<(usize, NonZeroU32)>,
    verified: BTreeSet<KeyKind>,
    /// Kinds of key that did not fit a domain in which plain keys do.
    misfitting: BTreeSet<KeyKind>,
    misfits: u32,
}

/// Whether a store's hashes could be recomputed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fit {
    /// It does not begin at a prompt's first token, or lacks something that enters its hashes.
    Untestable,
    /// They were.
    Fits,
    /// No known way gives them.
    Misfit,
}

/// vLLM's version, as far as its naming depends on it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Version(u32, u32, u32);

impl Version {
    /// `0.32.0`, `0.32.0+cpu`, `0.32.1rc1.dev5`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let digits = part.find(|it: char| !it.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        });
        Some(Self(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
    }

    fn shape(self) -> ExtraKeyShape {
        match self {
            it if it >= Self(0, 31, 0) => ExtraKeyShape::Tagged,
            it if it >= Self(0, 19, 0) => ExtraKeyShape::BareWithOffset,
            _ => ExtraKeyShape::Bare,
        }
    }
}

impl Naming {
    /// Nothing known yet. `roots` are tried beside the usual ones.
    #[must_use]
    pub fn new(roots: &[String]) -> Self {
        let mut all: Vec<String> = ROOTS.map(str::to_owned).to_vec();
        all.extend(roots.iter().filter(|it| !ROOTS.contains(&it.as_str())).cloned());
        let shape = ExtraKeyShape::Tagged;
        let candidates = all
            .iter()
            .flat_map(|root| Algorithm::ALL.map(|it| (it, root.clone(), Hasher::with_root(it, root, shape))))
            .collect();
        Self {
            candidates,
            version: None,
            shape,
            algorithm: None,
            block_size: None,
            adapters: Vec::new(),
            found: None,
            verified: BTreeSet::new(),
            misfitting: BTreeSet::new(),
            misfits: 0,
        }
    }

    /// What was verified, to go on from after a restart of the agent; `None` while nothing is.
    #[must_use]
    pub fn learnt(&self) -> Option<Learnt> {
        let (index, block_size) = self.found?;
        let (algorithm, root, _) = &self.candidates[index];
        Some(Learnt {
            algorithm: *algorithm,
            root: root.clone(),
            block_size,
            extra_keys: self.shape,
            kinds: self.verified.iter().copied().collect(),
        })
    }

    /// Goes on from what was verified of the same engine process by an earlier run of this agent.
    pub fn recall(&mut self, learnt: Learnt) {
        let is_it = |it: &(Algorithm, String, Hasher)| it.0 == learnt.algorithm && it.1 == learnt.root;
        let index = self.candidates.iter().position(is_it).unwrap_or_else(|| {
            let hasher = Hasher::with_root(learnt.algorithm, &learnt.root, self.shape);
            self.candidates.push((learnt.algorithm, learnt.root.clone(), hasher));
            self.candidates.len() - 1
        });
        self.found = Some((index, learnt.block_size));
        self.verified = learnt.kinds.into_iter().collect();
    }

    /// The engine says its version.
    pub fn on_version(&mut self, version: &str) {
        self.version = Version::parse(version);
        let shape = self.version.map_or(ExtraKeyShape::Tagged, Version::shape);
        if shape != self.shape {
            self.shape = shape;
            for (algorithm, root, hasher) in &mut self.candidates {
                *hasher = Hasher::with_root(*algorithm, root, shape);
            }
            self.verified.retain(|kind| *kind == KeyKind::Plain);
            self.misfitting.clear();
        }
    }

    /// The engine's metrics say which algorithm it was told to use, and how many tokens are in a block.
    pub fn on_cache_config(&mut self, algorithm: Option<&str>, block_size: Option<u32>) {
        self.algorithm = algorithm.map(str::to_owned);
        self.block_size = block_size.and_then(NonZeroU32::new);
    }

    /// The engine serves these adapters.
    pub fn on_adapters(&mut self, adapters: &[Adapter]) {
        self.adapters = adapters.to_vec();
    }

    /// The engine stored blocks: tries to name them itself.
    pub fn on_stored(&mut self, stored: &Stored) -> Fit {
        let Some(block_size) = NonZeroU32::new(stored.block_size).filter(|_| stored.is_dense()) else {
            return Fit::Untestable;
        };
        if stored.parent.is_some() {
            return Fit::Untestable;
        }
        let Some(keys) = self.extra_keys(stored) else { return Fit::Untestable };
        let is_plain = keys.kinds.is_empty();
        let known = self.found.filter(|(_, size)| *size == block_size).map(|(index, _)| index);
        let verified = self.verified.contains(&KeyKind::Plain) && keys.kinds.is_subset(&self.verified);
        // What was verified once is watched by its first block.
        let blocks = if verified && known.is_some() { 1 } else { stored.keys.len() };
        let order = known.into_iter().chain((0..self.candidates.len()).filter(|it| Some(*it) != known));
        for index in order {
            if names(&mut self.candidates[index].2, stored, block_size, &keys.blocks, blocks) {
                if self.found != Some((index, block_size)) {
                    self.verified.clear();
                    self.misfitting.clear();
                }
                self.found = Some((index, block_size));
                self.verified.insert(KeyKind::Plain);
                self.misfitting.retain(|kind| !keys.kinds.contains(kind));
                self.verified.extend(keys.kinds);
                self.misfits = 0;
                return Fit::Fits;
            }
        }
        if is_plain {
            let hidden = stored.hides_extra_keys && self.verified.contains(&KeyKind::Plain);
            self.misfits = self.misfits.saturating_add(u32::from(!hidden));
            if self.misfits >= MISFITS {
                self.found = None;
                self.verified.clear();
            }
        } else if keys.kinds.len() == 1 && self.found.is_some() {
            self.misfitting.extend(keys.kinds.difference(&self.verified));
        }
        Fit::Misfit
    }

    /// The domain that its keys are of, as far as is known.
    #[must_use]
    pub fn domain(&self) -> Option<Domain> {
        if let Some((index, block_size)) = self.found {
            let (algorithm, root, _) = &self.candidates[index];
            let (algorithm, root) = (*algorithm, root.clone());
            return Some(Domain { algorithm, root, block_size, extra_keys: self.shape });
        }
        self.assumed().map(|(domain, _)| domain)
    }

    /// How sure that is, per kind of key.
    #[must_use]
    pub fn key_kinds(&self) -> Vec<KeyKindStatus> {
        let plain = self.plain();
        let is_known = !matches!(plain, KeyState::Unverified { .. });
        let mut all = vec![KeyKindStatus { kind: KeyKind::Plain, state: plain }];
        if is_known {
            let others = [KeyKind::Adapter, KeyKind::Salt, KeyKind::Media, KeyKind::Embeds];
            all.extend(others.map(|kind| KeyKindStatus { kind, state: self.other(kind) }));
        }
        all
    }

    fn plain(&self) -> KeyState {
        if self.found.is_some() {
            return KeyState::Verified;
        }
        if let Some((_, evidence)) = self.assumed() {
            return KeyState::Assumed { evidence };
        }
        let remedy = "start the engine with --prefix-caching-hash-algo sha256_cbor and the environment variable \
                      PYTHONHASHSEED=0, or add its PYTHONHASHSEED to `roots` in the agent's configuration";
        if self.misfits >= MISFITS {
            let reason = format!("the last {MISFITS} prompts stored were hashed in no known way");
            return KeyState::Unverified { reason, remedy: remedy.to_owned() };
        }
        match self.algorithm.as_deref() {
            Some(name) if Algorithm::from_name(name).is_none() => KeyState::Unverified {
                reason: format!("the engine hashes with {name}, which can't be reproduced outside it"),
                remedy: remedy.to_owned(),
            },
            _ => KeyState::Unverified {
                reason: "no prompt was stored from its first token yet".to_owned(),
                remedy: "send the engine a request longer than one block".to_owned(),
            },
        }
    }

    fn other(&self, kind: KeyKind) -> KeyState {
        if self.verified.contains(&kind) {
            return KeyState::Verified;
        }
        if self.misfitting.contains(&kind) {
            return KeyState::Unverified {
                reason: "plain prompts are hashed as expected, but not those with such a key".to_owned(),
                remedy: "check that the engine answers /version and /v1/models with what it really runs"
                    .to_owned(),
            };
        }
        match self.version {
            None => KeyState::Unverified {
                reason: "the engine's version is not known".to_owned(),
                remedy: "let the agent reach /version of the engine's API".to_owned(),
            },
            Some(it) if kind == KeyKind::Adapter && it < Version(0, 11, 2) => KeyState::Unverified {
                reason: "vLLM before 0.11.2 hashes an adapter's number in that engine".to_owned(),
                remedy: "use vLLM 0.11.2 or later".to_owned(),
            },
            Some(Version(major, minor, patch)) => KeyState::Assumed {
                evidence: format!("that is how vLLM {major}.{minor}.{patch} hashes such keys"),
            },
        }
    }

    /// What an engine shows of its naming before it stored anything.
    fn assumed(&self) -> Option<(Domain, String)> {
        let name = self.algorithm.as_deref().filter(|_| self.misfits < MISFITS)?;
        let algorithm = Algorithm::from_name(name)?;
        let Version(major, minor, patch) = self.version.filter(|it| *it >= Version(0, 29, 0))?;
        // XXH3 has no root that is the same in every process unless one is set.
        if !matches!(algorithm, Algorithm::Sha256Cbor | Algorithm::Sha256Pickle) {
            return None;
        }
        let root = DEFAULT_ROOT.to_owned();
        let domain = Domain { algorithm, root, block_size: self.block_size?, extra_keys: self.shape };
        let evidence = format!(
            "its metrics name {name}, and the root of vLLM {major}.{minor}.{patch} is {DEFAULT_ROOT} unless \
             PYTHONHASHSEED is set"
        );
        Some((domain, evidence))
    }

    /// What entered the hashes besides tokens, in the form that hashing wants; `None` where it can't be told.
    fn extra_keys(&self, stored: &Stored) -> Option<Keys> {
        let mut keys = Keys { blocks: vec![Vec::new(); stored.keys.len()], kinds: BTreeSet::new() };
        if stored.lora_id.is_some() && stored.lora_name.is_none() {
            return None;
        }
        let adapter = match stored.lora_name.as_deref() {
            Some(name) => Some(self.adapters.iter().find(|it| it.name == name)?),
            None => None,
        };
        if let Some(Adapter { name, path }) = adapter {
            keys.kinds.insert(KeyKind::Adapter);
            let key = ExtraKey::Adapter { name: name.clone(), path: path.clone() };
            keys.blocks.iter_mut().for_each(|it| it.push(key.clone()));
        }
        for (block, items) in &stored.extra_keys {
            let into = keys.blocks.get_mut(*block as usize)?;
            let skip = usize::from(
                matches!((adapter, items.first()), (Some(it), Some(ExtraItem::Text(text))) if *text == it.name),
            );
            for item in &items[skip..] {
                let (kind, key) = match item {
                    // Before 0.19 a media identifier looks the same.
                    ExtraItem::Text(salt) if *block == 0 && self.shape != ExtraKeyShape::Bare => {
                        (KeyKind::Salt, ExtraKey::Salt(salt.clone()))
                    }
                    ExtraItem::Media { identifier, offset } => {
                        (KeyKind::Media, ExtraKey::Media { identifier: identifier.clone(), offset: *offset })
                    }
                    ExtraItem::Bytes(digest) => (KeyKind::Embeds, ExtraKey::Embeds(digest.clone())),
                    ExtraItem::Text(_) | ExtraItem::Other => return None,
                };
                keys.kinds.insert(kind);
                into.push(key);
            }
        }
        Some(keys)
    }
}

struct Keys {
    blocks: Vec<Vec<ExtraKey>>,
    kinds: BTreeSet<KeyKind>,
}

/// Whether that hasher gives the keys of the first `blocks` blocks.
fn names(
    hasher: &mut Hasher,
    stored: &Stored,
    block_size: NonZeroU32,
    extra: &[Vec<ExtraKey>],
    blocks: usize,
) -> bool {
    let mut parent = hasher.root();
    let chunks = stored.tokens.chunks_exact(block_size.get() as usize);
    chunks.zip(&stored.keys).zip(extra).take(blocks).all(|((tokens, key), extra)| {
        parent = hasher.next(&parent, tokens, extra);
        parent.key() == *key
    })
}
