//! What a model's layers attend to, as far as it decides which blocks are kept, announced and hit (vLLM's
//! `v1/core/single_type_kv_cache_manager.py` and `kv_cache_coordinator.py`).

use std::num::NonZeroU32;

use kvpick_proto::naming::Digest;

use super::pool::{BlockId, Pool};

/// The attention of a model. Layers of one kind share a cache group; all groups take their blocks from one pool.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Attention {
    /// All layers attend to all tokens: one group.
    #[default]
    Full,
    /// Some layers attend to the last `window` tokens only, and make group 0; the others make group 1.
    Hybrid {
        /// The token itself included.
        window: NonZeroU32,
    },
}

/// The kind of one cache group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Group {
    /// Attends to all tokens.
    Full,
    /// Attends to the last so many tokens.
    Window(NonZeroU32),
}

impl Attention {
    /// The cache groups in the order of their numbers.
    #[must_use]
    pub fn groups(self) -> Vec<Group> {
        match self {
            Self::Full => vec![Group::Full],
            Self::Hybrid { window } => vec![Group::Window(window), Group::Full],
        }
    }
}

impl Group {
    /// As vLLM names it in events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Window(_) => "sliding_window",
        }
    }

    /// Leading blocks that the token after `computed` tokens no longer attends to.
    #[must_use]
    pub fn blocks_left_behind(self, computed: usize, block_size: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::Window(window) => (computed + 1).saturating_sub(window.get() as usize) / block_size,
        }
    }

    /// Most blocks that a sequence holds at once while at most `in_flight` tokens are computed per step; `None`
    /// where it holds all.
    #[must_use]
    pub fn most_blocks(self, in_flight: usize, max_model_len: usize, block_size: usize) -> Option<usize> {
        match self {
            Self::Full => None,
            // One more, as the window may begin within a block.
            Self::Window(window) => {
                let tokens = (window.get() as usize - 1 + in_flight).min(max_model_len);
                Some(tokens.div_ceil(block_size) + 1)
            }
        }
    }

    /// Whether the block with that number is registered, where only the ends are kept at which a later prompt can
    /// resume: `ends` in tokens.
    #[must_use]
    pub fn keeps(self, block: usize, ends: &[usize], block_size: usize) -> bool {
        match self {
            Self::Full => true,
            Self::Window(window) => {
                let needed = blocks_of_window(window, block_size);
                ends.iter().map(|end| end / block_size).any(|end| block < end && end <= block + needed)
            }
        }
    }
}

/// What of a prompt need not be computed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hit {
    /// Leading blocks that are skipped.
    pub blocks: usize,
    /// Leading blocks that the group with most of them holds; more than `blocks` where another group holds less.
    pub longest: usize,
    /// What each group holds of the skipped blocks; `None` for those that it does not attend to any more.
    pub by_group: Vec<Vec<Option<BlockId>>>,
}

/// The longest hit on which all groups agree, among the blocks with these hashes.
///
/// Full attention needs every block. A sliding window needs those that cover one token less than the window before the
/// hit's end, or all from the beginning.
#[must_use]
pub fn longest_hit(pool: &Pool, attention: Attention, hashes: &[Digest], block_size: usize) -> Hit {
    match attention {
        Attention::Full => {
            let full = leading_run(pool, 0, hashes);
            Hit { blocks: full.len(), longest: full.len(), by_group: vec![full] }
        }
        Attention::Hybrid { window } => {
            let mut full = leading_run(pool, 1, hashes);
            let longest = full.len();
            let windowed = window_run(pool, 0, &hashes[..longest], blocks_of_window(window, block_size));
            full.truncate(windowed.len());
            Hit { blocks: full.len(), longest, by_group: vec![windowed, full] }
        }
    }
}

/// Blocks that cover all tokens that the next one attends to besides itself.
fn blocks_of_window(window: NonZeroU32, block_size: usize) -> usize {
    (window.get() as usize - 1).div_ceil(block_size)
}

fn leading_run(pool: &Pool, group: usize, hashes: &[Digest]) -> Vec<Option<BlockId>> {
    hashes.iter().map_while(|hash| pool.get(group, hash).map(Some)).collect()
}

/// The longest leading part of `hashes` whose last `needed` blocks are held. A window of the token alone needs none, but
/// a hit ends with a block that is held all the same.
fn window_run(pool: &Pool, group: usize, hashes: &[Digest], needed: usize) -> Vec<Option<BlockId>> {
    let needed = needed.max(1);
    let mut run = vec![None; hashes.len()];
    let mut held = 0;
    for (i, hash) in hashes.iter().enumerate().rev() {
        run[i] = pool.get(group, hash);
        held = if run[i].is_some() { held + 1 } else { 0 };
        if needed <= held {
            run.truncate(i + held);
            return run;
        }
    }
    // All from the beginning, fewer than the window.
    run.truncate(held);
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(tokens: u32) -> Group {
        Group::Window(NonZeroU32::new(tokens).unwrap())
    }

    #[test]
    fn a_window_leaves_whole_blocks_behind() {
        // The token after 20 others attends to 11 to 20 and itself: blocks 0 and 1 of four tokens are passed.
        assert_eq!(window(10).blocks_left_behind(20, 4), 2);
        assert_eq!(window(10).blocks_left_behind(16, 4), 1);
        assert_eq!(window(10).blocks_left_behind(9, 4), 0);
        assert_eq!(Group::Full.blocks_left_behind(1000, 4), 0);
    }

    #[test]
    fn a_window_keeps_the_blocks_before_each_end() {
        let kept =
            |ends: &[usize]| (0..8).filter(|block| window(10).keeps(*block, ends, 4)).collect::<Vec<_>>();
        // Nine tokens before the end, in three blocks; an end within a block is that block's begin.
        assert_eq!(kept(&[32]), [5, 6, 7]);
        assert_eq!(kept(&[31, 0]), [4, 5, 6]);
        assert_eq!(kept(&[31, 12]), [0, 1, 2, 4, 5, 6]);
        assert_eq!(kept(&[3]), [0; 0]);
        assert!((0..8).all(|block| Group::Full.keeps(block, &[], 4)));
    }

    #[test]
    fn a_sequence_holds_a_window_and_what_a_step_computes() {
        assert_eq!(window(10).most_blocks(64, 400, 4), Some(20));
        assert_eq!(window(10).most_blocks(64, 40, 4), Some(11));
        assert_eq!(Group::Full.most_blocks(64, 400, 4), None);
    }
}
