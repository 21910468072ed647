//! From a prompt to a replica: which replicas may serve it, how they name its blocks, which of them holds most of it
//! and is least busy.

use std::{collections::BTreeMap, time::Instant};

use kvpick_proto::{
    naming::{BlockKey, Domain, ExtraKey, Hasher},
    words::ReplicaName,
};

use crate::{
    among::Among,
    hit::Rule,
    index::{GPU_ONLY, Scale},
    memo::Memo,
    outcome::{Reason, Refusal, Tier},
    parity::Made,
    prompts::Prompt,
    replicas::{Knowledge, Replica, ReplicaId, Replicas},
    runs::Runs,
    score::{Offer, Weights},
};

/// Most domains for which one request is chained. Replicas beyond count as not known.
pub const MOST_DOMAINS: usize = 4;

/// What a block counts that this server sent there and no event spoke of: less than a fact, more than nothing.
const ROUTED_WORTH: f64 = 0.8;

/// How a prompt's blocks are named by some replicas: their domain, and the adapter that the request asks for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Naming {
    /// The replicas' domain.
    pub domain: Domain,
    /// Name and path of the adapter, where the request's model is one.
    pub adapter: Option<(String, String)>,
}

/// The blocks of a request's prompts under one [`Naming`], a list per prompt.
pub type Chains = BTreeMap<Naming, Vec<Vec<BlockKey>>>;

/// What a request asks for, as far as picking goes.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The model or adapter; `None` where the client named none.
    pub model: Option<&'a str>,
    /// The prompts, or why they are not known.
    pub prompts: Result<&'a [Prompt], Reason>,
    /// Whether vLLM looks into its cache for this request.
    pub reads_cache: bool,
    /// Whether the route takes the header that names a data-parallel rank.
    pub honours_rank: bool,
    /// How this server made the prompts; `None` where it did not, so that they tell nothing of its parity.
    pub made: Option<Made>,
    /// Whether such prompts were seen not to be the engines'; [`crate::world::World::pick`] finds it out by itself.
    pub distrusted: bool,
}

/// A pick.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// What it is based on.
    pub tier: Tier,
    /// Why on nothing better.
    pub reason: Reason,
    /// The replica, then the next best at another address; empty when there is no opinion.
    pub replicas: Vec<ReplicaId>,
    /// The data-parallel rank to be named to the engine, where several share the replica's address. Where the route
    /// takes no such word it is `None`, and the replica stands for all ranks behind its address.
    pub rank: Option<u32>,
    /// Tokens of all prompts; 0 when not known.
    pub prompt_tokens: u64,
    /// Prompt tokens that the replica's cache will save, by what is known of it.
    pub predicted_tokens: u64,
    /// Tokens per block where the replica was picked for its blocks; 0 else.
    pub block_size: u32,
    /// Set where no replica is to have it.
    pub refusal: Option<Refusal>,
}

impl Pick {
    /// That replica and no other.
    #[must_use]
    pub fn pinned(id: ReplicaId) -> Self {
        Self { replicas: vec![id], ..Self::of(Tier::Pinned, Reason::OK) }
    }

    /// None: the client is told so.
    #[must_use]
    pub fn refused(refusal: Refusal) -> Self {
        Self { refusal: Some(refusal), ..Self::of(Tier::Refused, refusal.reason()) }
    }

    const fn of(tier: Tier, reason: Reason) -> Self {
        Self {
            tier,
            reason,
            replicas: Vec::new(),
            rank: None,
            prompt_tokens: 0,
            predicted_tokens: 0,
            block_size: 0,
            refusal: None,
        }
    }
}

/// The replicas that may serve a model, those that are out left aside as long as one is in; and whether the model is
/// known at all: if not, any replica may, to tell the client so. All of that among those that the gateway allows.
#[must_use]
pub fn candidates(replicas: &Replicas, model: Option<&str>, among: &Among) -> (Vec<ReplicaId>, bool) {
    let allowed = || replicas.iter().filter(|(_, it)| !it.spec.is_away && among.has(it.spec.name.address));
    let serving = |(id, replica): (ReplicaId, &Replica)| match model {
        Some(model) => replica.serves(model).then_some(id),
        None => Some(id),
    };
    let mut all: Vec<_> = allowed().filter_map(serving).collect();
    let known = !all.is_empty();
    if !known {
        all = allowed().map(|(id, _)| id).collect();
    }
    let healthy: Vec<_> = all.iter().copied().filter(|it| replicas[*it].health.is_in()).collect();
    (if healthy.is_empty() { all } else { healthy }, known)
}

