//! Classes of tokenizers that transformers 5 puts together by itself: of a `tokenizer.json` it takes the vocabulary, the
//! merges and the added tokens alone, and cuts text as the class does. Where the file says otherwise, its ids are not
//! the engine's.

use serde_json::{Value, json};

use super::build::text_of;
use crate::request::json::Object;

/// Types of models for which the file counts as it is, whatever class is named.
const AS_FILE: [&str; 91] = [
    "arctic",
    "aria",
    "bigbird_pegasus",
    "camembertv2-base",
    "canary",
    "chameleon",
    "chatlm",
    "cohere_asr",
    "deepseek_ocr",
    "deepseek_ocr2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "deepseek_vl_v2",
    "ernie4_5",
    "ernie4_5_moe",
    "flex_olmo",
    "fuyu",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v",
    "glm4v_moe",
    "glm_image",
    "glmasr",
    "got_ocr2",
    "gpt_bigcode",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "h2ovl_chat",
    "hyperclovax",
    "hyperclovax_vlm",
    "internlm2",
    "jamba",
    "janus",
    "kimi_k25",
    "kimi_linear",
    "kosmos-2",
    "llava",
    "llava_next",
    "mimo_v2_flash",
    "minicpm3",
    "minicpmv",
    "minicpmv4_6",
    "minicpmv4_7",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral",
    "mistral3",
    "mixtral",
    "modernbert",
    "modernbert-decoder",
    "molmo",
    "molmo2",
    "nemotron",
    "nvfp4",
    "nystromformer",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "opencua",
    "openvla",
    "paddleocr_vl",
    "pegasus_x",
    "persimmon",
    "phi3",
    "phi3_v",
    "phimoe",
    "pix2struct",
    "pixtral",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen4_exp",
    "smolvlm",
    "stablelm",
    "step3_vl",
    "step3p5",
    "step3p7",
    "umt5",
    "unlimited-ocr",
    "unlimited_ocr",
    "vipllava",
    "xlm-roberta-xl",
];

/// The classes that are known here.
const CLASSES: [&str; 4] = ["GPT2Tokenizer", "GemmaTokenizer", "LlamaTokenizer", "Qwen2Tokenizer"];

/// Types of models for which a class counts even where another one is named.
const BY_TYPE_ALONE: [(&str, &str); 2] =
    [("hyperclovax_vision_v2", "GPT2Tokenizer"), ("qwen2", "Qwen2Tokenizer")];

/// How a Qwen2Tokenizer splits text.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The class by which the engine would cut text in another way than `file`, a `tokenizer.json`, says. `named` is the class
/// in a `config.json`, `config` the `tokenizer_config.json`.
pub(super) fn other_than_file(
    model_type: &str,
    named: Option<&str>,
    config: &Object,
    file: &Value,
) -> Option<&'static str> {
    if model_type.is_empty() || AS_FILE.contains(&model_type) {
        return None;
    }
    let named = text_of(config, "tokenizer_class").or(named)?;
    let named = named.strip_suffix("Fast").unwrap_or(named);
    let by_type = BY_TYPE_ALONE.iter().find(|(it, _)| *it == model_type);
    let class = by_type.map_or(named, |(_, class)| *class);
    let class = CLASSES.into_iter().find(|it| *it == class)?;
    if is_as_class(class, config, file) { None } else { Some(class) }
}

