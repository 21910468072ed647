//! Blocks of an engine whose hashes nobody can reproduce get names that everybody can.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod private;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    time::Instant,
};

use kvpick_agent_core::{
    decode::{Removed, Stored},
    engine::{Config, Engine, FLUSH_EVERY},
    load::Metrics,
    mirror::Mirror,
    node::Node,
};
use kvpick_proto::{
    naming::{Algorithm, BlockKey, DEFAULT_ROOT, ExtraKeyShape, Hasher},
    words::{
        AgentMessage, Description, Hello, KeyKind, KeyState, PROTOCOL, Place, ReplicaName, ServerMessage,
        Step, Tier, Welcome,
    },
};
use private::{
    Path, SIZE, plain, private, stored,
    wire::{event, removed_event, stored_event},
};
use proptest::prelude::*;

const CPU: Place = Place { group: 0, tier: Tier::Cpu };

fn engine() -> Engine {
    let name = ReplicaName { address: "10.0.0.1:8000".parse().unwrap(), rank: 0 };
    let config = Config::new(name);
    Engine::new(config, Instant::now(), 0)
}

/// An engine with private names, an agent that hears it, a server, and what a mirror would hold by the private names: at
/// least, where no store from the start of a prompt counts as another copy, and at most, where each does.
struct World {
    engine: Engine,
    published: u64,
    raw: Mirror,
    most: Mirror,
    view: BTreeSet<(Place, BlockKey)>,
    /// All blocks that there ever were.
    paths: BTreeMap<BlockKey, Path>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let (mut raw, most) = (Mirror::new(), Mirror::new());
        raw.set_partial();
        let (view, paths) = (BTreeSet::new(), BTreeMap::new());
        Self { engine: engine(), published: 0, raw, most, view, paths, now: Instant::now() }
    }

    fn publish(&mut self, event: &[u8]) {
        let mut payload = vec![0x93, 0x00, 0x91];
        payload.extend_from_slice(event);
        payload.push(0x00);
        let frames = vec![Vec::new(), self.published.to_be_bytes().to_vec(), payload];
        self.published += 1;
        self.engine.on_frames(frames, self.now, 0).unwrap();
        self.flush();
    }

    fn flush(&mut self) {
        for step in self.engine.take_change(self.now).into_iter().flat_map(|it| it.steps) {
            match step {
                Step::Gained { place, keys, .. } => self.view.extend(keys.iter().map(|it| (place, *it))),
                Step::Lost { place, keys } => keys.iter().for_each(|it| {
                    self.view.remove(&(place, *it));
                }),
                Step::Cleared => self.view.clear(),
            }
        }
    }

    fn store(&mut self, it: &Stored) {
        self.raw.store(it);
        let parent = it.parent.or(Some(BlockKey::from_u64(0)));
        self.most.store(&Stored { parent, ..it.clone() });
        self.publish(&stored_event(it));
    }

    fn remove(&mut self, key: BlockKey, tier: Tier) {
        let removed = Removed { keys: vec![key], tier: Some(tier), group: None, remaining: Vec::new() };
        self.raw.remove(&removed);
        self.most.remove(&removed);
        self.publish(&removed_event(&removed));
    }

    fn clear(&mut self) {
        self.raw.clear();
        self.raw.set_partial();
        self.most.clear();
        self.publish(&event("AllBlocksCleared", 0));
    }

    fn is_translated(&self) -> bool {
        self.engine.provisional_description().is_translated()
    }

    fn check(&self) {
        let is_translated = self.is_translated();
        let held = |path: &[u8], place| self.raw.copies(place, private(path)) > 0;
        let may_be = |path: &[u8], place| self.most.copies(place, private(path)) > 0;
        let mut may = BTreeSet::new();
        for path in self.paths.values() {
            let name = if is_translated { plain(path) } else { private(path) };
            for place in [Place::GPU, CPU].into_iter().filter(|it| may_be(path, *it)) {
                may.insert((place, name));
                let copies =
                    (self.engine.mirror().copies(place, name), self.most.copies(place, private(path)));
                assert!(copies.0 <= copies.1, "{path:?}: {copies:?}");
            }
            // What a prompt can hit must be there; a block whose parent went is of no use to anybody.
            let leads = (1..=path.len()).all(|to| held(&path[..to], Place::GPU));
            if leads || (!is_translated && held(path, Place::GPU)) {
                assert!(self.view.contains(&(Place::GPU, name)), "{path:?} is not known");
            }
        }
        assert!(self.view.is_subset(&may), "blocks that are not there: {:?}", self.view.difference(&may));
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A request, of whose blocks the engine holds some already.
    Store(Path),
    /// The same without a look at what is there: another copy of all from that depth on.
    Copy(Path, usize),
    Remove(usize),
    Offload(usize),
    Evict(usize),
    Clear,
    /// The metrics name an algorithm that nobody can reproduce.
    Label,
}

