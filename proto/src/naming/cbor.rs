//! `cbor2.dumps(value, canonical=True)` for what a block hash is made of (RFC 8949, core deterministic encoding).

use std::convert::Infallible;

use cbor4ii::core::{
    enc::{Encode, Write},
    types,
};

use super::extra::Item;

/// A growing buffer, which can't fail.
struct Sink<'a>(&'a mut Vec<u8>);

impl Write for Sink<'_> {
    type Error = Infallible;

    fn push(&mut self, input: &[u8]) -> Result<(), Infallible> {
        self.0.extend_from_slice(input);
        Ok(())
    }
}

/// Appends the text string whose hash is a root.
pub(super) fn root(out: &mut Vec<u8>, text: &str) {
    let Ok(()) = put(&mut Sink(out), &Item::Str(text));
}

/// Appends the triple of one block.
pub(super) fn block(out: &mut Vec<u8>, parent: &[u8], tokens: &[u32], extra: &[Item<'_>]) {
    let Ok(()) = triple(&mut Sink(out), parent, tokens, extra);
}

type Done = Result<(), Infallible>;

/// `Infallible` is the only error of a [`Sink`]; cbor4ii wraps it.
fn sure(result: Result<(), cbor4ii::core::error::EncodeError<Infallible>>) -> Done {
    // The other variants concern sizes that do not fit 64 bits.
    debug_assert!(result.is_ok());
    Ok(())
}

fn triple(sink: &mut Sink<'_>, parent: &[u8], tokens: &[u32], extra: &[Item<'_>]) -> Done {
    sure(types::Array::bounded(3, sink))?;
    sure(types::Bytes(parent).encode(sink))?;
    sure(types::Array::bounded(tokens.len(), sink))?;
    for token in tokens {
        sure(token.encode(sink))?;
    }
    if extra.is_empty() { sure(types::Null.encode(sink)) } else { tuple(sink, extra) }
}

fn tuple(sink: &mut Sink<'_>, items: &[Item<'_>]) -> Done {
    sure(types::Array::bounded(items.len(), sink))?;
    items.iter().try_for_each(|item| put(sink, item))
}

fn put(sink: &mut Sink<'_>, item: &Item<'_>) -> Done {
    match item {
        Item::Tag(text) => sure(text.encode(sink)),
        Item::Str(text) => sure(text.encode(sink)),
        Item::Bytes(bytes) => sure(types::Bytes(*bytes).encode(sink)),
        Item::Int(value) => sure(value.encode(sink)),
        Item::Tuple(items) => tuple(sink, items),
    }
}
