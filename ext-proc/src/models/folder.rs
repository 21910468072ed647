//! A model's folder: which files are read of it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use kvpick_core::prompts::{LoadError, ModelFiles};

/// Files that say how sentences are cut for embeddings, in the order in which vLLM looks for them.
const SENTENCES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The others, all of which may be missing but the first.
const FILES: [&str; 8] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
];

/// Files that a tokenizer is made of; its names in the config are its own as well.
const TOKENIZER: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];

/// Where further templates are.
const TEMPLATES: &str = "additional_chat_templates";

/// What was read of a folder.
pub(super) struct Folder {
    files: BTreeMap<&'static str, Vec<u8>>,
    templates: Vec<(String, String)>,
    names: Vec<String>,
    /// The template in it, or another one in its place.
    template: Option<String>,
    has_other_template: bool,
}

impl Folder {
    /// Reads it. `template` is a file that the engine was given in place of the folder's own templates.
    ///
    /// # Errors
    /// A file that can't be read, with its name, or no tokenizer.
    pub(super) fn read(path: &Path, template: Option<&Path>) -> anyhow::Result<Self> {
        let names = names(path)?;
        let mut files = BTreeMap::new();
        for name in FILES.into_iter().chain(SENTENCES).filter(|name| names.iter().any(|it| it == name)) {
            files.insert(name, read(&path.join(name))?);
        }
        if !files.contains_key("tokenizer.json") {
            return Err(LoadError::without_tokenizer_json(&names))
                .with_context(|| path.display().to_string());
        }
        let mut templates = Vec::new();
        let more = path.join(TEMPLATES);
        let listed = if more.is_dir() { self::names(&more)? } else { Vec::new() };
        for (file, name) in listed.iter().filter_map(|file| Some((file, file.strip_suffix(".jinja")?))) {
            templates.push((name.to_owned(), text(read(&more.join(file))?, file)?));
        }
        let has_other_template = template.is_some();
        let template = match template {
            Some(file) => Some(read(file)?),
            None => files.remove("chat_template.jinja"),
        };
        let template = template.map(|it| text(it, "the chat template")).transpose()?;
        Ok(Self { files, templates, names, template, has_other_template })
    }

    /// All that was read, with names that keep it apart.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let files = self.files.iter().map(|(name, bytes)| (*name, bytes.as_slice()));
        let templates = self.templates.iter().map(|(name, text)| (name.as_str(), text.as_bytes()));
        let template = self.template.iter().map(|text| ("template", text.as_bytes()));
        // Which files there are tells what the model is.
        let names = self.names.iter().map(|name| (name.as_str(), [].as_slice()));
        files.chain(templates).chain(template).chain(names)
    }

    /// What the tokenizer is made of.
    pub(super) fn tokenizer_parts(&self) -> impl Iterator<Item = (&str, &[u8])> {
        TOKENIZER.into_iter().filter_map(|name| Some((name, self.files.get(name)?.as_slice())))
    }

    /// The files, as the core takes them.
    pub(super) fn files(&self) -> ModelFiles<'_> {
        let file = |name| self.files.get(name).map(Vec::as_slice);
        let own = |name| file(name).filter(|_| !self.has_other_template);
        ModelFiles {
            tokenizer_json: file("tokenizer.json").unwrap_or_default(),
            tokenizer_config_json: file("tokenizer_config.json"),
            config_json: file("config.json"),
            chat_template: self.template.as_deref(),
            additional_chat_templates: if self.has_other_template { &[] } else { &self.templates },
            chat_template_json: own("chat_template.json"),
            processor_config_json: own("processor_config.json"),
            special_tokens_map_json: file("special_tokens_map.json"),
            added_tokens_json: file("added_tokens.json"),
            sentence_config_json: SENTENCES.into_iter().find_map(file),
            names: &self.names,
        }
    }
}

/// The files that [`Folder::read`] would read, and the folders that it lists, whether they are there or not.
pub(super) fn paths(path: &Path, template: Option<&Path>) -> Vec<PathBuf> {
    let more = path.join(TEMPLATES);
    let listed = names(&more).unwrap_or_default();
    let templates: Vec<_> = listed.iter().map(|name| more.join(name)).collect();
    let files = FILES.into_iter().chain(SENTENCES).map(|name| path.join(name));
    let own = [path.to_owned(), more];
    files.chain(own).chain(templates).chain(template.map(Path::to_owned)).collect()
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("can't read {}; check the model's path", file.display()))
}

fn text(bytes: Vec<u8>, what: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes).with_context(|| format!("{what} is not UTF-8"))
}

/// Names of the files in a folder, sorted.
fn names(path: &Path) -> anyhow::Result<Vec<String>> {
    let list = std::fs::read_dir(path)
        .with_context(|| format!("can't read {}; check the model's path", path.display()))?;
    let names = list.filter_map(Result::ok).filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().expect("it is in the folder")).expect("a folder");
            std::fs::write(file, text).expect("a file");
        }
        folder
    }

    #[test]
    fn what_is_there_is_read() {
        let all = [
            ("tokenizer.json", "t"),
            ("chat_template.jinja", "j"),
            ("chat_template.json", "c"),
            ("special_tokens_map.json", "s"),
            ("sentence_xlnet_config.json", "x"),
            ("additional_chat_templates/tool_use.jinja", "u"),
            ("additional_chat_templates/README", ""),
            ("given.jinja", "g"),
        ];
        let folder = folder(&all);
        let own = Folder::read(folder.path(), None).expect("a folder");
        let files = own.files();
        assert_eq!((files.tokenizer_json, files.chat_template), (b"t".as_slice(), Some("j")));
        assert_eq!(files.additional_chat_templates, [("tool_use".to_owned(), "u".to_owned())]);
        assert_eq!(files.chat_template_json, Some(b"c".as_slice()));
        assert_eq!(files.special_tokens_map_json, Some(b"s".as_slice()));
        assert_eq!(files.sentence_config_json, Some(b"x".as_slice()));
        assert_eq!(files.config_json, None);
        assert!(files.names.iter().any(|it| it == "given.jinja"));
        // What the engine is given is all that it knows.
        let given = Folder::read(folder.path(), Some(&folder.path().join("given.jinja"))).expect("a folder");
        let files = given.files();
        assert_eq!((files.chat_template, files.chat_template_json), (Some("g"), None));
        assert!(files.additional_chat_templates.is_empty());
    }

    #[test]
    fn a_folder_without_a_tokenizer_says_what_it_has() {
        let error = |files: &[(&str, &str)]| {
            let folder = folder(files);
            let error = Folder::read(folder.path(), None).err().expect("no tokenizer");
            error.downcast_ref::<LoadError>().expect("why").to_string()
        };
        assert!(error(&[("vocab.json", ""), ("merges.txt", "")]).contains("merges.txt"));
        assert!(error(&[("tekken.json", "")]).contains("mistral"));
        assert!(error(&[("config.json", "")]).contains("copy it"));
    }
}
