//! Compressed bodies, decompressed to be looked at. What goes on to an engine is as the client sent it.

use std::io::{self, Read};

use brotli_decompressor::Decompressor;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use kvpick_core::{outcome::Reason, session::Encoding};
use ruzstd::decoding::StreamingDecoder;

/// Times its own size that a body may grow to. JSON of prompts grows 3 to 20 times; what grows more is made to.
const MOST_GROWTH: usize = 200;

/// A body may grow to this however small it is.
const ALWAYS: usize = 1 << 20;

/// Memory of a decoder beside what it puts out, in bytes: how far back zstd may refer.
const MOST_WINDOW: u64 = 8 << 20;

/// The plain body, at most `most` bytes of it, or 200 times its size. Of one that ends early, which the
/// client or Envoy has cut, what there is, where `is_cut` says so.
///
/// # Errors
/// Why it can't be had: too large, broken, or an encoding that is not known here.
pub fn decompressed(encoding: Encoding, body: &[u8], most: usize, is_cut: bool) -> Result<Vec<u8>, Reason> {
    let most = most.min(body.len().saturating_mul(MOST_GROWTH).max(ALWAYS));
    let mut plain = Vec::new();
    // One byte more, to see that there is more.
    let mut read = |decoder: &mut dyn Read| decoder.take(most as u64 + 1).read_to_end(&mut plain).map(|_| ());
    let result = match encoding {
        Encoding::Identity => read(&mut &*body),
        Encoding::Gzip => read(&mut MultiGzDecoder::new(body)),
        Encoding::Deflate if is_zlib(body) => read(&mut ZlibDecoder::new(body)),
        Encoding::Deflate => read(&mut DeflateDecoder::new(body)),
        Encoding::Brotli => read(&mut Decompressor::new(body, 4 << 10)),
        Encoding::Zstd => zstd(body, read),
        Encoding::Other => return Err(Reason::ENCODING_UNKNOWN),
    };
    if most < plain.len() {
        if is_cut {
            plain.truncate(most);
            return Ok(plain);
        }
        return Err(Reason::BODY_TOO_LARGE);
    }
    match result {
        Err(_) if !is_cut => Err(Reason::ENCODING_BROKEN),
        Ok(()) | Err(_) => Ok(plain),
    }
}

/// RFC 1950's two bytes: deflate with a window, and a check of both.
fn is_zlib(body: &[u8]) -> bool {
    matches!(body, [a, b, ..] if a & 0x0f == 8 && u16::from_be_bytes([*a, *b]) % 31 == 0)
}

/// One frame after the other, as the format has it.
fn zstd(mut body: &[u8], read: impl FnOnce(&mut dyn Read) -> io::Result<()>) -> io::Result<()> {
    read(&mut Frames { current: None, body: &mut body })
}

struct Frames<'a, 'b> {
    current: Option<StreamingDecoder<&'a [u8], ruzstd::decoding::FrameDecoder>>,
    body: &'b mut &'a [u8],
}

impl Read for Frames<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.current {
                let n = frame.read(buffer)?;
                if 0 < n || buffer.is_empty() {
                    return Ok(n);
                }
                *self.body = frame.get_ref();
                self.current = None;
            }
            if self.body.is_empty() {
                return Ok(0);
            }
            let frame = StreamingDecoder::new_with_max_window_size(*self.body, MOST_WINDOW);
            self.current = Some(frame.map_err(io::Error::other)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write};

    use super::*;

    const MOST: usize = 64 << 20;

    /// `{"model": "qwen3"}`, then 40 spaces, by the tools `zstd` and node's `zlib.brotliCompressSync`.
    const ZSTD: &[u8] = &[
        40, 181, 47, 253, 4, 104, 205, 0, 0, 152, 123, 34, 109, 111, 100, 101, 108, 34, 58, 32, 34, 113, 119,
        101, 110, 51, 34, 125, 32, 1, 0, 149, 32, 12, 189, 226, 177, 58,
    ];
    const BROTLI: &[u8] = &[
        27, 57, 0, 248, 29, 7, 185, 57, 242, 6, 186, 242, 11, 55, 169, 22, 153, 41, 219, 155, 58, 113, 125,
        9, 226, 118, 87, 147, 24, 85, 8, 12, 225, 54, 160, 87, 6,
    ];

    fn text() -> Vec<u8> {
        [&br#"{"model": "qwen3"}"#[..], &[b' '; 40]].concat()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut writer = write::GzEncoder::new(Vec::new(), Compression::best());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut writer = write::DeflateEncoder::new(Vec::new(), Compression::best());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut writer = write::ZlibEncoder::new(Vec::new(), Compression::best());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn all() -> [(Encoding, Vec<u8>); 5] {
        [
            (Encoding::Gzip, gzip(&text())),
            (Encoding::Deflate, zlib(&text())),
            (Encoding::Deflate, deflate(&text())),
            (Encoding::Brotli, BROTLI.to_vec()),
            (Encoding::Zstd, ZSTD.to_vec()),
        ]
    }

    #[test]
    fn every_encoding_is_read() {
        for (encoding, bytes) in all() {
            assert_eq!(decompressed(encoding, &bytes, MOST, false), Ok(text()), "{encoding:?}");
        }
        assert_eq!(decompressed(Encoding::Other, b"x", MOST, false), Err(Reason::ENCODING_UNKNOWN));
        for (encoding, bytes) in [(Encoding::Gzip, gzip(&text())), (Encoding::Zstd, ZSTD.to_vec())] {
            let twice = [&bytes[..], &bytes].concat();
            assert_eq!(
                decompressed(encoding, &twice, MOST, false),
                Ok([text(), text()].concat()),
                "{encoding:?}"
            );
        }
    }

    #[test]
    fn what_is_broken_or_cut_is_told_apart() {
        for (encoding, bytes) in all() {
            for end in 1..bytes.len() {
                let cut = decompressed(encoding, &bytes[..end], MOST, true).unwrap();
                assert!(text().starts_with(&cut), "{encoding:?} {end}");
            }
            let short = decompressed(encoding, &bytes[..bytes.len() / 2], MOST, false);
            assert_eq!(short, Err(Reason::ENCODING_BROKEN), "{encoding:?}");
            let other = decompressed(encoding, b"{\"model\": \"qwen3\"}", MOST, false);
            assert_eq!(other, Err(Reason::ENCODING_BROKEN), "{encoding:?}");
        }
    }

    #[test]
    fn bombs_do_not_go_off() {
        let bomb = gzip(&vec![b' '; 32 << 20]);
        assert!(bomb.len() < 64 << 10);
        assert_eq!(
            decompressed(Encoding::Gzip, &bomb, MOST, false),
            Err(Reason::BODY_TOO_LARGE),
            "by its growth"
        );
        let large = gzip(&text().repeat(100));
        assert_eq!(decompressed(Encoding::Gzip, &large, 1_000, false), Err(Reason::BODY_TOO_LARGE));
        assert_eq!(decompressed(Encoding::Gzip, &large, 1_000, true).unwrap().len(), 1_000);
        assert!(decompressed(Encoding::Gzip, &large, MOST, false).is_ok(), "small ones may grow");
        // A frame that wants a window of a gigabyte.
        let greedy = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 20 << 3, 1, 0, 0];
        assert_eq!(decompressed(Encoding::Zstd, &greedy, MOST, false), Err(Reason::ENCODING_BROKEN));
    }
}
