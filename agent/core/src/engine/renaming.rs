//! Which names the mirror holds: the engine's own, or those that it is given where its own can't be reproduced.

use std::time::Instant;

use kvpick_proto::{
    naming::BlockKey,
    words::{Place, Tier},
};

use super::Engine;
use crate::{
    decode::{Removed, Stored},
    domain::{Learnt, Naming},
    mirror::Mirror,
    translate::{Counts, Output, Reading, Translator},
};

/// Stands between an engine's events and its mirror.
///
/// As long as it is not known how the engine names its blocks, new names are found for all that it stores, though the
/// mirror holds the engine's: when it turns out that those are of no use, everything is renamed at once and nothing is
/// lost.
#[derive(Debug, Default)]
pub(super) struct Renaming {
    translator: Option<Box<Translator>>,
    /// Whether the mirror holds the new names.
    is_on: bool,
    /// What became of blocks in translators before this one.
    before: Counts,
}

const TIERS: [Tier; 3] = [Tier::Gpu, Tier::Cpu, Tier::Storage];

impl Renaming {
    /// What became of blocks so far.
    pub(super) fn counts(&self) -> Counts {
        let now = self.translator.as_ref().map(|it| it.counts()).unwrap_or_default();
        let before = self.before;
        Counts {
            translated: before.translated + now.translated,
            orphans: now.orphans,
            dropped: before.dropped + now.dropped,
            left_out_extra_keys: before.left_out_extra_keys + now.left_out_extra_keys,
            left_out_groups: before.left_out_groups + now.left_out_groups,
            left_out_placeholders: before.left_out_placeholders + now.left_out_placeholders,
            left_out_hidden_keys: before.left_out_hidden_keys + now.left_out_hidden_keys,
        }
    }

    /// Whether the mirror holds other names than the engine's.
    pub(super) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Makes the mirror hold the names that the naming speaks of. Returns whether it had to be renamed.
    pub(super) fn follow(&mut self, naming: &Naming, mirror: &mut Mirror) -> bool {
        let changes = naming.is_translating() != self.is_on;
        if changes {
            self.is_on = !self.is_on;
            let (to_new, translator) = (self.is_on, self.translator.as_deref());
            let name = |place: Place, key| match translator {
                Some(it) if to_new => it.name(place.group, key),
                Some(it) => it.engine_name(place.group, key),
                None => None,
            };
            mirror.rename(name, |place, key| match translator {
                Some(it) if to_new => it.waiting(place, key),
                Some(_) | None => 0,
            });
        }
        if !naming.may_translate() && !self.is_on && self.translator.is_some() {
            self.before = Counts { orphans: 0, ..self.counts() };
            self.translator = None;
        } else if naming.may_translate() && self.translator.is_none() {
            self.translator = Some(Box::default());
        }
        changes
    }

    /// Blocks are held from now on. The naming has seen them.
    pub(super) fn store(&mut self, stored: &Stored, naming: &Naming, mirror: &mut Mirror) {
        self.follow(naming, mirror);
        let outputs = match (&mut self.translator, naming.block_size()) {
            (Some(translator), Some(block_size)) => {
                let (shape, adapters) = (naming.shown_shape(), naming.adapters());
                translator.on_stored(stored, &Reading { block_size, shape, adapters })
            }
            _ => Vec::new(),
        };
        if self.is_on {
            outputs.into_iter().for_each(|it| apply(it, mirror));
        } else {
            mirror.store(stored);
        }
    }

    /// A copy of each of these blocks went.
    pub(super) fn remove(&mut self, removed: &Removed, mirror: &mut Mirror) {
        if self.translator.is_none() {
            return mirror.remove(removed);
        }
        let told = removed.remaining.len() == removed.keys.len();
        for (at, key) in removed.keys.iter().enumerate() {
            let remaining = removed.remaining.get(at).copied().filter(|_| told);
            self.remove_one(*key, remaining, removed, mirror);
        }
    }

    fn remove_one(&mut self, key: BlockKey, remaining: Option<u32>, of: &Removed, mirror: &mut Mirror) {
        let Some(translator) = &mut self.translator else { return };
        let group = of.group.unwrap_or(0);
        let place = Place { group, tier: of.tier.unwrap_or(Tier::Gpu) };
        let removed = Removed { keys: vec![key], remaining: remaining.into_iter().collect(), ..of.clone() };
        let name = translator.name(group, key);
        let held = if self.is_on { name } else { Some(key) };
        let was_held = held.is_some_and(|it| mirror.copies(place, it) > 0);
        let outputs = translator.on_removed(&removed);
        if self.is_on {
            outputs.into_iter().for_each(|it| apply(it, mirror));
        } else {
            mirror.remove(&removed);
        }
        if name.is_some() {
            // It has a name, and the copy that went may all the same be one that is kept aside: where the mirror has the
            // new names those are not in it, else they are.
            let copies = held.map_or(0, |it| mirror.copies(place, it));
            let most = match (self.is_on, remaining) {
                (false, _) => copies,
                (true, Some(_)) => 0,
                (true, None) => translator.waiting(place, key).saturating_sub(u32::from(!was_held)),
            };
            (most..translator.waiting(place, key)).for_each(|_| translator.remove_waiting(place, key));
        }
        if held.is_some_and(|it| !is_held(mirror, group, it)) {
            translator.forget(group, key);
        }
    }

    /// Everything went.
    pub(super) fn clear(&mut self) {
        if let Some(translator) = &mut self.translator {
            translator.clear();
        }
    }
}

fn is_held(mirror: &Mirror, group: u32, key: BlockKey) -> bool {
    TIERS.iter().any(|tier| mirror.copies(Place { group, tier: *tier }, key) > 0)
}

fn apply(output: Output, mirror: &mut Mirror) {
    match output {
        Output::Store(it) => mirror.store(&it),
        Output::Remove(it) => mirror.remove(&it),
        Output::Forget { group, key } => {
            for tier in TIERS {
                let copies = mirror.copies(Place { group, tier }, key);
                if 0 < copies {
                    let (tier, group) = (Some(tier), Some(group));
                    mirror.remove(&Removed { keys: vec![key], tier, group, remaining: vec![0] });
                }
            }
        }
    }
}

impl Engine {
    /// Its version.
    pub fn on_version(&mut self, version: String) {
        self.portrait.on_version(version);
        self.renaming.follow(self.portrait.naming(), &mut self.mirror);
    }

    /// What was verified of its naming, to be written down; `None` while nothing is.
    #[must_use]
    pub fn learnt(&self) -> Option<Learnt> {
        self.portrait.learnt()
    }

    /// What became of blocks that are given other names than the engine's.
    #[must_use]
    pub fn translation(&self) -> Counts {
        self.renaming.counts()
    }

    /// An earlier run of this agent verified that of the same engine process.
    pub fn recall_naming(&mut self, learnt: Learnt) {
        self.portrait.recall(learnt);
    }

    /// Whether its version and models should be asked for soon, as they may be those of another process; once.
    #[must_use]
    pub const fn take_wants_identity(&mut self) -> bool {
        self.portrait.naming_mut().take_wants_identity()
    }

    /// Renames what the mirror holds, if its API has shown that the engine's own names are of no use, or of use again.
    pub(super) fn follow_naming(&mut self, now: Instant) {
        if self.renaming.follow(self.portrait.naming(), &mut self.mirror) || self.mirror.was_cleared() {
            self.dirty.get_or_insert(now);
        }
    }
}
