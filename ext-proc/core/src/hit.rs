//! How much of a prompt an engine finds in its cache: vLLM's rule, over the cache groups of the model's layers.
//!
//! Layers that attend to all tokens need every block from the first on. Layers with a sliding window need the blocks of
//! the tokens that the next one attends to besides itself, layers with a running state the one at the end, so that a hit
//! is shortened until it ends where all of them can go on (`v1/core/kv_cache_coordinator.py` and
//! `single_type_kv_cache_manager.py` of vLLM 0.32). All count in blocks of their own size; a prompt is hashed in blocks
//! of the greatest size that divides them all, and a group names its block by the last hash within.

use std::num::NonZeroU32;

use kvpick_proto::words::Group;

/// The rule for one replica. `S` is how to look into a group: whatever [`Rule::of`] is given for it.
#[derive(Clone, Debug)]
pub struct Rule<S> {
    /// Groups that need every block.
    whole: Vec<Part<S>>,
    /// Groups that need the last blocks only.
    tails: Vec<Tail<S>>,
    /// A hit ends at multiples of so many hash blocks.
    step: usize,
}

#[derive(Clone, Debug)]
struct Part<S> {
    look: S,
    /// Hash blocks in a block.
    per: usize,
}

#[derive(Clone, Debug)]
struct Tail<S> {
    part: Part<S>,
    /// Blocks before a hit's end, or all from the first on.
    needed: usize,
}

/// What a group means for a hit.
enum Kind {
    Whole,
    Tail {
        needed: usize,
    },
    /// Its blocks are aligned to, and else do not matter here.
    Aligned,
    None,
}

impl Kind {
    /// By vLLM's name of the attention kind.
    ///
    /// Of layers that attend within chunks the events do not tell the chunk's length; without them a hit is thought too
    /// long by less than a chunk. What an encoder has made is no prefix, and never decides. A kind that is not known
    /// here decides nothing, which may make a hit too long and never costs one.
    fn of(group: &Group, block_size: u32) -> Self {
        match group.kind.as_str() {
            "full_attention" | "mla_attention" | "sink_full_attention" => Self::Whole,
            // A window of the token alone needs no block, but a hit ends with a block that is held all the same.
            "sliding_window" | "sliding_window_mla" => {
                let tokens = group.sliding_window.saturating_sub(1);
                Self::Tail { needed: tokens.div_ceil(block_size).max(1) as usize }
            }
            "mamba" => Self::Tail { needed: 1 },
            "chunked_local_attention" => Self::Aligned,
            _ => Self::None,
        }
    }
}

impl<S> Rule<S> {
    /// The rule for a model with these groups, whose prompts are hashed in blocks of `hash_block` tokens. Where no group
    /// says what it is (vLLM before 0.22.1), a block counts that any group holds. `look` is asked how to look into a
    /// group, or into all of them.
    #[must_use]
    pub fn of(groups: &[Group], hash_block: NonZeroU32, look: impl Fn(Option<u32>) -> S) -> Self {
        let mut rule = Self { whole: Vec::new(), tails: Vec::new(), step: 1 };
        for group in groups {
            let size = if group.block_size == 0 { hash_block.get() } else { group.block_size };
            // Such a group's blocks have no names among the prompt's hashes.
            if size % hash_block != 0 {
                continue;
            }
            let per = (size / hash_block) as usize;
            let part = || Part { look: look(Some(group.index)), per };
            match Kind::of(group, size) {
                Kind::Whole => rule.whole.push(part()),
                Kind::Tail { needed } => rule.tails.push(Tail { part: part(), needed }),
                Kind::Aligned => (),
                Kind::None => continue,
            }
            rule.step = common_multiple(rule.step, per);
        }
        if rule.whole.is_empty() && rule.tails.is_empty() {
            rule.whole.push(Part { look: look(None), per: 1 });
            rule.step = 1;
        }
        rule
    }

    /// Which hash blocks of a prompt are stored under their names wherever they lie in it: of each `.0` in a row the last,
    /// as far as `.1` divides their number. `None` where every group leaves some out.
    #[must_use]
    pub fn kept(&self) -> Option<(usize, usize)> {
        Some((self.whole.iter().map(|it| it.per).min()?, self.step))
    }