fn path() -> impl Strategy<Value = Path> {
    proptest::collection::vec(0_u8..3, 1..6)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => path().prop_map(Op::Store),
        4 => (path(), 0_usize..5).prop_map(|(path, from)| Op::Copy(path, from)),
        9 => any::<usize>().prop_map(Op::Remove),
        2 => any::<usize>().prop_map(Op::Offload),
        2 => any::<usize>().prop_map(Op::Evict),
        1 => Just(Op::Label),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let some = prop_oneof![60 => op(), 1 => Just(Op::Clear)];
    proptest::collection::vec(some, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// `unheard`: what the engine held before the agent heard of it.
    #[test]
    fn no_block_is_lost_and_none_invented(unheard in proptest::collection::vec(path(), 0..6), ops in ops()) {
        let mut world = World::new();
        // Copies on the GPU, in truth.
        let mut truth: BTreeMap<Path, u32> = BTreeMap::new();
        for path in &unheard {
            (1..=path.len()).for_each(|to| *truth.entry(path[..to].to_vec()).or_default() = 1);
        }
        for op in ops {
            let nth = |at: usize| truth.keys().nth(at % truth.len().max(1)).cloned();
            match &op {
                Op::Store(path) | Op::Copy(path, _) => {
                    let hit = (1..=path.len()).take_while(|to| truth.contains_key(&path[..*to])).count();
                    let from = if let Op::Copy(_, from) = &op { hit.min(*from) } else { hit };
                    if from >= path.len() {
                        continue;
                    }
                    for to in from + 1..=path.len() {
                        *truth.entry(path[..to].to_vec()).or_default() += 1;
                        world.paths.insert(private(&path[..to]), path[..to].to_vec());
                    }
                    world.store(&stored(path, from));
                }
                Op::Remove(at) => if let Some(path) = nth(*at) {
                    let copies = truth.get_mut(&path).unwrap();
                    *copies -= 1;
                    if *copies == 0 {
                        truth.remove(&path);
                    }
                    world.remove(private(&path), Tier::Gpu);
                },
                Op::Offload(at) => if let Some(path) = nth(*at) {
                    let keys = vec![private(&path)];
                    world.store(&Stored { keys, tier: Some(Tier::Cpu), ..Stored::default() });
                },
                Op::Evict(at) => if let Some(path) = nth(*at) {
                    world.remove(private(&path), Tier::Cpu);
                },
                Op::Clear => {
                    truth.clear();
                    world.clear();
                }
                Op::Label => {
                    let text = "vllm:cache_config_info{prefix_caching_hash_algo=\"builtin\",block_size=\"4\"} 1\n";
                    let renames = !world.is_translated() && !world.raw.is_empty();
                    world.engine.on_metrics(Metrics::parse(text, 0), world.now, world.now, 0);
                    assert!(!renames || world.engine.flush_due().is_some());
                    world.flush();
                }
            }
            world.check();
        }
    }
}

#[test]
fn at_the_eighth_misfit_everything_is_renamed_at_once() {
    let mut world = World::new();
    let chains: Vec<Path> = (0..8).map(|it| vec![it, 1, 2]).collect();
    for (at, chain) in chains.iter().enumerate() {
        for to in 1..=3 {
            world.paths.insert(private(&chain[..to]), chain[..to].to_vec());
        }
        world.store(&stored(&chain[..1], 0));
        world.store(&stored(chain, 1));
        assert_eq!(world.is_translated(), at == 7);
        world.check();
    }
    let it = world.engine.provisional_description();
    let domain = it.domain.as_ref().unwrap();
    assert_eq!((domain.algorithm, domain.root.as_str()), (Algorithm::Sha256Cbor, DEFAULT_ROOT));
    assert_eq!((domain.block_size.get(), domain.extra_keys), (SIZE as u32, ExtraKeyShape::Tagged));
    assert_eq!(it.key_kinds[0].state, KeyState::Translated);
    assert_eq!(world.view.len(), 24);
    assert_eq!(world.engine.translation().translated, 24);

    // A block that vLLM could have named: from then on its own names are those that count.
    let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, "42", ExtraKeyShape::Tagged);
    let keys = hasher.chain(NonZeroU32::new(SIZE as u32).unwrap(), &[9; SIZE], |_| Vec::new());
    let fitting = Stored { keys: keys.clone(), tokens: vec![9; SIZE], block_size: 4, ..Stored::default() };
    world.store(&fitting);
    assert!(!world.is_translated());
    assert!(world.view.remove(&(Place::GPU, keys[0])));
    world.check();
}