/// How the candidates name the blocks of a request for that model; at most [`MOST_DOMAINS`], those of the most
/// candidates first.
#[must_use]
pub fn namings(replicas: &Replicas, candidates: &[ReplicaId], model: Option<&str>) -> Vec<Naming> {
    let mut count: BTreeMap<Naming, usize> = BTreeMap::new();
    for id in candidates {
        *count.entry(naming(&replicas[*id], model)).or_default() += 1;
    }
    let mut namings: Vec<_> = count.into_iter().collect();
    namings.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    namings.into_iter().map(|(naming, _)| naming).take(MOST_DOMAINS).collect()
}

/// Names the blocks of prompts. The only part of a pick that takes time; needs no lock.
#[must_use]
pub fn chain(namings: Vec<Naming>, prompts: &[Prompt], salt: Option<&str>) -> Chains {
    chain_with(None, namings, prompts, salt)
}

/// The same, with names that are kept in a memo.
#[must_use]
pub fn chain_with(
    memo: Option<&dyn Memo>,
    namings: Vec<Naming>,
    prompts: &[Prompt],
    salt: Option<&str>,
) -> Chains {
    let of = |naming: &Naming| {
        let block_size = naming.domain.block_size;
        let adapter = naming.adapter.as_ref();
        let extra = |prompt: &Prompt, i: usize| {
            let adapter =
                adapter.map(|(name, path)| ExtraKey::Adapter { name: name.clone(), path: path.clone() });
            let salt = salt.filter(|_| i == 0).map(|it| ExtraKey::Salt(it.to_owned()));
            // In the order in which vLLM puts them together (`v1/core/kv_cache_utils.py`).
            let media = media_of(prompt, i, block_size.get() as usize);
            adapter.into_iter().chain(media).chain(salt).collect()
        };
        if let Some(memo) = memo {
            let mut runs = Runs::new(memo, naming);
            return prompts.iter().map(|it| runs.keys(it, salt.is_some(), |i| extra(it, i))).collect();
        }
        let mut hasher = Hasher::new(&naming.domain);
        prompts.iter().map(|it| hasher.chain(block_size, &it.ids, |i| extra(it, i))).collect()
    };
    namings.into_iter().map(|it| (it.clone(), of(&it))).collect()
}

/// The keys of the media that overlap a prompt's block `i`.
fn media_of(prompt: &Prompt, i: usize, block_size: usize) -> impl Iterator<Item = ExtraKey> {
    let start = i * block_size;
    prompt.media_within(start, start + block_size).map(move |it| ExtraKey::Media {
        identifier: it.identifier.clone(),
        offset: it.offset as i64 - start as i64,
    })
}

/// Picks. Deterministic; `tie` decides between replicas of equal cost.
#[must_use]
pub fn pick(
    replicas: &Replicas,
    candidates: &[ReplicaId],
    ask: &Ask<'_>,
    chains: &Chains,
    weights: &Weights,
    tie: u64,
    now: Instant,
) -> Pick {
    let prompts = ask.prompts.unwrap_or(&[]);
    let prompt_tokens = prompts.iter().map(|it| it.ids.len() as u64).sum();
    let mut offers: Vec<_> = candidates
        .iter()
        .map(|id| {
            let replica = &replicas[*id];
            let naming = naming(replica, ask.model);
            let is_rank_known = ask.honours_rank || !replica.is_by_header();
            let hit = match chains.get(&naming) {
                Some(chains) if ask.reads_cache && is_rank_known => {
                    hit(replica, prompts, chains, &naming.domain, ask.distrusted, now)
                }
                Some(_) | None => Hit::default(),
            };
            let load = replica.busy.estimate(weights.prefill_rate, now);
            let offer = Offer { prompt_tokens, saved_tokens: hit.saved_tokens, fill: replica.fill(), load };
            (weights.cost(&offer), shuffled(id.number(), tie), *id, hit, naming)
        })
        .collect();
    offers.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));

    let best = offers.first();
    let (tier, reason) = match best {
        None => (Tier::NoOpinion, Reason::NO_REPLICA),
        Some((_, _, id, _, naming)) => basis(&replicas[*id], ask, chains.contains_key(naming)),
    };
    let by_header = best.filter(|it| replicas[it.2].is_by_header());
    let by_blocks = matches!(tier, Tier::Precise | Tier::Approximate);
    Pick {
        tier,
        reason,
        prompt_tokens,
        predicted_tokens: best.filter(|_| by_blocks).map_or(0, |it| it.3.predicted_tokens),
        block_size: best.filter(|_| by_blocks).map_or(0, |it| it.4.domain.block_size.get()),
        rank: by_header.filter(|_| ask.honours_rank).map(|it| replicas[it.2].spec.name.rank),
        replicas: best.into_iter().map(|it| it.2).chain(next(replicas, &offers)).collect(),
        refusal: None,
    }
}

