//! What a model's `config.json` says of the way in which vLLM makes its prompts.

use super::{LoadError, build::text_of};
use crate::request::json::{self, Json, Object};

/// A model's kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Family {
    model_type: String,
    architectures: Vec<String>,
    has_encoder: bool,
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

impl Family {
    /// Of a `config.json`.
    pub(super) fn new(config: Option<&[u8]>) -> Result<Self, LoadError> {
        let config = match config.map(json::parse) {
            None => return Ok(Self::default()),
            Some(Ok(Json::Object(config))) => config,
            Some(Ok(other)) => {
                return Err(LoadError::ModelConfig(format!("is {}, want an object", other.kind())));
            }
            Some(Err(error)) => return Err(LoadError::ModelConfig(error.to_string())),
        };
        Ok(Self::of(&config))
    }

    fn of(config: &Object) -> Self {
        let architectures = config.get("architectures").and_then(Json::as_array).unwrap_or_default();
        Self {
            model_type: text_of(config, "model_type").unwrap_or_default().to_owned(),
            architectures: architectures.iter().filter_map(Json::as_str).map(str::to_owned).collect(),
            has_encoder: config.get("is_encoder_decoder").is_some_and(Json::is_true),
        }
    }

    /// Whether the text before a medium is no beginning of the prompt.
    pub(super) fn moves_media(&self) -> bool {
        self.has_encoder || MOVING_MEDIA.contains(&self.model_type.as_str())
    }
}
