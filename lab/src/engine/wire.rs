//! Batches of events as vLLM publishes them: msgpack in one of two layouts, block hashes in one of two forms.

use kvpick_proto::naming::{Digest, ExtraKey, ExtraKeyShape};
use rmp::encode;

use super::{
    pool::{Event, Stored},
    version::Version,
};

/// Layout of events.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum Encoding {
    /// Maps, as in vLLM 0.24 to 0.32.
    #[default]
    Map,
    /// Arrays with all fields, as in vLLM 0.23.
    Array,
    /// Arrays that end with the adapter's name, as in vLLM 0.16.
    Array8,
    /// Arrays that end with the medium, as in vLLM 0.11.
    Array7,
}

impl Encoding {
    /// How the latest version with that layout hashes extra keys.
    #[must_use]
    pub const fn extra_keys(self) -> ExtraKeyShape {
        Version::of_encoding(self).extra_keys()
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
                Encoding::Array => self.positional(&mut out, event, 12, 4),
                Encoding::Array8 => self.positional(&mut out, event, 8, 3),
                Encoding::Array7 => self.positional(&mut out, event, 7, 3),
            }
        }
        out.uint(u64::from(self.rank));
        out.0
    }

    /// Fields in the order in which vLLM 0.32 declares them; those that are absent by default are left out.
    fn map(&self, out: &mut Out, event: &Event) {
        match event {
            Event::Stored(stored) => {
                let window = stored.window();
                // Even `extra_keys` is left out where there is nothing to tell them of.
                let more = [!stored.extra.is_empty(), window.is_some(), stored.session.is_some()];
                out.map(10 + more.into_iter().filter(|it| *it).count());
                out.field("type").str("BlockStored");
                self.hashes(out.field("block_hashes"), &stored.hashes);
                self.parent(out.field("parent_block_hash"), stored.parent);
                out.field("token_ids").uints(&stored.tokens);
                out.field("block_size").uint(u64::from(self.block_size));
                out.field("lora_id").uint_or_nil(stored.adapter.as_ref().map(|it| it.id));
                out.field("medium").str(MEDIUM);
                out.field("lora_name").str_or_nil(stored.adapter.as_ref().map(|it| it.name.as_str()));
                if !stored.extra.is_empty() {
                    out.field("extra_keys").extra(stored);
                }
                out.field("group_idx").uint(stored.group as u64);
                out.field("kv_cache_spec_kind").str(stored.kind.name());
                if let Some(window) = window {
                    out.field("kv_cache_spec_sliding_window").uint(u64::from(window));
                }
                if let Some(session) = &stored.session {
                    out.field("session_id").str(session);
                }
            }
            Event::Removed(removed) => {
                out.map(4);
                out.field("type").str("BlockRemoved");
                self.hashes(out.field("block_hashes"), &[removed.hash]);
                out.field("medium").str(MEDIUM);
                out.field("group_idx").uint(removed.group as u64);
            }
            Event::Cleared => {
                out.map(1);
                out.field("type").str("AllBlocksCleared");
            }
        }
    }

    /// The fields that the version knows, absent ones as nil: so many of a store and of a removal, the tag included.
    fn positional(&self, out: &mut Out, event: &Event, stored_fields: usize, removed_fields: usize) {
        match event {
            Event::Stored(stored) => {
                out.array(stored_fields);
                out.str("BlockStored");
                self.hashes(out, &stored.hashes);
                self.parent(out, stored.parent);
                out.uints(&stored.tokens);
                out.uint(u64::from(self.block_size));
                out.uint_or_nil(stored.adapter.as_ref().map(|it| it.id));
                out.str(MEDIUM);
                if 8 <= stored_fields {
                    out.str_or_nil(stored.adapter.as_ref().map(|it| it.name.as_str()));
                }
                if 12 <= stored_fields {
                    if stored.extra.is_empty() {
                        out.nil()
                    } else {
                        out.extra(stored)
                    }
                    out.uint(stored.group as u64);
                    out.str(stored.kind.name());
                    out.uint_or_nil(stored.window());
                }
            }
            Event::Removed(removed) => {
                out.array(removed_fields);
                out.str("BlockRemoved");
                self.hashes(out, &[removed.hash]);
                out.str(MEDIUM);
                if 4 <= removed_fields {
                    out.uint(removed.group as u64);
                }
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

    fn uint_or_nil(&mut self, value: Option<u32>) {
        match value {
            Some(value) => self.uint(u64::from(value)),
            None => self.nil(),
        }
    }

    fn str_or_nil(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.str(text),
            None => self.nil(),
        }
    }

    /// One entry per hash. Events carry the bare values in every version, whatever form was hashed.
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
