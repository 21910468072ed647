//! Stores that announce the blocks of the goldens.

#![allow(dead_code, clippy::disallowed_methods, reason = "each test uses a part of it, and it reads files")]

use kvpick_agent_core::decode::{ExtraItem, Stored};
use kvpick_proto::{
    naming::{Algorithm, BlockKey},
    words::Adapter,
};
use serde_json::Value;

/// One case of the goldens as the store that announces its blocks, with its algorithm, root and adapter.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) algorithm: Algorithm,
    pub(crate) root: String,
    pub(crate) adapter: Option<Adapter>,
    pub(crate) stored: Stored,
}

fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let all = value.as_array().unwrap().iter();
    all.map(|it| it.as_u64().and_then(|it| it.try_into().ok()).unwrap()).collect()
}

fn extra(item: &Value) -> ExtraItem {
    match item {
        Value::String(text) => ExtraItem::Text(text.clone()),
        Value::Array(pair) => ExtraItem::Media {
            identifier: pair[0].as_str().unwrap().to_owned(),
            offset: pair[1].as_i64().unwrap(),
        },
        other => {
            let hex = other["bytes_hex"].as_str().unwrap();
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            ExtraItem::Bytes((0..hex.len()).step_by(2).map(byte).collect())
        }
    }
}

pub(crate) fn json() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/hashes/golden_hashes.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub(crate) fn cases() -> Vec<Case> {
    let json = json();
    let cases = json["cases"].as_array().unwrap().iter();
    let all = cases.map(|it| {
        let text = |field: &str| it[field].as_str().unwrap().to_owned();
        let keys: Vec<_> = it["block_hashes_u64"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| BlockKey::from_u64(it.as_str().unwrap().parse().unwrap()))
            .collect();
        let block_size = it["block_size"].as_u64().unwrap().try_into().unwrap();
        let mut tokens: Vec<u32> = numbers(&it["token_ids"]);
        tokens.truncate(keys.len() * block_size as usize);
        let adapter = it["lora"].as_object().map(|it| Adapter {
            name: it["name"].as_str().unwrap().to_owned(),
            path: it["path"].as_str().unwrap().to_owned(),
        });
        let extra_keys = it["event_extra_keys"].as_array().map_or_else(Vec::new, |blocks| {
            let blocks = (0_u32..).zip(blocks).filter_map(|(at, items)| Some((at, items.as_array()?)));
            blocks.map(|(at, items)| (at, items.iter().map(extra).collect())).collect()
        });
        let stored = Stored {
            keys,
            tokens,
            block_size,
            lora_name: adapter.as_ref().map(|it| it.name.clone()),
            extra_keys,
            ..Stored::default()
        };
        Case {
            name: text("name"),
            algorithm: Algorithm::from_name(&text("algo")).unwrap(),
            root: text("effective_seed"),
            adapter,
            stored,
        }
    });
    all.filter(|it| !it.stored.keys.is_empty()).collect()
}

pub(crate) fn case(name: &str) -> Case {
    cases().into_iter().find(|it| it.name == name).unwrap_or_else(|| panic!("no golden {name}"))
}

/// Shapes of older versions: name, a version that hashes so, and the store as that version would announce it.
pub(crate) fn legacy() -> Vec<(String, &'static str, Stored)> {
    let json = json();
    let all = json["legacy_cases"].as_array().unwrap().iter().map(|it| {
        let name = it["name"].as_str().unwrap().to_owned();
        let version = match name.split_once('/').unwrap().1 {
            "lora-name" | "mm-id-offset" => "0.30.0",
            "mm-id-only" => "0.18.1",
            _ => "0.10.2",
        };
        let blocks = (0_u32..).zip(it["hash_extra_keys"].as_array().into_iter().flatten());
        let items = |items: &Value| items.as_array().unwrap().iter().map(extra).collect::<Vec<_>>();
        let textual = |it: &Value| it[0].is_string() || it[0].is_array();
        let extra_keys: Vec<_> =
            blocks.filter(|(_, it)| textual(it)).map(|(at, it)| (at, items(it))).collect();
        let keys = it["block_hashes_u64"].as_array().unwrap().iter();
        let stored = Stored {
            keys: keys.map(|it| BlockKey::from_u64(it.as_str().unwrap().parse().unwrap())).collect(),
            tokens: numbers(&it["token_ids"]),
            block_size: it["block_size"].as_u64().unwrap().try_into().unwrap(),
            lora_name: name.ends_with("lora-name").then(|| "sql-adapter".to_owned()),
            lora_id: name.contains("lora-").then_some(1),
            extra_keys,
            ..Stored::default()
        };
        (name, version, stored)
    });
    all.collect()
}

/// The store cut into stores of so many blocks, each of which goes on where the one before ended.
pub(crate) fn split(stored: &Stored, blocks: usize) -> Vec<Stored> {
    let size = stored.block_size as usize;
    let part = |at: usize| {
        let to = (at + blocks).min(stored.keys.len());
        let (first, last) = (at as u32, to as u32);
        let inside = stored.extra_keys.iter().filter(|(it, _)| (first..last).contains(it));
        Stored {
            keys: stored.keys[at..to].to_vec(),
            parent: at.checked_sub(1).map_or(stored.parent, |it| Some(stored.keys[it])),
            tokens: stored.tokens[at * size..to * size].to_vec(),
            extra_keys: inside.map(|(it, items)| (it - first, items.clone())).collect(),
            ..stored.clone()
        }
    };
    (0..stored.keys.len()).step_by(blocks).map(part).collect()
}
