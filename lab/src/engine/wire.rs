//! Batches of events as vLLM publishes them: msgpack in one of two layouts, block hashes in one of two forms.

use kvpick_proto::naming::{Digest, ExtraKey, ExtraKeyShape};
use rmp::encode;

use super::pool::{Event, Stored};

/// Which generation of vLLM's protocol the engine speaks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum Encoding {
    /// Events are maps; as vLLM 0.32.
    #[default]
    Map,
    /// Events are arrays; as vLLM 0.23.
    Array,
}

impl Encoding {
    /// The version of vLLM that is imitated.
    #[must_use]
    pub const fn version(self) -> &'static str {
        match self {
            Self::Map => "0.32.0",
            Self::Array => "0.23.0",
        }
    }

    /// How that version hashes extra keys.
    #[must_use]
    pub const fn extra_keys(self) -> ExtraKeyShape {
        match self {
            Self::Map => ExtraKeyShape::Tagged,
            Self::Array => ExtraKeyShape::BareWithOffset,
        }
    }

    /// Whether that version's answers to a replay carry the topic (0.26 and later).
    #[must_use]
    pub const fn replays_topic(self) -> bool {
        matches!(self, Self::Map)
    }
}

/// How a block hash is published.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum HashForm {
    /// The low 64 bits as an unsigned integer: vLLM's default.
    #[default]
    Int,
    /// The whole digest.
    Bytes,
}

/// Writes batches.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Layout of events.
    pub encoding: Encoding,
    /// Form of hashes.
    pub hashes: HashForm,
    /// Tokens in a block.
    pub block_size: u32,
    /// Data-parallel rank.
    pub rank: u32,
}

impl Encoder {
    /// The payload of a batch that was published at `time`, in seconds since 1970.
    #[must_use]
    pub fn batch(&self, time: f64, events: &[Event]) -> Vec<u8> {
        let mut out = Out(Vec::with_capacity(64 + events.len() * 64));
        out.array(3);
        sure(encode::write_f64(&mut out.0, time));
        out.array(events.len());
        for event in events {
            match self.encoding {
                Encoding::Map => self.map(&mut out, event),
                Encoding::Array => self.positional(&mut out, event),
            }
        }
        out.uint(u64::from(self.rank));
        out.0
    }

    /// Fields in the order in which vLLM 0.32 declares them; those that are absent by default are left out.
    fn map(&self, out: &mut Out, event: &Event) {
        match event {
            Event::Stored(stored) => {
                out.map(11);
                out.field("type").str("BlockStored");
                self.hashes(out.field("block_hashes"), &stored.hashes);
                self.parent(out.field("parent_block_hash"), stored.parent);
                out.field("token_ids").uints(&stored.tokens);
                out.field("block_size").uint(u64::from(self.block_size));
                out.field("lora_id").nil();
                out.field("medium").str(MEDIUM);
                out.field("lora_name").nil();
                out.field("extra_keys").extra(stored);
                out.field("group_idx").uint(GROUP);
                out.field("kv_cache_spec_kind").str(GROUP_KIND);
            }
            Event::Removed(hash) => {
                out.map(4);
                out.field("type").str("BlockRemoved");
                self.hashes(out.field("block_hashes"), &[*hash]);
                out.field("medium").str(MEDIUM);
                out.field("group_idx").uint(GROUP);
            }
            Event::Cleared => {
                out.map(1);
                out.field("type").str("AllBlocksCleared");
            }
        }
    }

    /// All fields that vLLM 0.23 knows, absent ones as nil.
    fn positional(&self, out: &mut Out, event: &Event) {
        match event {
            Event::Stored(stored) => {
                out.array(12);
                out.str("BlockStored");
                self.hashes(out, &stored.hashes);
                self.parent(out, stored.parent);
                out.uints(&stored.tokens);
                out.uint(u64::from(self.block_size));
                out.nil(); // lora_id
                out.str(MEDIUM);
                out.nil(); // lora_name
                out.extra(stored);
                out.uint(GROUP);
                out.str(GROUP_KIND);
                out.nil(); // kv_cache_spec_sliding_window
            }
            Event::Removed(hash) => {
                out.array(4);
                out.str("BlockRemoved");
                self.hashes(out, &[*hash]);
                out.str(MEDIUM);
                out.uint(GROUP);
            }
            Event::Cleared => {
                out.array(1);
                out.str("AllBlocksCleared");
            }
        }
    }

    fn hashes(&self, out: &mut Out, hashes: &[Digest]) {
        out.array(hashes.len());
        for hash in hashes {
            self.hash(out, *hash);
        }
    }

    fn parent(&self, out: &mut Out, parent: Option<Digest>) {
        match parent {
            Some(parent) => self.hash(out, parent),
            None => out.nil(),
        }
    }

    fn hash(&self, out: &mut Out, hash: Digest) {
        match self.hashes {
            HashForm::Int => out.uint(hash.key().as_u64()),
            HashForm::Bytes => out.bytes(hash.as_bytes()),
        }
    }
}

/// Where all of a GPU's blocks lie.
const MEDIUM: &str = "GPU";

/// The only cache group of a model with full attention.
const GROUP: u64 = 0;

/// Its kind.
const GROUP_KIND: &str = "full_attention";

/// A growing msgpack buffer, which can't fail.
struct Out(Vec<u8>);

impl Out {
    fn field(&mut self, name: &str) -> &mut Self {
        self.str(name);
        self
    }

    fn array(&mut self, len: usize) {
        sure(encode::write_array_len(&mut self.0, length(len)));
    }

    fn map(&mut self, len: usize) {
        sure(encode::write_map_len(&mut self.0, length(len)));
    }

    fn str(&mut self, text: &str) {
        sure(encode::write_str(&mut self.0, text));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        sure(encode::write_bin(&mut self.0, bytes));
    }

    /// In the shortest form, as msgspec writes integers.
    fn uint(&mut self, value: u64) {
        sure(encode::write_uint(&mut self.0, value));
    }

    fn uints(&mut self, values: &[u32]) {
        self.array(values.len());
        for value in values {
            self.uint(u64::from(*value));
        }
    }

    fn nil(&mut self) {
        sure(encode::write_nil(&mut self.0));
    }

    /// One entry per block. Events carry the bare values in every version, whatever form was hashed.
    fn extra(&mut self, stored: &Stored) {
        self.array(stored.extra.len());
        for keys in &stored.extra {
            if keys.is_empty() {
                self.nil();
                continue;
            }
            self.array(keys.len());
            for key in keys {
                match key {
                    ExtraKey::Adapter { name, .. } => self.str(name),
                    ExtraKey::Media { identifier, offset } => {
                        self.array(2);
                        self.str(identifier);
                        sure(encode::write_sint(&mut self.0, *offset));
                    }
                    ExtraKey::Salt(salt) => self.str(salt),
                    ExtraKey::Embeds(digest) => self.bytes(digest),
                }
            }
        }
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("a batch is far smaller than 2^32 of anything")
}

fn sure<T, E: std::fmt::Debug>(result: Result<T, E>) {
    result.expect("writing to memory does not fail");
}
