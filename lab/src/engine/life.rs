//! From a start of the engine to its end: its ranks and what they have in common. A restart begins another life in the
//! same process.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, PoisonError, RwLock},
    thread::JoinHandle,
    time::{SystemTime, UNIX_EPOCH},
};

use kvpick_proto::naming::{Algorithm, Hasher};

use super::{
    config::{Config, StartError},
    cost::StepCost,
    driver::{self, Handle},
    generate::Generator,
    limits::Limits,
    metrics::{Metrics, Page},
    publisher::{Publisher, RankEndpoints},
    scheduler::Scheduler,
    version::Version,
    wire::{Encoder, Encoding, HashForm},
};

/// One life of the engine.
#[derive(Debug)]
pub(super) struct Life {
    /// One per data-parallel rank, in order.
    pub(super) ranks: Vec<Handle>,
    /// Where each rank publishes, resolved.
    pub(super) endpoints: Vec<RankEndpoints>,
    pub(super) metrics: Page,
    /// Unix time of the start, in seconds.
    pub(super) created: u64,
    /// The string whose hash is the parent of first blocks.
    pub(super) root: String,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Life {
    /// The rank that is asked for, else the one with the fewest requests. `Err` with the number of ranks where there is
    /// no such rank.
    pub(super) fn rank(&self, asked: Option<usize>) -> Result<&Handle, usize> {
        let chosen = match asked {
            Some(rank) => self.ranks.get(rank),
            None => self.ranks.iter().min_by_key(|rank| rank.load()),
        };
        chosen.ok_or(self.ranks.len())
    }

    /// Whether all ranks run.
    pub(super) fn is_alive(&self) -> bool {
        self.ranks.iter().all(Handle::is_alive)
    }

    /// Ends all ranks and waits for it.
    fn end(&self) {
        self.ranks.iter().for_each(Handle::stop);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// The present life, and what the next one needs.
#[derive(Debug)]
pub(super) struct Lives {
    setup: Mutex<Setup>,
    present: RwLock<Arc<Life>>,
}

/// What does not change from life to life.
#[derive(Debug)]
struct Setup {
    limits: Limits,
    cost: StepCost,
    generator: Generator,
    algorithm: Algorithm,
    root: Option<String>,
    encoding: Encoding,
    hashes: HashForm,
    model: String,
    adapters: usize,
    /// As configured; after the first start as resolved, so that a restart keeps the ports.
    endpoints: Vec<RankEndpoints>,
}

impl Lives {
    /// Starts the first one.
    pub(super) fn begin(config: &Config, limits: Limits, generator: Generator) -> Result<Self, StartError> {
        let endpoints: Result<Vec<_>, _> =
            (0..config.ranks).map(|rank| config.endpoints.of_rank(rank)).collect();
        let mut setup = Setup {
            limits,
            cost: config.cost,
            generator,
            algorithm: config.algorithm,
            root: config.root.clone(),
            encoding: config.encoding.unwrap_or_else(|| config.version.encoding()),
            hashes: config.hashes,
            model: config.models.first().cloned().unwrap_or_default(),
            adapters: config.adapters.len(),
            endpoints: endpoints?,
        };
        let life = setup.start()?;
        setup.endpoints.clone_from(&life.endpoints);
        Ok(Self { setup: Mutex::new(setup), present: RwLock::new(Arc::new(life)) })
    }

    /// The present one.
    pub(super) fn present(&self) -> Arc<Life> {
        Arc::clone(&self.present.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the present one and begins another. Blocks for the time that threads take to end.
    pub(super) fn restart(&self) -> Result<(), StartError> {
        let setup = self.setup.lock().unwrap_or_else(PoisonError::into_inner);
        self.present().end();
        let life = Arc::new(setup.start()?);
        *self.present.write().unwrap_or_else(PoisonError::into_inner) = life;
        Ok(())
    }

    /// Ends the present one. Blocks for the time that threads take to end.
    pub(super) fn end(&self) {
        let _no_restart = self.setup.lock().unwrap_or_else(PoisonError::into_inner);
        self.present().end();
    }

    /// A hasher as the engine's own, but from that root.
    pub(super) fn hasher(&self, root: &str) -> Hasher {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner).hasher(root)
    }
}

impl Setup {
    fn hasher(&self, root: &str) -> Hasher {
        Hasher::with_root(self.algorithm, root, self.limits.version.extra_keys())
    }

    fn start(&self) -> Result<Life, StartError> {
        let version: Version = self.limits.version;
        // What vLLM then takes is random bytes; the hash of a random string is as unpredictable.
        let random =
            || format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        let default_root = || version.default_root(self.algorithm).map_or_else(random, str::to_owned);
        let root = self.root.clone().unwrap_or_else(default_root);
        let page = Page::new(&self.model, &self.limits, self.algorithm.name(), self.adapters)?;
        let mut life = Life {
            ranks: Vec::new(),
            endpoints: Vec::new(),
            metrics: page,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            root,
            threads: Mutex::default(),
        };
        for (rank, endpoints) in (0..).zip(&self.endpoints) {
            let encoder = Encoder {
                encoding: self.encoding,
                hashes: self.hashes,
                block_size: self.limits.block_size.get(),
                rank,
            };
            let metrics = Metrics::new(&life.metrics, rank)?;
            let publisher = match Publisher::start(endpoints, encoder, version) {
                Ok(publisher) => publisher,
                Err(error) => {
                    life.end();
                    return Err(error.into());
                }
            };
            life.endpoints.push(publisher.endpoints().clone());
            let hasher = self.hasher(&life.root);
            let scheduler = Scheduler::new(self.limits, self.cost, self.generator.clone(), hasher);
            let (handle, thread) = driver::start(scheduler, publisher, metrics);
            life.ranks.push(handle);
            life.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(life)
    }
}
