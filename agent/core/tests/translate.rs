//! The translator by itself: names, orphans, and what is left out.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod private;

use std::{collections::BTreeSet, num::NonZeroU32};

use kvpick_agent_core::{
    decode::{ExtraItem, Removed, Stored},
    translate::{Output, Reading, Translator},
};
use kvpick_proto::{
    naming::{BlockKey, ExtraKey, ExtraKeyShape},
    words::{Adapter, Tier},
};
use private::{SIZE, canonical, plain, private, stored, tokens};

fn reading(adapters: &[Adapter]) -> Reading<'_> {
    let block_size = NonZeroU32::new(SIZE as u32).unwrap();
    Reading { block_size, shape: ExtraKeyShape::Tagged, adapters }
}

/// The names that are stored.
fn names(outputs: &[Output]) -> Vec<BlockKey> {
    let keys = outputs.iter().filter_map(|it| match it {
        Output::Store(it) => Some(it.keys.clone()),
        _ => None,
    });
    keys.flatten().collect()
}

#[test]
fn orphans_are_placed_in_order_once_their_parent_is_known() {
    let mut translator = Translator::default();
    let path = [0, 1, 2, 0, 1, 2];
    let mut store = |from, to| translator.on_stored(&stored(&path[..to], from), &reading(&[]));
    assert_eq!(store(5, 6), []);
    assert_eq!(store(3, 5), []);
    assert_eq!(store(1, 3), []);
    assert_eq!(translator.counts().orphans, 5);
    // One of them goes meanwhile, in the middle of a store.
    let gone = Removed { keys: vec![private(&path[..2])], ..Removed::default() };
    assert_eq!(translator.on_removed(&gone), []);
    let outputs = translator.on_stored(&stored(&path[..1], 0), &reading(&[]));
    let want: Vec<_> = [1, 3, 4, 5, 6].iter().map(|to| plain(&path[..*to])).collect();
    assert_eq!(names(&outputs), want);
    let parents: Vec<_> = outputs
        .iter()
        .map(|it| match it {
            Output::Store(it) => it.parent,
            other => panic!("{other:?}"),
        })
        .collect();
    let parent = |to: usize| Some(plain(&path[..to]));
    assert_eq!(parents, [None, parent(2), parent(3), parent(5)]);
    assert_eq!(translator.counts().orphans, 0);
}

#[test]
fn orphans_take_up_so_much_and_no_more() {
    let mut translator = Translator::default();
    let orphan = |at: u64| Stored {
        keys: vec![BlockKey::from_u64(at)],
        parent: Some(BlockKey::from_u64(at + 1_000_000)),
        ..stored(&[0], 0)
    };
    for at in 0..70_000 {
        translator.on_stored(&orphan(at), &reading(&[]));
    }
    let counts = translator.counts();
    assert_eq!(counts.orphans + counts.dropped, 70_000);
    assert!((50_000..=65_536).contains(&counts.orphans), "{counts:?}");
    translator.clear();
    assert_eq!(translator.counts().orphans, 0);
}

#[test]
fn extra_keys_enter_the_name_and_untold_ones_leave_a_block_out() {
    let adapters = [Adapter { name: "a".to_owned(), path: "/a".to_owned() }];
    let path = [0, 1, 2];
    let text = |it: &str| ExtraItem::Text(it.to_owned());
    let media = ExtraItem::Media { identifier: "m".to_owned(), offset: -3 };
    let it = Stored {
        lora_name: Some("a".to_owned()),
        extra_keys: vec![(0, vec![text("a"), text("salt")]), (1, vec![text("a"), media])],
        ..stored(&path, 0)
    };
    let extra = |at| {
        let mut keys = vec![ExtraKey::Adapter { name: "a".to_owned(), path: "/a".to_owned() }];
        keys.extend((at == 0).then(|| ExtraKey::Salt("salt".to_owned())));
        keys.extend((at == 1).then(|| ExtraKey::Media { identifier: "m".to_owned(), offset: -3 }));
        keys
    };
    let want: Vec<_> = (1..=3).map(|to| canonical(&path[..to], extra)).collect();
    assert_eq!(names(&Translator::default().on_stored(&it, &reading(&adapters))), want);

    let mut translator = Translator::default();
    assert_eq!(names(&translator.on_stored(&it, &reading(&[]))), [], "an adapter without a path");
    assert_eq!(names(&translator.on_stored(&stored(&[0, 1, 2, 3], 3), &reading(&[]))), [], "what follows");
    assert_eq!((translator.counts().left_out_extra_keys, translator.counts().orphans), (4, 0));

    let bare = Reading { shape: ExtraKeyShape::Bare, ..reading(&adapters) };
    let vague = Stored { extra_keys: vec![(1, vec![text("salt or media")])], ..stored(&path, 0) };
    assert_eq!(names(&Translator::default().on_stored(&vague, &bare)), [plain(&path[..1])]);
    let numbered = Stored { lora_id: Some(1), ..stored(&path, 0) };
    assert_eq!(names(&Translator::default().on_stored(&numbered, &reading(&adapters))), []);
}

