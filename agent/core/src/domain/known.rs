//! What is known of an engine's naming.

use std::num::NonZeroU32;

use kvpick_proto::{
    naming::{Algorithm, DEFAULT_ROOT, Domain, ExtraKeyShape},
    words::{Adapter, KeyKind},
};

use super::{Learnt, MISFITS, Naming, Scheme, version::Version};

impl Naming {
    /// The domain that its keys are of, as far as is known: the canonical one where they are translated.
    #[must_use]
    pub fn domain(&self) -> Option<Domain> {
        if self.is_foreign {
            return None;
        }
        if self.is_translating() {
            return self.block_size().map(canonical);
        }
        if let Some(Scheme { candidate, block_size }) = self.found {
            let it = &self.candidates[candidate];
            let (algorithm, root) = (it.algorithm, it.root.clone());
            return Some(Domain { algorithm, root, block_size, extra_keys: self.shape });
        }
        self.assumed().map(|(domain, _)| domain)
    }

    /// Whether its own names can't be had, so that its blocks are named in the canonical domain.
    #[must_use]
    pub fn is_translating(&self) -> bool {
        self.is_hopeless() && !self.is_foreign && self.block_size().is_some()
    }

    /// Whether its blocks may have to be renamed, for which their tokens have to be seen.
    #[must_use]
    pub fn may_translate(&self) -> bool {
        !self.is_foreign && (0 < self.misfits || !self.verified.contains(&KeyKind::Plain))
    }

    /// Tokens in a block of the groups whose blocks can be renamed.
    #[must_use]
    pub fn block_size(&self) -> Option<NonZeroU32> {
        self.dense_size.or(self.block_size)
    }

    /// The adapters that it serves.
    pub(crate) fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    /// How its events show extra keys; where that is not known, as if it could not be told what they are.
    pub(crate) fn shown_shape(&self) -> ExtraKeyShape {
        if self.is_shape_sure(self.shape) { self.shape } else { ExtraKeyShape::Bare }
    }

    /// What was verified, to go on from after a restart of the agent; `None` while nothing is.
    #[must_use]
    pub fn learnt(&self) -> Option<Learnt> {
        let Scheme { candidate, block_size } =
            self.found.filter(|_| !self.is_foreign && self.verified.contains(&KeyKind::Plain))?;
        let it = &self.candidates[candidate];
        Some(Learnt {
            algorithm: it.algorithm,
            root: it.root.clone(),
            block_size,
            extra_keys: self.shape,
            kinds: self.verified.iter().copied().collect(),
        })
    }

    /// Goes on from what was verified of the same engine process by an earlier run of this agent.
    pub fn recall(&mut self, learnt: Learnt) {
        let candidate = self.candidates.index(learnt.algorithm, &learnt.root);
        self.found = Some(Scheme { candidate, block_size: learnt.block_size });
        self.chains.clear();
        self.misfits = 0;
        self.shape = learnt.extra_keys;
        self.is_shape_shown = learnt.kinds.iter().any(|it| *it != KeyKind::Plain);
        self.verified = learnt.kinds.into_iter().collect();
    }

    fn is_hopeless(&self) -> bool {
        let unknown = self.algorithm.as_deref().is_some_and(|it| Algorithm::from_name(it).is_none());
        self.misfits >= MISFITS || (unknown && !self.verified.contains(&KeyKind::Plain))
    }

    /// What an engine shows of its naming before it stored anything.
    pub(super) fn assumed(&self) -> Option<(Domain, String)> {
        let name = self.algorithm.as_deref().filter(|_| self.misfits < MISFITS)?;
        let algorithm = Algorithm::from_name(name)?;
        let version = self.version.filter(|it| *it >= Version(0, 29, 0))?;
        // XXH3 has no root that is the same in every process unless one is set.
        if !matches!(algorithm, Algorithm::Sha256Cbor | Algorithm::Sha256Pickle) {
            return None;
        }
        let root = DEFAULT_ROOT.to_owned();
        let block_size = self.hash_block_size.or(self.block_size)?;
        let domain = Domain { algorithm, root, block_size, extra_keys: self.shape };
        let evidence = format!(
            "its metrics name {name}, and the root of vLLM {version} is {DEFAULT_ROOT} unless PYTHONHASHSEED is set"
        );
        Some((domain, evidence))
    }
}

/// The domain in which blocks are named that the engine names in no reproducible way.
pub(crate) fn canonical(block_size: NonZeroU32) -> Domain {
    Domain {
        algorithm: Algorithm::Sha256Cbor,
        root: DEFAULT_ROOT.to_owned(),
        block_size,
        extra_keys: ExtraKeyShape::Tagged,
    }
}
