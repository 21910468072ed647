//! Blocks with media in them, against those of vLLM.
#![expect(clippy::disallowed_methods, reason = "a test reads its goldens")]

use std::num::NonZeroU32;

use kvpick_core::{
    pick::{Naming, chain},
    prompts::{Medium, Prompt},
};
use kvpick_proto::naming::{Algorithm, Domain, ExtraKeyShape};
use serde_json::Value;

#[test]
fn blocks_with_media_are_named_as_vllm_names_them() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/hashes/golden_hashes.json");
    let goldens: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases: Vec<_> =
        goldens["cases"].as_array().unwrap().iter().filter(|it| it["mm"].is_array()).collect();
    assert!(3 <= cases.len(), "{} cases", cases.len());
    for case in cases {
        let text = |it: &Value| it.as_str().unwrap().to_owned();
        let number = |it: &Value| usize::try_from(it.as_u64().unwrap()).unwrap();
        let medium = |it: &Value| Medium {
            identifier: text(&it["identifier"]),
            offset: number(&it["offset"]),
            length: number(&it["length"]),
        };
        let prompt = Prompt {
            ids: serde_json::from_value(case["token_ids"].clone()).unwrap(),
            media: case["mm"].as_array().unwrap().iter().map(medium).collect(),
            is_cut: false,
        };
        let domain = Domain {
            algorithm: Algorithm::from_name(case["algo"].as_str().unwrap()).unwrap(),
            root: text(&case["effective_seed"]),
            block_size: NonZeroU32::new(u32::try_from(number(&case["block_size"])).unwrap()).unwrap(),
            extra_keys: ExtraKeyShape::Tagged,
        };
        let lora = &case["lora"];
        let adapter = lora.is_object().then(|| (text(&lora["name"]), text(&lora["path"])));
        let chains = chain(vec![Naming { domain, adapter }], &[prompt], case["cache_salt"].as_str());
        let keys: Vec<String> =
            chains.values().next().unwrap()[0].iter().map(|it| it.as_u64().to_string()).collect();
        let want: Vec<String> = serde_json::from_value(case["block_hashes_u64"].clone()).unwrap();
        assert_eq!(keys, want, "{}", case["name"]);
    }
}