/// Whom to try where the best does not answer. It has to be at another address, as ranks of one fail together; and one
/// that has no such rank would refuse the header that is set for the best.
fn next(replicas: &Replicas, offers: &[(f64, u64, ReplicaId, Hit, Naming)]) -> Option<ReplicaId> {
    let (best, others) = offers.split_first()?;
    let best = replicas[best.2].spec.name;
    let elsewhere: Vec<_> =
        others.iter().map(|it| it.2).filter(|it| replicas[*it].spec.name.address != best.address).collect();
    let has_rank = |id: &&ReplicaId| {
        let address = replicas[**id].spec.name.address;
        best.rank == 0 || replicas.find(&ReplicaName { address, rank: best.rank }).is_some()
    };
    elsewhere.iter().find(has_rank).or_else(|| elsewhere.first()).copied()
}

/// The keys of the request as that replica names them.
#[must_use]
pub fn keys_for<'a>(replica: &Replica, model: Option<&str>, chains: &'a Chains) -> &'a [Vec<BlockKey>] {
    chains.get(&naming(replica, model)).map_or(&[], Vec::as_slice)
}

/// What a pick of that replica is based on, and why on nothing better.
fn basis(replica: &Replica, ask: &Ask<'_>, chained: bool) -> (Tier, Reason) {
    let prompts = match ask.prompts {
        Ok(prompts) => prompts,
        Err(reason) => return (Tier::Load, reason),
    };
    if !ask.honours_rank && replica.is_by_header() {
        return (Tier::Load, Reason::RANK_NOT_HONOURED);
    }
    match replica.facts() {
        Err(reason) => (Tier::Approximate, reason),
        Ok(_) if ask.distrusted => (Tier::Approximate, Reason::PARITY_LOST),
        Ok(_) if !chained => (Tier::Approximate, Reason::TOO_MANY_DOMAINS),
        Ok(_) if matches!(replica.knowledge, Knowledge::Stale { .. }) => (Tier::Precise, Reason::STALE),
        Ok(_) if prompts.iter().any(|it| it.is_cut) => (Tier::Precise, Reason::MEDIA_PREFIX),
        Ok(_) => (Tier::Precise, Reason::OK),
    }
}

fn naming(replica: &Replica, model: Option<&str>) -> Naming {
    let adapter = model.and_then(|name| Some((name, replica.adapter_path(name)?)));
    Naming {
        domain: replica.chain_domain(),
        adapter: adapter.map(|(name, path)| (name.to_owned(), path.to_owned())),
    }
}

/// What of a request's prompts a replica has.
#[derive(Clone, Copy, Debug, Default)]
struct Hit {
    saved_tokens: f64,
    predicted_tokens: u64,
}

/// What the engine finds of each prompt, by vLLM's rule; see [`Prompt::reusable_blocks`].
fn hit(
    replica: &Replica,
    prompts: &[Prompt],
    chains: &[Vec<BlockKey>],
    domain: &Domain,
    distrusted: bool,
    now: Instant,
) -> Hit {
    let description = replica.description.as_ref();
    let tiers = description.map_or(&[][..], |it| &it.tier_weights);
    let tiers = if tiers.is_empty() { GPU_ONLY } else { tiers };
    let groups = description.map_or(&[][..], |it| &it.groups);
    let rule = Rule::of(groups, domain.block_size, |group| replica.holdings.scale(tiers, group));
    let trust = if replica.facts().is_ok() && !distrusted { replica.trust() } else { 0.0 };
    let complete = 0.0 < trust && description.is_some_and(|it| is_complete(&it.completeness));
    let dropped = description.map_or(0, |it| it.hit_blocks_dropped as usize);
    // What was sent there and not spoken of counts as held in every group.
    let worth_of = |key: BlockKey, scale: &Scale| {
        let held = if 0.0 < trust { f64::from(scale.of(replica.holdings.places(key))) * trust } else { 0.0 };
        if 0.0 < held {
            held
        } else if replica.expected.has(key, now) {
            1.0
        } else if !complete && replica.routed.has(key, now) {
            ROUTED_WORTH
        } else {
            0.0
        }
    };
    let block_size = domain.block_size.get() as usize;
    let mut hit = Hit::default();
    let mut run = Vec::new();
    for (prompt, keys) in prompts.iter().zip(chains) {
        let most = keys.len().min(prompt.reusable_blocks(block_size));
        rule.longest(most, dropped, |i, scale| worth_of(keys[i], scale), &mut run);
        hit.predicted_tokens += (run.len() * block_size) as u64;
        hit.saved_tokens += run.iter().sum::<f64>() * block_size as f64;
    }
    hit
}

const fn is_complete(it: &kvpick_proto::words::Completeness) -> bool {
    matches!(it, kvpick_proto::words::Completeness::Complete)
}

/// A number that depends on both, evenly (splitmix64's finalizer).
const fn shuffled(id: u64, tie: u64) -> u64 {
    let mut z = tie.wrapping_add(id.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