#[test]
fn a_server_never_has_names_of_two_kinds() {
    let mut node = Node::new(4);
    let mut now = Instant::now();
    let name = ReplicaName { address: "10.0.0.1:8000".parse().unwrap(), rank: 0 };
    let config = Config::new(name);
    let handle = node.add_engine(config, now, 0);
    let metrics = Metrics::parse("vllm:num_requests_running 0\n", 0);
    node.engine(handle).unwrap().on_metrics(metrics, now, now, 0);
    let (node_name, version, token) = ("n".to_owned(), String::new(), String::new());
    let id = node.open(Hello { protocol: PROTOCOL, node: node_name, epoch: 1, version, token }, now);
    let welcome = Welcome { protocol: PROTOCOL, server: "s".to_owned() };
    node.on_message(id, ServerMessage::Welcome(welcome), now).unwrap();

    let mut described: Option<Description> = None;
    let mut held: BTreeSet<BlockKey> = BTreeSet::new();
    let mut named = None;
    let paths: Vec<Path> = (0..12).flat_map(|it| [vec![it], vec![it, 1]]).collect();
    let of = |name: fn(&[u8]) -> BlockKey| paths.iter().map(|it| name(it)).collect::<BTreeSet<_>>();
    let (old, new) = (of(private), of(plain));
    let mut hear = |node: &mut Node, now, most: usize| {
        for _ in 0..most {
            let Some(message) = node.next_message(id, now) else { return };
            match message {
                AgentMessage::Describe(_, it) => {
                    match &described {
                        Some(before) if it.renames(before) => held.clear(),
                        Some(_) => (),
                        None => {
                            node.on_message(id, ServerMessage::Accepted(handle), now).map(|_| ()).unwrap()
                        }
                    }
                    described = Some(*it);
                }
                AgentMessage::Change(_, change) => apply(&mut held, &change.steps),
                AgentMessage::Copy(_, chunk) => {
                    let all = named.get_or_insert_with(BTreeSet::new);
                    if chunk.first {
                        all.clear();
                    }
                    apply(all, &chunk.steps);
                    if chunk.last {
                        held = named.take().unwrap();
                    }
                }
                _ => (),
            }
            let is_translated = described.as_ref().is_some_and(Description::is_translated);
            assert!(held.is_subset(if is_translated { &new } else { &old }), "{held:?}");
        }
        assert!(most < 1_000, "it has no end");
    };
    hear(&mut node, now, 999);
    for (at, path) in paths.iter().enumerate() {
        let payload =
            [&[0x93, 0x00, 0x91][..], &stored_event(&stored(path, path.len() - 1)), &[0x00]].concat();
        let frames = vec![Vec::new(), (at as u64).to_be_bytes().to_vec(), payload];
        node.engine(handle).unwrap().on_frames(frames, now, 0).unwrap();
        now += FLUSH_EVERY;
        // Messages stay behind, so that some of what was announced is not said yet when all is renamed.
        let is_renamed = node.engines()[&handle].provisional_description().is_translated();
        hear(&mut node, now, if is_renamed { 3 } else { usize::from(at < 9) });
        node.on_time(handle, now, 0);
    }
    now += FLUSH_EVERY;
    node.on_time(handle, now, 0);
    hear(&mut node, now, 999);
    assert_eq!(held, new);
}

fn apply(held: &mut BTreeSet<BlockKey>, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Gained { keys, .. } => held.extend(keys),
            Step::Lost { keys, .. } => held.retain(|it| !keys.contains(it)),
            Step::Cleared => held.clear(),
        }
    }
}

#[test]
fn kinds_that_events_do_not_tell_are_said_to_be_unverified() {
    let states = |version: &str| {
        let mut engine = engine();
        engine.on_version(version.to_owned());
        let text = "vllm:cache_config_info{prefix_caching_hash_algo=\"builtin\",block_size=\"4\"} 1\n";
        engine.on_metrics(Metrics::parse(text, 0), Instant::now(), Instant::now(), 0);
        let kinds = &engine.provisional_description().key_kinds;
        let told = |it: &&kvpick_proto::words::KeyKindStatus| it.state == KeyState::Translated;
        kinds.iter().filter(told).map(|it| it.kind).collect::<Vec<_>>()
    };
    use KeyKind::{Adapter, Embeds, Media, Plain, Salt};
    assert_eq!(states("0.10.1"), [Plain]);
    assert_eq!(states("0.16.0"), [Plain, Adapter]);
    assert_eq!(states("0.18.1"), [Plain, Adapter, Embeds]);
    assert_eq!(states("0.20.2"), [Plain, Adapter, Salt, Media, Embeds]);
}
