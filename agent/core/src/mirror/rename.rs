//! A mirror whose blocks go by other names.

use kvpick_proto::{naming::BlockKey, words::Place};

use super::Mirror;

impl Mirror {
    /// Every block goes by another name from now on, and one to which `name` gives none is held no more. `aside` says how
    /// many copies of a block wait elsewhere to be stored by their new name. Servers are told that everything went, and
    /// then what there is.
    pub fn rename(
        &mut self,
        name: impl Fn(Place, BlockKey) -> Option<BlockKey>,
        aside: impl Fn(Place, BlockKey) -> u32,
    ) {
        let (blocks, order) = (std::mem::take(&mut self.blocks), std::mem::take(&mut self.order));
        let doubt = std::mem::take(&mut self.doubt).renamed();
        self.start_anew();
        self.doubt = doubt;
        for (place, key) in order.into_values() {
            let Some(block) = blocks.get(&(place, key)).filter(|it| it.copies > 0) else { continue };
            let Some(new) = name(place, key) else { continue };
            let after = block.after.and_then(|it| name(place, it));
            for _ in aside(place, key)..block.copies {
                self.gain(place, new, after);
            }
        }
    }
}
