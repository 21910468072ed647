//! What a model's `config.json` says of the way in which vLLM makes its prompts.

use super::{LoadError, build::text_of, classes};
use crate::request::json::{self, Json, Object};

/// A model's kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Family {
    model_type: String,
    architectures: Vec<String>,
    has_encoder: bool,
    /// The class of its tokenizer, where it is named here.
    tokenizer_class: Option<String>,
    /// Whether the folder is in the layout of Mistral's own.
    is_mistral: bool,
}

/// Types of models for which vLLM puts media elsewhere than where they stand, or makes the text before them anew.
const MOVING_MEDIA: [&str; 12] = [
    "blip-2",
    "clip",
    "colmodernvbert",
    "colpali",
    "molmo",
    "molmo2",
    "openvla",
    "paligemma",
    "phi3_v",
    "siglip",
    "siglip2",
    "whisper",
];

/// Who makes a model's prompts in the engine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Mode {
    /// The tokenizer's template and `tokenizer.json`.
    Files,
    /// Code of the engine's writes chats; `tokenizer.json` does the rest.
    OwnChats(String),
    /// Code of the engine's does all of it.
    OwnTokenizer(String),
}

impl Mode {
    fn of(name: &str) -> Self {
        match name {
            "hf" => Self::Files,
            "cohere" | "deepseek_v32" | "deepseek_v4" | "deepseek_v41" | "inkling" | "kimi_k3" => {
                Self::OwnChats(name.to_owned())
            }
            // Those that are not known may do anything.
            other => Self::OwnTokenizer(other.to_owned()),
        }
    }
}

impl Family {
    /// Of a `config.json` in a folder with files of those names.
    pub(super) fn new(config: Option<&[u8]>, names: &[String]) -> Result<Self, LoadError> {
        let config = match config.map(json::parse) {
            None => Object::new(),
            Some(Ok(Json::Object(config))) => config,
            Some(Ok(other)) => {
                return Err(LoadError::ModelConfig(format!("is {}, want an object", other.kind())));
            }
            Some(Err(error)) => return Err(LoadError::ModelConfig(error.to_string())),
        };
        let architectures = config.get("architectures").and_then(Json::as_array).unwrap_or_default();
        let has = |start: &str, end: &str| names.iter().any(|it| it.starts_with(start) && it.ends_with(end));
        let has_weights = has("consolidated", ".safetensors");
        Ok(Self {
            model_type: text_of(&config, "model_type").unwrap_or_default().to_owned(),
            architectures: architectures.iter().filter_map(Json::as_str).map(str::to_owned).collect(),
            has_encoder: config.get("is_encoder_decoder").is_some_and(Json::is_true),
            tokenizer_class: text_of(&config, "tokenizer_class").map(str::to_owned),
            is_mistral: has_weights && (has("tekken.json", "tekken.json") || has("tokenizer.model.v", "")),
        })
    }

    /// Who makes the prompts under that `--tokenizer-mode`; without one vLLM goes by the model's architecture.
    pub(super) fn mode(&self, setting: Option<&str>) -> Mode {
        let setting = setting.map(str::to_lowercase).filter(|it| it != "auto");
        if let Some(name) = setting {
            return Mode::of(&name);
        }
        let by_architecture = self.architectures.iter().find_map(|it| match it.as_str() {
            "MoonshotKimiaForCausalLM" => Some("kimi_audio"),
            "KimiK3ForConditionalGeneration" => Some("kimi_k3"),
            "DeepseekV32ForCausalLM" => Some("deepseek_v32"),
            "DeepseekV4ForCausalLM" | "DeepseekV4ForConditionalGeneration" => Some("deepseek_v4"),
            "DeepseekV41ForCausalLM" => Some("deepseek_v41"),
            "InklingForCausalLM" | "InklingForConditionalGeneration" => Some("inkling"),
            _ => None,
        });
        Mode::of(by_architecture.unwrap_or(if self.is_mistral { "mistral" } else { "hf" }))
    }

    /// Fails where the engine's tokenizer is another one than `tokenizer.json`, by that and `tokenizer_config.json`.
    pub(super) fn check(&self, config: &Object, tokenizer: &[u8]) -> Result<(), LoadError> {
        if let Some(class) = self.python_class(config) {
            return Err(LoadError::PythonTokenizer { class });
        }
        // What is no tokenizer at all is told of elsewhere.
        let Ok(file) = serde_json::from_slice::<serde_json::Value>(tokenizer) else { return Ok(()) };
        if !file["model"].is_object() {
            return Ok(());
        }
        match classes::other_than_file(&self.model_type, self.tokenizer_class.as_deref(), config, &file) {
            Some(class) => Err(LoadError::OtherClass { class }),
            None => Ok(()),
        }
    }

    /// The Python class that the engine may run in place of `tokenizer.json`, by `tokenizer_config.json`.
    fn python_class(&self, config: &Object) -> Option<String> {
        if FILES_ALONE.contains(&self.model_type.as_str()) {
            return None;
        }
        let of_list = |list: &[Json]| list.iter().rev().find_map(Json::as_str).map(str::to_owned);
        let mapped = match config.get("auto_map") {
            Some(Json::Array(list)) => of_list(list),
            Some(Json::Object(map)) => match map.get("AutoTokenizer") {
                Some(Json::Array(list)) => of_list(list),
                Some(Json::String(class)) => Some(class.clone()),
                _ => None,
            },
            _ => None,
        };
        let class = || text_of(config, "tokenizer_class").filter(|it| PYTHON_CLASSES.contains(it));
        mapped.or_else(|| class().map(str::to_owned))
    }

    /// Whether the text before a medium is no beginning of the prompt.
    pub(super) fn moves_media(&self) -> bool {
        self.has_encoder || MOVING_MEDIA.contains(&self.model_type.as_str())
    }
}

/// Types of models whose tokenizer's class vLLM knows to be wrong: it takes `tokenizer.json` whatever is said.
const FILES_ALONE: [&str; 5] = ["internlm2", "step3_vl", "step3p7", "unlimited-ocr", "unlimited_ocr"];

/// Tokenizers that transformers 5 has in Python alone.
const PYTHON_CLASSES: [&str; 21] = [
    "BartphoTokenizer",
    "BertJapaneseTokenizer",
    "BertweetTokenizer",
    "BioGptTokenizer",
    "ByT5Tokenizer",
    "CTRLTokenizer",
    "CanineTokenizer",
    "CpmAntTokenizer",
    "CpmTokenizer",
    "EsmTokenizer",
    "GPTNeoXJapaneseTokenizer",
    "GPTSw3Tokenizer",
    "M2M100Tokenizer",
    "MarianTokenizer",
    "MyT5Tokenizer",
    "PLBartTokenizer",
    "PhobertTokenizer",
    "ProphetNetTokenizer",
    "RoCBertTokenizer",
    "SiglipTokenizer",
    "XLMTokenizer",
];