    /// What a hit saves of each of its blocks, 0 to 1, in `run`, which is as long as the hit, in hash blocks. At most the
    /// first `limit` hash blocks are looked at, and the last `dropped` do not count. `worth` says what hash block `.0` is
    /// worth in a group; 0 where it is not held.
    pub fn longest(
        &self,
        limit: usize,
        dropped: usize,
        worth: impl Fn(usize, &S) -> f64,
        run: &mut Vec<f64>,
    ) {
        run.clear();
        match self.whole.split_first() {
            Some((first, others)) => {
                first.run(limit, &worth, |_, worth| run.extend(std::iter::repeat_n(worth, first.per)));
                for other in others {
                    let held = other.run(run.len(), &worth, |at, worth| {
                        run[at..at + other.per].iter_mut().for_each(|it| *it = it.min(worth));
                    });
                    run.truncate(held);
                }
            }
            None => run.resize(limit, 1.0),
        }
        if !self.tails.is_empty() || self.step > 1 {
            let end = self.end(run.len(), dropped, &worth);
            run.truncate(end);
            if self.whole.is_empty() && 0 < end {
                let least = self.tails.iter().map(|it| worth(end - 1, &it.part.look)).fold(1.0, f64::min);
                run.fill(least);
            }
        }
        run.truncate(self.aligned(run.len().saturating_sub(dropped)));
    }

    /// The last place up to `limit` where a hit can end for the groups that need their last blocks. Each block is looked
    /// at once.
    fn end(&self, limit: usize, dropped: usize, worth: &impl Fn(usize, &S) -> f64) -> usize {
        let mut end = self.aligned(limit);
        // Of each, from where on up to the end all blocks are known to be held.
        let mut held_from: Vec<usize> = self.tails.iter().map(|it| end / it.part.per).collect();
        'ends: while 0 < end {
            for (tail, held_from) in self.tails.iter().zip(&mut held_from) {
                let per = tail.part.per;
                let blocks = end / per;
                *held_from = blocks.min(*held_from);
                // What is dropped lies after the end that counts.
                let from = blocks.saturating_sub(tail.needed.saturating_add(dropped));
                while from < *held_from {
                    if worth(*held_from * per - 1, &tail.part.look) <= 0.0 {
                        end = self.aligned((*held_from - 1) * per);
                        continue 'ends;
                    }
                    *held_from -= 1;
                }
            }
            break;
        }
        end
    }

    const fn aligned(&self, end: usize) -> usize {
        end - end % self.step
    }
}

impl<S> Part<S> {
    /// Tells of each leading block that is held, within `limit` hash blocks, at which one it begins and what it is worth.
    /// Returns the hash blocks in them.
    fn run(
        &self,
        limit: usize,
        worth: &impl Fn(usize, &S) -> f64,
        mut each: impl FnMut(usize, f64),
    ) -> usize {
        let mut at = 0;
        while at + self.per <= limit {
            let worth = worth(at + self.per - 1, &self.look);
            if worth <= 0.0 {
                break;
            }
            each(at, worth);
            at += self.per;
        }
        at
    }
}

