//! What besides tokens enters a block's hash.

/// One extra key of one block, in the order in which vLLM lists them: adapter, media, salt, embeddings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExtraKey {
    /// A LoRA adapter; enters every block.
    Adapter {
        /// Its name as clients say it.
        name: String,
        /// Where the engine loaded it from: `root` of its card in `/v1/models`.
        path: String,
    },
    /// A media item that overlaps the block.
    Media {
        /// vLLM's identifier of the item.
        identifier: String,
        /// Item's start less the block's start, in tokens; negative when it began before the block.
        offset: i64,
    },
    /// A request's `cache_salt`; enters the first block only.
    Salt(String),
    /// Digest of the prompt embeddings that the block covers.
    Embeds(Vec<u8>),
}

/// The form in which an engine version hashes its extra keys.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ExtraKeyShape {
    /// vLLM 0.11.2 to 0.18: bare values, media without an offset.
    Bare,
    /// vLLM 0.19.1 to 0.30: bare values, media as (identifier, offset).
    BareWithOffset,
    /// vLLM 0.31 and later: every key is a tuple that begins with its kind.
    Tagged,
}

/// A serializable value, as far as block hashes need them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Item<'a> {
    /// A string that is a constant of vLLM's source: one object, however often it occurs (pickle tells).
    Tag(&'static str),
    Str(&'a str),
    Bytes(&'a [u8]),
    Int(i64),
    Tuple(Vec<Self>),
}

impl ExtraKeyShape {
    pub(super) fn items(self, keys: &[ExtraKey]) -> Vec<Item<'_>> {
        keys.iter().map(|key| self.item(key)).collect()
    }

    fn item(self, key: &ExtraKey) -> Item<'_> {
        let (tag, parts) = match key {
            ExtraKey::Adapter { name, path } => match self {
                Self::Tagged => ("lora", vec![Item::Str(name), Item::Str(path)]),
                Self::Bare | Self::BareWithOffset => return Item::Str(name),
            },
            ExtraKey::Media { identifier, offset } => match self {
                Self::Tagged => ("mm", vec![Item::Str(identifier), Item::Int(*offset)]),
                Self::BareWithOffset => {
                    return Item::Tuple(vec![Item::Str(identifier), Item::Int(*offset)]);
                }
                Self::Bare => return Item::Str(identifier),
            },
            ExtraKey::Salt(salt) => match self {
                Self::Tagged => ("cache_salt", vec![Item::Str(salt)]),
                Self::Bare | Self::BareWithOffset => return Item::Str(salt),
            },
            ExtraKey::Embeds(digest) => match self {
                Self::Tagged => ("prompt_embeds", vec![Item::Bytes(digest)]),
                Self::Bare | Self::BareWithOffset => return Item::Bytes(digest),
            },
        };
        Item::Tuple(std::iter::once(Item::Tag(tag)).chain(parts).collect())
    }
}
