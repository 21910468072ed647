//! Names of a prompt's blocks, in runs that were named before.

use kvpick_proto::naming::{BlockKey, Digest, ExtraKey, Hasher};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    memo::{Entry, Kept, Memo, Run, RunNaming, Tally, What},
    pick::Naming,
    prompts::Prompt,
};

/// Blocks of a run. It is worth a look-up, and few enough blocks are left over at a prompt's end.
const LENGTH: usize = 32;

/// Names blocks and keeps the names.
pub(crate) struct Runs<'a> {
    memo: &'a dyn Memo,
    naming: RunNaming,
    hasher: Hasher,
    /// What a run's key is made of.
    bytes: Vec<u8>,
}

impl<'a> Runs<'a> {
    pub(crate) fn new(memo: &'a dyn Memo, naming: &Naming) -> Self {
        let domain = &naming.domain;
        let hasher = Hasher::new(domain);
        let naming = RunNaming {
            algorithm: domain.algorithm,
            extra_keys: domain.extra_keys,
            block_size: domain.block_size.get() as usize,
            adapter: naming.adapter.clone(),
        };
        Self { memo, naming, hasher, bytes: Vec::new() }
    }

    /// The keys of the full blocks of a prompt; `extra(i)` gives the extra keys of block `i`. `is_salted` tells whether
    /// those of the first block have a salt.
    pub(crate) fn keys(
        &mut self,
        prompt: &Prompt,
        is_salted: bool,
        extra: impl Fn(usize) -> Vec<ExtraKey>,
    ) -> Vec<BlockKey> {
        let size = self.naming.block_size;
        let mut keys = Vec::with_capacity(prompt.ids.len() / size);
        let mut parent = self.hasher.root();
        let mut tally = Tally { bytes: size_of_val(prompt.ids.as_slice()) as u64, ..Tally::default() };
        for tokens in prompt.ids.chunks(LENGTH.saturating_mul(size)) {
            let from = keys.len();
            let start = from * size;
            let has_media = prompt.media_within(start, start + tokens.len()).next().is_some();
            let is_known = tokens.len() == LENGTH * size && !has_media && !(from == 0 && is_salted);
            if !is_known {
                parent = self.name(parent, tokens, &|i| extra(from + i), &mut keys);
                continue;
            }
            let key = self.key(&parent, tokens);
            let entry = self.memo.get(key);
            if let Some(run) = entry.as_ref().and_then(|it| it.run_of(&self.naming, &parent, tokens)) {
                tally.hits += 1;
                tally.hit_bytes += size_of_val(tokens) as u64;
                keys.extend_from_slice(&run.keys);
                parent = run.last;
                continue;
            }
            tally.misses += 1;
            let last = self.name(parent, tokens, &|i| extra(from + i), &mut keys);
            let run = Run {
                naming: self.naming.clone(),
                parent,
                tokens: tokens.into(),
                keys: keys[from..].into(),
                last,
            };
            self.memo.put(key, Entry(Kept::Run(run)));
            parent = last;
        }
        self.memo.asked(What::Blocks, tally);
        keys
    }

    /// Appends the keys of the full blocks of `tokens`, and tells the last block's hash.
    fn name(
        &mut self,
        mut parent: Digest,
        tokens: &[u32],
        extra: &dyn Fn(usize) -> Vec<ExtraKey>,
        keys: &mut Vec<BlockKey>,
    ) -> Digest {
        for (i, block) in tokens.chunks_exact(self.naming.block_size).enumerate() {
            parent = self.hasher.next(&parent, block, &extra(i));
            keys.push(parent.key());
        }
        parent
    }

    fn key(&mut self, parent: &Digest, tokens: &[u32]) -> u64 {
        self.bytes.clear();
        self.bytes.extend(parent.as_bytes());
        self.bytes.extend(tokens.iter().flat_map(|it| it.to_le_bytes()));
        // Texts have keys under the seed itself.
        xxh3_64_with_seed(&self.bytes, !self.memo.seed())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use kvpick_proto::naming::{Algorithm, Domain, ExtraKeyShape};
    use proptest::prelude::*;

    use crate::{
        memo::testing::Map,
        pick::{Naming, chain, chain_with},
        prompts::{Medium, Prompt},
    };

    fn naming() -> impl Strategy<Value = Naming> {
        let shapes = [ExtraKeyShape::Bare, ExtraKeyShape::BareWithOffset, ExtraKeyShape::Tagged];
        let adapter = prop::option::of(("[ab]", "[xy]"));
        (
            prop::sample::select(&Algorithm::ALL),
            "[rs]",
            1..4_u32,
            prop::sample::select(shapes.to_vec()),
            adapter,
        )
            .prop_map(|(algorithm, root, size, extra_keys, adapter)| {
                let block_size = NonZeroU32::MIN.saturating_add(size - 1);
                Naming { domain: Domain { algorithm, root, block_size, extra_keys }, adapter }
            })
    }

    /// Prompts that share beginnings and pieces.
    fn prompt() -> impl Strategy<Value = Prompt> {
        let piece = (0..3_u32, 1..120_usize).prop_map(|(start, length)| (start..).take(length).collect());
        let pieces = prop::collection::vec(piece, 0..6).prop_map(|it: Vec<Vec<u32>>| it.concat());
        let medium = ("[mn]", 0..300_usize, 1..80_usize).prop_map(|(identifier, offset, length)| Medium {
            identifier,
            offset,
            length,
        });
        (pieces, prop::option::weighted(0.3, medium)).prop_map(|(ids, medium)| {
            let media = medium.into_iter().filter(|it| it.offset + it.length <= ids.len()).collect();
            Prompt { media, ..ids.into() }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn keys_are_those_without_a_memo(
            requests in prop::collection::vec(
                (prop::collection::vec(naming(), 1..3), prop::collection::vec(prompt(), 1..3), prop::option::of("[st]")),
                1..12,
            ),
            room in prop::sample::select(vec![0_usize, 1, 3, 1_000]),
            seed in prop::sample::select(vec![0_u64, 7]),
        ) {
            let memo = Map::new(room, seed);
            for (namings, prompts, salt) in requests.iter().chain(&requests) {
                let salt = salt.as_deref();
                let got = chain_with(Some(&memo), namings.clone(), prompts, salt);
                prop_assert_eq!(got, chain(namings.clone(), prompts, salt));
            }
        }
    }

    #[test]
    fn a_prompt_that_was_named_is_looked_up() {
        let memo = Map::new(1_000, 1);
        let domain = Domain {
            algorithm: Algorithm::Sha256Cbor,
            root: "r".to_owned(),
            block_size: NonZeroU32::MIN.saturating_add(15),
            extra_keys: ExtraKeyShape::Tagged,
        };
        let namings = vec![Naming { domain, adapter: None }];
        let prompts = [Prompt::from((0..3_000).collect::<Vec<u32>>())];
        for (salt, hits) in [(None, 0), (None, 5), (Some("s"), 5), (Some("s"), 9), (Some("t"), 9)] {
            let keys = chain_with(Some(&memo), namings.clone(), &prompts, salt);
            assert_eq!(keys, chain(namings.clone(), &prompts, salt));
            assert_eq!(memo.hits(), hits, "{salt:?}");
        }
    }
}
