//! Block hashes equal those of vLLM's own hasher, to the byte.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::num::NonZeroU32;

use kvpick_proto::naming::{Algorithm, BlockKey, Digest, Domain, ExtraKey, ExtraKeyShape, Hasher};
use serde_json::Value;

fn goldens() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/hashes/golden_hashes.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

/// The tagged keys of one block, as the golden file lists them.
fn extra_keys(keys: &Value) -> Vec<ExtraKey> {
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let one = |key: &Value| match key[0].as_str().unwrap() {
        "lora" => ExtraKey::Adapter { name: text(&key[1]), path: text(&key[2]) },
        "mm" => ExtraKey::Media { identifier: text(&key[1]), offset: key[2].as_i64().unwrap() },
        "cache_salt" => ExtraKey::Salt(text(&key[1])),
        "prompt_embeds" => ExtraKey::Embeds(hex(key[1]["bytes_hex"].as_str().unwrap())),
        other => panic!("unknown kind of key {other}"),
    };
    keys.as_array().map_or_else(Vec::new, |keys| keys.iter().map(one).collect())
}

#[test]
fn every_golden_hash_is_reproduced() {
    let goldens = goldens();
    let (mut n_cases, mut n_blocks) = (0, 0);
    for case in goldens["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let algorithm = Algorithm::from_name(case["algo"].as_str().unwrap()).unwrap();
        let block_size = NonZeroU32::new(case["block_size"].as_u64().unwrap() as u32).unwrap();
        let tokens: Vec<u32> =
            case["token_ids"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as u32).collect();
        let extra = |i: usize| extra_keys(&case["hash_extra_keys"][i]);
        let root = case["effective_seed"].as_str().unwrap();
        let domain =
            Domain { algorithm, root: root.to_owned(), block_size, extra_keys: ExtraKeyShape::Tagged };
        let mut hasher = Hasher::new(&domain);
        assert_eq!(format!("{:?}", hasher.root()), case["none_hash"].as_str().unwrap(), "{name}: root");

        let mut parent = hasher.root();
        let mut digests = Vec::new();
        for (i, block) in tokens.chunks_exact(block_size.get() as usize).enumerate() {
            parent = hasher.next(&parent, block, &extra(i));
            digests.push(format!("{parent:?}"));
        }
        assert_eq!(digests, strings(&case["block_hashes"]), "{name}: digests");

        let keys = hasher.chain(block_size, &tokens, extra);
        let decimal: Vec<_> = keys.iter().map(|it| it.as_u64().to_string()).collect();
        assert_eq!(decimal, strings(&case["block_hashes_u64"]), "{name}: keys");
        n_cases += 1;
        n_blocks += keys.len();
    }
    assert_eq!((n_cases, n_blocks), (86, 3_368), "the file lost cases");
}

#[test]
fn int_and_bytes_forms_give_one_key() {
    for case in goldens()["cases"].as_array().unwrap() {
        for (hash, int) in strings(&case["block_hashes"]).iter().zip(strings(&case["block_hashes_u64"])) {
            let digest = Digest::from_bytes(&hex(hash)).unwrap();
            assert_eq!(digest.key(), BlockKey::from_u64(int.parse().unwrap()));
            assert_eq!(Some(digest.key()), BlockKey::from_digest(&hex(hash)));
        }
    }
}

#[test]
fn short_digests_have_no_key() {
    assert_eq!(BlockKey::from_digest(&[1; 7]), None);
    assert_eq!(Digest::from_bytes(&[1; 20]), None);
}