/// The least; the greatest number that there is where that is beyond it, as no prompt is so long.
fn common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const HASH_BLOCK: NonZeroU32 = NonZeroU32::new(4).unwrap();

    fn group(index: u32, kind: &str, block_size: u32, sliding_window: u32) -> Group {
        Group { index, kind: kind.to_owned(), block_size, sliding_window }
    }

    fn hit(groups: &[Group], limit: usize, worth: impl Fn(usize, Option<u32>) -> f64) -> Vec<f64> {
        let mut run = vec![9.0];
        Rule::of(groups, HASH_BLOCK, |it| it).longest(limit, 0, |i, look| worth(i, *look), &mut run);
        run
    }

    /// Blocks as a row of letters: `x` is held.
    fn held(rows: &'static [&'static str]) -> impl Fn(usize, Option<u32>) -> f64 {
        let at = |row: &str, i| row.as_bytes().get(i) == Some(&b'x');
        move |i, look| match look {
            Some(group) => f64::from(at(rows[group as usize], i)),
            None => f64::from(rows.iter().any(|it| at(it, i))),
        }
    }

    #[test]
    fn one_group_is_hit_up_to_the_first_block_that_it_lacks() {
        let full = [group(0, "full_attention", 4, 0)];
        assert_eq!(hit(&full, 9, held(&["xxx.x"])), [1.0; 3]);
        assert_eq!(hit(&full, 2, held(&["xxx.x"])), [1.0; 2]);
    }

    #[test]
    fn groups_that_do_not_say_what_they_are_count_together() {
        let both = [group(0, "", 4, 0), group(1, "", 4, 0)];
        assert_eq!(hit(&both, 9, held(&["x..x", ".xx."])), [1.0; 4]);
        assert_eq!(hit(&[], 9, held(&["x..x", ".xx."])), [1.0; 4]);
        // One that decides, and one of a kind that nobody knows.
        let new = [group(0, "full_attention", 4, 0), group(1, "linear_memory", 12, 0)];
        assert_eq!(hit(&new, 9, held(&["xx.x", ".xx."])), [1.0; 2]);
    }

    #[test]
    fn a_window_shortens_a_hit_to_where_it_has_its_blocks() {
        // Nine tokens before the end: three blocks.
        let swa = [group(0, "sliding_window", 4, 10), group(1, "full_attention", 4, 0)];
        assert_eq!(hit(&swa, 9, held(&["...xxx..", "xxxxxxxx"])).len(), 6);
        assert_eq!(hit(&swa, 9, held(&["xx..xx..", "xxxxxxxx"])).len(), 2, "all from the first on");
        assert_eq!(hit(&swa, 9, held(&[".x..xx..", "xxxxxxxx"])).len(), 0);
        assert_eq!(hit(&swa, 9, held(&["xxxxxxxx", "xxxx.xxx"])).len(), 4);
        // Of which nothing is known, one block at least is needed.
        let unknown = [group(0, "sliding_window_mla", 4, 0), group(1, "full_attention", 4, 0)];
        assert_eq!(hit(&unknown, 9, held(&["..x.....", "xxxxxxxx"])).len(), 3);
    }

    #[test]
    fn groups_of_larger_blocks_are_named_by_their_last_hash() {
        let mamba = [group(0, "mamba", 12, 0), group(1, "full_attention", 8, 0)];
        assert_eq!(hit(&mamba, 20, held(&["..x..x..x..x", ".x.x.x.x.x.x.x"])).len(), 12);
        // A part of a block that has not grown to its end.
        assert_eq!(hit(&mamba, 20, held(&["..x..x....xx", ".x.x.x.x.x..."])).len(), 6);
        assert_eq!(hit(&mamba, 5, held(&["..x..x", ".x.x.x"])).len(), 0, "too short for both");
    }

    #[test]
    fn a_model_with_no_group_that_needs_all_blocks_needs_its_last() {
        assert_eq!(hit(&[group(0, "mamba", 8, 0)], 9, held(&["...x...."])).len(), 4);
        assert_eq!(hit(&[group(0, "sliding_window", 4, 9)], 9, held(&["..xx...."])).len(), 4);
    }

    #[test]
    fn what_speculative_decoding_drops_lies_after_the_end() {
        let groups = [group(0, "sliding_window", 4, 9), group(1, "full_attention", 4, 0)];
        let rule = Rule::of(&groups, HASH_BLOCK, |it| it);
        let end = |rows| {
            let held = held(rows);
            let mut run = Vec::new();
            rule.longest(9, 1, |i, look| held(i, *look), &mut run);
            run.len()
        };
        assert_eq!(end(&["..xxx...", "xxxxxxxx"]), 4, "two blocks before block 4");
        assert_eq!(end(&["..xx....", "xxxxxxxx"]), 0);
        assert_eq!(end(&["x.......", "xxxxxxxx"]), 0);
    }

    #[test]
    fn sizes_that_cannot_be_do_no_harm() {
        let odd = [group(0, "full_attention", 4, 0), group(1, "mamba", 6, 0), group(2, "mamba", 2, 0)];
        assert_eq!(hit(&odd, 9, held(&["xxx", "", ""])).len(), 3);
        let vast: Vec<_> =
            (0..40).map(|i| group(i, "sliding_window", (u32::MAX - 3) / 4 * 4 - 4 * i, u32::MAX)).collect();
        assert_eq!(hit(&vast, 9, |_, _| 1.0).len(), 0);
    }

    /// The rule word by word: the greatest end that every group allows.
    fn literally(groups: &[Group], limit: usize, held: &BTreeMap<(u32, usize), f64>) -> Vec<f64> {
        let per = |group: &Group| (group.block_size / HASH_BLOCK.get()) as usize;
        let worth = |group: &Group, block: usize| {
            held.get(&(group.index, (block + 1) * per(group) - 1)).copied().unwrap_or(0.0)
        };
        let has = |group: &Group, block: usize| 0.0 < worth(group, block);
        let is_whole = |group: &Group| group.kind == "full_attention";
        let known: Vec<_> = groups.iter().filter(|it| it.kind != "news").collect();
        let deciding: Vec<_> = known.iter().filter(|it| it.kind != "chunked_local_attention").collect();
        let allows = |group: &Group, end: usize| {
            let blocks = end / per(group);
            let window = group.sliding_window as usize;
            match group.kind.as_str() {
                "full_attention" => (0..blocks).all(|it| has(group, it)),
                "mamba" => has(group, blocks - 1),
                "sliding_window" => {
                    has(group, blocks - 1)
                        && (0..blocks)
                            // Blocks with one of the last `window - 1` tokens.
                            .filter(|it| (end * 4).saturating_sub(window - 1) < (it + 1) * per(group) * 4)
                            .all(|it| has(group, it))
                }
                _ => true,
            }
        };
        if deciding.is_empty() {
            let any = |i: &usize| {
                let all = held.iter().filter(|((_, at), _)| at == i).map(|(_, worth)| *worth);
                Some(all.fold(0.0, f64::max)).filter(|it| 0.0 < *it)
            };
            return (0..limit).map_while(|i| any(&i)).collect();
        }
        let fits = |end: &usize| {
            known.iter().all(|it| end.is_multiple_of(per(it))) && known.iter().all(|it| allows(it, *end))
        };
        let end = (1..=limit).rev().find(fits).unwrap_or(0);
        let of = |i: usize, group: &Group| match is_whole(group) {
            true => worth(group, i / per(group)),
            false => worth(group, end / per(group) - 1),
        };
        let any_whole = deciding.iter().any(|it| is_whole(it));
        let weighing = || deciding.iter().filter(|it| is_whole(it) == any_whole);
        (0..end).map(|i| weighing().map(|it| of(i, it)).fold(1.0, f64::min)).collect()
    }

    fn a_group() -> impl Strategy<Value = (&'static str, u32, u32)> {
        let kind = prop_oneof![
            4 => Just("full_attention"),
            4 => Just("sliding_window"),
            2 => Just("mamba"),
            1 => Just("chunked_local_attention"),
            1 => Just("news"),
        ];
        (kind, prop::sample::select(vec![4_u32, 4, 4, 8, 12]), 1_u32..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn the_hit_is_the_longest_that_all_groups_allow(
            groups in prop::collection::vec(a_group(), 0..4),
            limit in 0_usize..40,
            missing in prop::collection::btree_set((0_u32..4, 0_usize..40), 0..12),
            slow in prop::collection::btree_set((0_u32..4, 0_usize..40), 0..12),
        ) {
            let groups: Vec<_> = groups
                .iter()
                .zip(0..)
                .map(|((kind, size, window), index)| {
                    group(index, kind, *size, if *kind == "sliding_window" { *window } else { 0 })
                })
                .collect();
            let all = (0_u32..4).flat_map(|group| (0_usize..40).map(move |i| (group, i)));
            let held: BTreeMap<_, _> = all
                .filter(|it| !missing.contains(it))
                .map(|it| (it, if slow.contains(&it) { 0.5 } else { 1.0 }))
                .collect();
            let worth = |i: usize, look: Option<u32>| match look {
                Some(group) => held.get(&(group, i)).copied().unwrap_or(0.0),
                None => (0..4).map(|it| held.get(&(it, i)).copied().unwrap_or(0.0)).fold(0.0, f64::max),
            };
            prop_assert_eq!(hit(&groups, limit, worth), literally(&groups, limit, &held));
        }
    }
}
