//! What a reload did, in words for whoever asked.

use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;
use serde_json::Value;

use crate::{
    config::{Config, ModelConfig},
    models::Model,
};

/// What a reload did. Names are those of models.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Why nothing was done; all the rest is empty then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Listed for the first time.
    pub added: Vec<String>,
    /// Loaded anew, or under other names.
    pub changed: Vec<String>,
    /// Read, and found to be the same.
    pub unchanged: Vec<String>,
    /// Not listed any more.
    pub removed: Vec<String>,
    /// Could not be loaded.
    pub failed: Vec<Failed>,
    /// Fields of the configuration, beside `models`, that differ from those in force: they need a restart.
    pub needs_restart: Vec<String>,
}

/// A model that could not be loaded.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// Its name.
    pub model: String,
    /// Why.
    pub error: String,
    /// Whether what was loaded earlier is still in force.
    pub keeps_earlier: bool,
}

impl Report {
    pub(super) fn refused(error: String) -> Self {
        Self { error: Some(error), ..Self::default() }
    }

    /// `ok`; `failed` where a model could not be loaded; `refused` where nothing was done.
    #[must_use]
    pub const fn result(&self) -> &'static str {
        match (&self.error, self.failed.is_empty()) {
            (Some(_), _) => "refused",
            (None, false) => "failed",
            (None, true) => "ok",
        }
    }
}

impl Report {
    /// Adds a model that was read again. One that can't be loaded gets what was in force of it.
    pub(super) fn add(&mut self, model: &mut Model, earlier: Option<&Model>) {
        let name = model.config.name.clone();
        let fingerprint = |it: &Model| it.loaded.as_ref().map(|it| it.fingerprint);
        if let Some(error) = model.error.clone() {
            // What did load is there already.
            if model.config.source.is_local() && model.loaded.is_none() {
                model.loaded = earlier.and_then(|it| it.loaded.clone());
            }
            if model.config.source.is_remote() && model.remote.is_none() {
                model.remote = earlier.and_then(|it| it.remote.clone());
            }
            let keeps_earlier =
                model.is_ready() && earlier.is_some_and(|it| fingerprint(it) == fingerprint(model));
            self.failed.push(Failed { model: name, error, keeps_earlier });
            return;
        }
        let remote = |it: &Model| it.remote.as_ref().map(Arc::as_ptr);
        let list = match earlier {
            None => &mut self.added,
            Some(it)
                if fingerprint(it) == fingerprint(model)
                    && remote(it) == remote(model)
                    && it.names().eq(model.names()) =>
            {
                &mut self.unchanged
            }
            Some(_) => &mut self.changed,
        };
        list.push(name);
    }

    pub(super) fn sort(&mut self, order: &[ModelConfig]) {
        let place = |name: &String| order.iter().position(|it| it.name == *name);
        for list in [&mut self.added, &mut self.changed, &mut self.unchanged] {
            list.sort_by_key(place);
        }
        self.failed.sort_by_key(|it| place(&it.model));
    }
}

/// The fields, beside `models`, in which two configurations differ, as `score.per_request`; of a list its name.
pub(super) fn differences(before: &Config, after: &Config) -> Vec<String> {
    let value = |it: &Config| serde_json::to_value(it).unwrap_or_default();
    let mut found = Vec::new();
    differing("", &value(before), &value(after), &mut found);
    found.retain(|it| it != "models");
    found
}

fn differing(path: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
            for name in names {
                let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let field = |it: &serde_json::Map<String, Value>| it.get(name).cloned().unwrap_or_default();
                differing(&at, &field(before), &field(after), found);
            }
        }
        _ if before == after => (),
        _ => found.push(path.to_owned()),
    }
}