/// Whether `file` cuts text as the class does.
fn is_as_class(class: &str, config: &Object, file: &Value) -> bool {
    let (normalizer, pre, model) = (&file["normalizer"], &file["pre_tokenizer"], &file["model"]);
    if !matches!(model["type"].as_str(), Some("BPE") | None) || model["ignore_merges"] == true {
        return false;
    }
    let flag = |name: &str| config.get(name).map(crate::request::json::Json::is_true);
    let adds_space = flag("add_prefix_space");
    let falls_back = model["byte_fallback"] == true;
    let is_byte_level = |it: &Value, has_regex: bool| {
        it["type"] == "ByteLevel"
            && it["add_prefix_space"] == adds_space.unwrap_or(false)
            && (it["use_regex"] != false) == has_regex
    };
    match class {
        "GPT2Tokenizer" => normalizer.is_null() && is_byte_level(pre, true) && !falls_back,
        "Qwen2Tokenizer" => {
            let split = json!({
                "type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false,
            });
            let parts = pre["pretokenizers"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_split =
                matches!(parts, [first, second] if *first == split && is_byte_level(second, false));
            *normalizer == json!({"type": "NFC"}) && is_split && !falls_back
        }
        "GemmaTokenizer" => {
            let no_spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
            // Without spaces there is nothing to split at.
            *normalizer == no_spaces
                && (pre.is_null() || pre["pattern"] == json!({"String": " "}))
                && falls_back
        }
        "LlamaTokenizer" => {
            let scheme = match (adds_space.unwrap_or(true), flag("legacy").unwrap_or(false)) {
                (false, _) => "never",
                (true, true) => "always",
                (true, false) => "first",
            };
            let is_split = pre["type"] == "Metaspace"
                && pre["replacement"] == "\u{2581}"
                && pre["prepend_scheme"] == scheme
                && pre["split"] == false;
            normalizer.is_null() && is_split && falls_back
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::json::{self, Json};

    fn other(model_type: &str, config: &Value, file: &Value) -> Option<&'static str> {
        let Ok(Json::Object(config)) = json::parse(config.to_string().as_bytes()) else {
            panic!("an object")
        };
        other_than_file(model_type, None, &config, file)
    }

    #[test]
    fn the_class_is_found_as_transformers_does() {
        let file = json!({"normalizer": null, "pre_tokenizer": null, "model": {"type": "BPE"}});
        let class =
            |model_type: &str, class: Value| other(model_type, &json!({"tokenizer_class": class}), &file);
        for (model_type, named, want) in [
            ("qwen3", json!("Qwen2TokenizerFast"), Some("Qwen2Tokenizer")),
            ("qwen3", json!(null), None),
            ("qwen3", json!("PreTrainedTokenizerFast"), None),
            ("qwen2", json!("LlamaTokenizerFast"), Some("Qwen2Tokenizer")),
            ("deepseek_v3", json!("LlamaTokenizerFast"), None),
            ("llama", json!("LlamaTokenizerFast"), Some("LlamaTokenizer")),
            ("llama", json!("PreTrainedTokenizerFast"), None),
            ("llama", json!("TokenizersBackend"), None),
            ("llama", json!(null), None),
            ("starcoder2", json!("GPT2Tokenizer"), Some("GPT2Tokenizer")),
            ("", json!("GPT2Tokenizer"), None),
        ] {
            assert_eq!(class(model_type, named.clone()), want, "{model_type} {named}");
        }
        assert!(AS_FILE.is_sorted());
    }

    #[test]
    fn a_file_that_cuts_as_its_class_does_is_taken() {
        let bytes = |regex| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        let split =
            json!({"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false});
        let qwen = json!({"normalizer": {"type": "NFC"}, "model": {"type": "BPE"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes(false)]}});
        assert_eq!(other("qwen3", &json!({"tokenizer_class": "Qwen2Tokenizer"}), &qwen), None);
        assert_eq!(
            other("qwen2", &json!({"tokenizer_class": "X", "add_prefix_space": true}), &qwen),
            Some("Qwen2Tokenizer")
        );
        let plain = json!({"normalizer": null, "model": {"type": "BPE"}, "pre_tokenizer": bytes(true)});
        assert_eq!(other("gpt2", &json!({"tokenizer_class": "GPT2TokenizerFast"}), &plain), None);
        assert_eq!(
            other("qwen3", &json!({"tokenizer_class": "Qwen2Tokenizer"}), &plain),
            Some("Qwen2Tokenizer")
        );
        let digits = json!({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, bytes(true)]});
        let digits = json!({"normalizer": null, "model": {"type": "BPE"}, "pre_tokenizer": digits});
        assert_eq!(
            other("starcoder2", &json!({"tokenizer_class": "GPT2Tokenizer"}), &digits),
            Some("GPT2Tokenizer")
        );
        let space = |scheme: &str| {
            json!({"normalizer": null, "model": {"type": "BPE", "byte_fallback": true},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": false}})
        };
        let llama = |more: Value, scheme: &str| {
            let mut config = more;
            config["tokenizer_class"] = "LlamaTokenizer".into();
            other("llama", &config, &space(scheme))
        };
        assert_eq!(llama(json!({}), "first"), None);
        assert_eq!(llama(json!({"legacy": true}), "always"), None);
        assert_eq!(llama(json!({"legacy": false}), "always"), Some("LlamaTokenizer"));
        assert_eq!(llama(json!({"add_prefix_space": false}), "never"), None);
        let gemma = json!({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            "model": {"type": "BPE", "byte_fallback": true}, "pre_tokenizer": null});
        assert_eq!(other("gemma2", &json!({"tokenizer_class": "GemmaTokenizer"}), &gemma), None);
    }
}
