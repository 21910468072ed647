//! HTTP/2 connections whose `:authority` is none.
//!
//! Where an Envoy filter names no authority, Envoy says the cluster's name, and Istio's names have bars in them
//! (`outbound|9002||kvpick.inference.svc.cluster.local`), which RFC 3986 does not allow. The HTTP/2 library ends such a request
//! with a protocol error before any of our code sees it, so each request of an Istio gateway to an InferencePool would fail. Here
//! the bars are replaced as bytes come in. Nothing here reads the authority.
//!
//! The header is replaced by one whose value has as many letters: both sides' dynamic tables (RFC 7541, section 4.1, where an
//! entry's size is of its decoded letters) stay in step. What is not understood goes through as it came.

use std::{
    io::Result,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BufMut as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What an HTTP/2 client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length, type, flags and stream of a frame.
const FRAME: usize = 9;

const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Larger header blocks go through as they came: gateways say no more than a few names to a picker.
const LARGEST: usize = 16 << 10;

/// Index of `:authority` in the static table.
const AUTHORITY: usize = 1;

/// A connection on which no request has an authority that is none.
#[derive(Debug)]
pub(super) struct Mended<T> {
    inner: T,
    /// Not looked at yet.
    raw: BytesMut,
    /// To be read first.
    done: BytesMut,
    /// So many bytes of `raw`, and of what comes, go through.
    passes: usize,
    is_begun: bool,
    /// It is no HTTP/2, or has ended: all goes through.
    is_plain: bool,
}

impl<T> Mended<T> {
    pub(super) fn new(inner: T) -> Self {
        let (raw, done) = (BytesMut::new(), BytesMut::new());
        Self { inner, raw, done, passes: 0, is_begun: false, is_plain: false }
    }

    /// Gives what is ready. Returns whether there was any.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        loop {
            if !self.done.is_empty() {
                let n = self.done.len().min(buf.remaining());
                buf.put_slice(&self.done.split_to(n));
                return true;
            }
            let passes = if self.is_plain { self.raw.len() } else { self.passes.min(self.raw.len()) };
            if 0 < passes {
                let n = passes.min(buf.remaining());
                buf.put_slice(&self.raw[..n]);
                self.raw.advance(n);
                self.passes = self.passes.saturating_sub(n);
                return true;
            }
            if !self.look() {
                return false;
            }
        }
    }

    /// Looks at what stands next. Returns whether that was enough to go on.
    fn look(&mut self) -> bool {
        if !self.is_begun {
            let n = self.raw.len().min(PREFACE.len());
            self.is_plain = self.raw[..n] != PREFACE[..n];
            self.is_begun = self.is_plain || n == PREFACE.len();
            self.passes = if self.is_begun { PREFACE.len() } else { 0 };
            return self.is_begun && !self.raw.is_empty();
        }
        let Some(head) = self.raw.first_chunk::<FRAME>() else { return false };
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, flags) = (head[3], head[4]);
        if kind != HEADERS || flags & END_HEADERS == 0 || LARGEST < length {
            self.passes = FRAME + length;
            return true;
        }
        if self.raw.len() < FRAME + length {
            return false;
        }
        match mended(&self.raw[FRAME..FRAME + length], flags) {
            Some(payload) => {
                let n = payload.len();
                self.done.extend_from_slice(&[(n >> 16) as u8, (n >> 8) as u8, n as u8, kind]);
                // The padding is left out.
                self.done.put_u8(flags & !PADDED);
                self.done.extend_from_slice(&self.raw[5..FRAME]);
                self.done.extend_from_slice(&payload);
                self.raw.advance(FRAME + length);
            }
            None => self.passes = FRAME + length,
        }
        true
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Mended<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.give(buf) {
                return Poll::Ready(Ok(()));
            }
            // Of a body that goes through, as much as fits goes straight to where it is wanted.
            if this.raw.is_empty() && (this.is_plain || 0 < this.passes) {
                let most = if this.is_plain { buf.remaining() } else { buf.remaining().min(this.passes) };
                let mut own = ReadBuf::new(buf.initialize_unfilled_to(most));
                ready!(Pin::new(&mut this.inner).poll_read(cx, &mut own))?;
                let n = own.filled().len();
                buf.advance(n);
                this.passes = this.passes.saturating_sub(n);
                return Poll::Ready(Ok(()));
            }
            let mut room = [0; 8 << 10];
            let mut read = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                // Half a frame is not ours to judge.
                if this.raw.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                this.is_plain = true;
            }
            this.raw.extend_from_slice(read.filled());
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Mended<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// The payload of a HEADERS frame without its padding and with an authority that is one; `None` where nothing is to be changed.
fn mended(payload: &[u8], flags: u8) -> Option<Vec<u8>> {
    let (padding, rest) = match flags & PADDED {
        0 => (0, payload),
        _ => payload.split_first().map(|(n, rest)| (usize::from(*n), rest))?,
    };
    let (priority, rest) = rest.split_at_checked(if flags & PRIORITY == 0 { 0 } else { 5 })?;
    let block = rest.get(..rest.len().checked_sub(padding)?)?;
    let (start, end, value) = authority(block)?;
    let mut mended = Vec::with_capacity(payload.len() + value.len());
    mended.extend_from_slice(priority);
    mended.extend_from_slice(&block[..start]);
    put_text(&mut mended, &value);
    mended.extend_from_slice(&block[end..]);
    Some(mended)
}

