use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const NAME: &str = "outbound|9002||kvpick.inference.svc.cluster.local";
const MENDED: &str = "outbound-9002--kvpick.inference.svc.cluster.local";

/// A text in Huffman's code, for characters of [`CODES`].
fn packed(text: &str) -> Vec<u8> {
    let mut bits = String::new();
    for character in text.bytes() {
        let (mut first, mut length) = (0_u32, 0);
        for (n, characters) in CODES {
            first <<= n - length;
            length = n;
            if let Some(place) = characters.iter().position(|it| *it == character) {
                bits.push_str(&format!("{:0n$b}", first + place as u32, n = n as usize));
                break;
            }
            first += characters.len() as u32;
        }
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    bits.as_bytes()
        .chunks(8)
        .map(|it| u8::from_str_radix(std::str::from_utf8(it).unwrap(), 2).unwrap())
        .collect()
}

fn with_text(mut block: Vec<u8>, text: &str, is_packed: bool) -> Vec<u8> {
    let from = block.len();
    if is_packed {
        put_text(&mut block, &packed(text));
        block[from] |= 0x80;
    } else {
        put_text(&mut block, text.as_bytes());
    }
    block
}

/// A header block with that authority among others.
fn block(name: &str, is_packed: bool) -> Vec<u8> {
    // The table's size, `:method: POST`, then a path with a literal name, then the authority, to be indexed.
    let path = with_text(with_text(vec![0x3f, 0xe1, 0x1f, 0x83, 0x00], ":path", false), "/a|b", false);
    let mut block = with_text([path, vec![0x41]].concat(), name, is_packed);
    block.extend([0x86, 0xbe]);
    block
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let n = payload.len();
    [&[(n >> 16) as u8, (n >> 8) as u8, n as u8, kind, flags, 0, 0, 0, 1], payload].concat()
}

/// What is read of those bytes, which come in pieces of so many.
async fn read(bytes: &[u8], piece: usize) -> Vec<u8> {
    let (mut far, near) = tokio::io::duplex(64);
    let bytes = bytes.to_vec();
    let write = tokio::spawn(async move {
        for piece in bytes.chunks(piece) {
            far.write_all(piece).await.unwrap();
        }
    });
    let mut read = Vec::new();
    Mended::new(near).read_to_end(&mut read).await.unwrap();
    write.await.unwrap();
    read
}

#[test]
fn the_code_is_that_of_the_standard() {
    // RFC 7541, appendix C.4.1.
    let example = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
    assert_eq!(unpacked(&example).as_deref(), Some(&b"www.example.com"[..]));
    assert_eq!(packed("www.example.com"), example);
    assert_eq!(packed("|"), [0xff, 0x9f], "11111111100 and ones");
    for text in [NAME, "", "a", "UPPER:case!?"] {
        assert_eq!(unpacked(&packed(text)).as_deref(), Some(text.as_bytes()), "{text}");
    }
    assert_eq!(unpacked(&[0xff, 0xff]), None, "more ones than fill a byte");
    assert_eq!(unpacked(&[0x18]), None, "an end that is not ones");
}

#[tokio::test]
async fn an_authority_that_is_none_is_replaced_by_one_as_long() {
    let data = frame(0, 1, &[b'|'; 3_000]);
    let settings = frame(4, 0, &[]);
    for is_packed in [true, false] {
        let headers = frame(HEADERS, END_HEADERS, &block(NAME, is_packed));
        let sent = [PREFACE, &settings, &headers, &data, &headers, &settings].concat();
        let mended = frame(HEADERS, END_HEADERS, &block(MENDED, false));
        let want = [PREFACE, &settings, &mended, &data, &mended, &settings].concat();
        for piece in [1, 2, 7, 64, 10_000] {
            assert_eq!(read(&sent, piece).await, want, "packed: {is_packed}, in pieces of {piece}");
        }
    }
}

#[tokio::test]
async fn padding_goes_and_priority_stays() {
    let payload = [&[3, 0, 0, 0, 0, 16][..], &block(NAME, true), &[0, 0, 0]].concat();
    let sent = [PREFACE, &frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &payload)].concat();
    let mended = [&[0, 0, 0, 0, 16][..], &block(MENDED, false)].concat();
    assert_eq!(read(&sent, 11).await, [PREFACE, &frame(HEADERS, END_HEADERS | PRIORITY, &mended)].concat());
}

#[tokio::test]
async fn all_else_goes_through_as_it_came() {
    let good = frame(HEADERS, END_HEADERS, &block("kvpick.inference.svc:9002", true));
    let split = frame(HEADERS, 0, &block(NAME, true));
    let cut = frame(HEADERS, END_HEADERS, &block(NAME, true)[..20]);
    let nonsense = frame(HEADERS, END_HEADERS | PADDED, &[200, 1, 2]);
    let large = frame(HEADERS, END_HEADERS, &[0x83; LARGEST + 1]);
    let unknown = frame(200, 255, &[7; 100]);
    let half = frame(0, 0, &[1; 50])[..30].to_vec();
    let sent = [PREFACE, &good, &split, &cut, &nonsense, &large, &unknown, &half].concat();
    for piece in [1, 5, 4_096] {
        assert_eq!(read(&sent, piece).await, sent);
    }
    for other in [&b"GET / HTTP/1.1\r\nhost: a|b\r\n\r\n"[..], b"PRI", b"", b"PRI * HTTP/1"] {
        assert_eq!(read(other, 1).await, other);
    }
}