#[test]
fn two_engine_names_of_one_content_prove_hidden_keys() {
    let mut translator = Translator::default();
    let path = [0, 1, 2];
    let salted = |from: usize| {
        let mut it = stored(&path, from);
        it.keys.iter_mut().for_each(|key| *key = BlockKey::from_u64(key.as_u64() ^ 1));
        it.parent = it.parent.map(|key| BlockKey::from_u64(key.as_u64() ^ 1));
        it
    };
    assert_eq!(names(&translator.on_stored(&stored(&path, 0), &reading(&[]))).len(), 3);
    let outputs = translator.on_stored(&salted(0), &reading(&[]));
    let forgotten: BTreeSet<_> = outputs
        .iter()
        .map(|it| match it {
            Output::Forget { group: 0, key } => *key,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(forgotten, (1..=3).map(|to| plain(&path[..to])).collect());
    // From then on, whichever comes.
    translator.clear();
    assert_eq!(translator.on_stored(&stored(&path, 0), &reading(&[])), []);
    assert_eq!(translator.on_stored(&salted(0), &reading(&[])), []);
    assert_eq!(translator.on_stored(&salted(1), &reading(&[])), []);
    assert_eq!(translator.counts().orphans, 0);
}

#[test]
fn groups_that_skip_blocks_are_left_out() {
    let mut translator = Translator::default();
    let window = Stored { kind: Some("sliding_window".to_owned()), group: Some(1), ..stored(&[0], 0) };
    let sparse = Stored { tokens: tokens(&[0, 1]), ..stored(&[0], 0) };
    let other_size = Stored { block_size: 2, keys: vec![BlockKey::from_u64(1); 2], ..stored(&[0], 0) };
    for it in [window, sparse, other_size] {
        assert_eq!(translator.on_stored(&it, &reading(&[])), []);
    }
    assert_eq!(translator.counts().left_out_groups, 4);
    let placeholder = Stored { keys: vec![private(&[0])], tier: Some(Tier::Cpu), ..Stored::default() };
    assert_eq!(translator.on_stored(&placeholder, &reading(&[])), []);
    translator.on_stored(&stored(&[0], 0), &reading(&[]));
    assert_eq!(names(&translator.on_stored(&placeholder, &reading(&[]))), [plain(&[0])]);
    assert_eq!(translator.counts().left_out_placeholders, 1);
}

#[test]
fn a_removal_costs_the_same_however_many_stores_have_the_block() {
    let mut translator = Translator::default();
    let keys = vec![BlockKey::from_u64(1)];
    for parent in 0..50_000 {
        let (parent, keys) = (Some(BlockKey::from_u64(1_000 + parent)), keys.clone());
        let it = Stored { keys, parent, tokens: vec![7; SIZE], block_size: SIZE as u32, ..Stored::default() };
        translator.on_stored(&it, &reading(&[]));
    }
    // A look at each store for each of these would take a quarter of an hour.
    let tier = Some(Tier::Cpu);
    translator.on_removed(&Removed { keys: vec![keys[0]; 100_000], tier, ..Removed::default() });
    assert_eq!(translator.counts().orphans, 50_000, "none is of that tier");
    translator.on_removed(&Removed { keys: vec![keys[0]; 49_999], ..Removed::default() });
    assert_eq!(translator.counts().orphans, 1);
    translator.on_removed(&Removed { keys: vec![keys[0]; 2], ..Removed::default() });
    assert_eq!(translator.counts().orphans, 0);
}