/// Where in a header block the text of an authority stands that is none, and what is to stand there.
fn authority(block: &[u8]) -> Option<(usize, usize, Vec<u8>)> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        let (prefix, has_text) = match first {
            0x80.. => (7, false),
            0x40..0x80 => (6, true),
            // The size of the dynamic table.
            0x20..0x40 => (5, false),
            0x00..0x20 => (4, true),
        };
        let index = integer(block, &mut at, prefix)?;
        if !has_text {
            continue;
        }
        if index == 0 {
            text(block, &mut at)?;
        }
        let start = at;
        let (is_packed, value) = text(block, &mut at)?;
        if index != AUTHORITY {
            continue;
        }
        let mut value = if is_packed { unpacked(value)? } else { value.to_vec() };
        let is_none = |it: &u8| !(it.is_ascii_alphanumeric() || b"-._~:[]@%!$&'()*+,;=".contains(it));
        if !value.iter().any(is_none) {
            return None;
        }
        value.iter_mut().filter(|it| is_none(it)).for_each(|it| *it = b'-');
        return Some((start, at, value));
    }
    None
}

/// An integer (RFC 7541, section 5.1) whose first byte has so many bits of it.
fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*block.get(*at)?) & most;
    *at += 1;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let byte = *block.get(*at)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// A string (section 5.2), and whether it is in Huffman's code.
fn text<'a>(block: &'a [u8], at: &mut usize) -> Option<(bool, &'a [u8])> {
    let is_packed = block.get(*at)? & 0x80 != 0;
    let length = integer(block, at, 7)?;
    let value = block.get(*at..)?.get(..length)?;
    *at += length;
    Some((is_packed, value))
}

fn put_text(into: &mut Vec<u8>, value: &[u8]) {
    match value.len() {
        n @ ..127 => into.push(n as u8),
        mut n => {
            into.push(127);
            n -= 127;
            while 0x80 <= n {
                into.push(n as u8 | 0x80);
                n >>= 7;
            }
            into.push(n as u8);
        }
    }
    into.extend_from_slice(value);
}

/// The characters that have codes of at most 11 bits (appendix B), by the length of those. The code is canonical: codes of one
/// length rise with their characters, and those of the next begin behind.
const CODES: [(u32, &[u8]); 6] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
];

/// A text in Huffman's code; `None` for one that has another character in it.
fn unpacked(packed: &[u8]) -> Option<Vec<u8>> {
    let bit = |at: usize| packed.get(at / 8).map(|it| u32::from(it >> (7 - at % 8) & 1));
    let (mut text, mut at) = (Vec::new(), 0);
    while at < packed.len() * 8 {
        let (mut code, mut length) = (0, 0);
        // The first code that is not used up by shorter ones.
        let (mut first, mut found) = (0_u32, None);
        for (bits, characters) in CODES {
            first <<= bits - length;
            while length < bits {
                let Some(bit) = bit(at + length as usize) else { break };
                code = code << 1 | bit;
                length += 1;
            }
            if length < bits {
                break;
            }
            let place = code.checked_sub(first)? as usize;
            if let Some(character) = characters.get(place) {
                found = Some(*character);
                break;
            }
            first += u32::try_from(characters.len()).ok()?;
        }
        match found {
            Some(character) => text.push(character),
            // What fills the last byte up: fewer than 8 ones.
            None => {
                let left = packed.len() * 8 - at;
                return (left < 8 && (at..at + left).all(|it| bit(it) == Some(1))).then_some(text);
            }
        }
        at += length as usize;
    }
    Some(text)
}

#[cfg(test)]
mod tests;
