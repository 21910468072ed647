//! A model's tokenizer, ours and the engine's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use kvpick_core::prompts::{ModelFiles, Prompter, Settings};
use serde_json::{Value, json};

/// Ids without and with what the post-processor adds.
pub(crate) type Ids = [Vec<u32>; 2];

/// One tokenizer in the libraries of the product and in that of the engine.
pub(crate) struct Oracles {
    /// Ours, as it chooses its library; and again with the library for everything that the fast one is not for.
    /// The latter does not read all files.
    pub(crate) ours: [Option<Prompter>; 2],
    engine: oracle::Tokenizer,
    file: Value,
    /// Whether a character is refused, by each of ours.
    refused: [BTreeMap<char, bool>; 2],
}

impl Oracles {
    pub(crate) fn new(model: &str) -> Self {
        Self::changed(model, |_| {})
    }

    /// The same of a changed `tokenizer.json`.
    pub(crate) fn changed(model: &str, change: impl FnOnce(&mut Value)) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/tokenizers").join(model);
        let json = fs::read_to_string(folder.join("tokenizer.json")).expect("run `make tools` first");
        let mut file: Value = serde_json::from_str(&json).expect("valid JSON");
        change(&mut file);
        let json = file.to_string();
        let mut general = file.clone();
        // Without effect, since every byte is known; and not for the fast library.
        general["model"]["unk_token"] = json!("!");
        let prompter = |file: &str| {
            let files = ModelFiles { tokenizer_json: file.as_bytes(), ..ModelFiles::default() };
            Prompter::new(files, Settings::default())
        };
        let ours = prompter(&json).expect("the file loads");
        Self {
            ours: [Some(ours), prompter(&general.to_string()).ok()],
            engine: json.parse().expect("the engine's library loads it"),
            file,
            refused: Default::default(),
        }
    }

    /// Texts of the vocabulary, and of the tokens that are cut out of any text.
    pub(crate) fn tokens(&self) -> (Vec<Vec<u8>>, Vec<String>) {
        let is_bytes = self.file["pre_tokenizer"].to_string().contains("ByteLevel");
        let names = byte_names();
        let vocabulary = self.file["model"]["vocab"].as_object().expect("a vocabulary of BPE");
        let bytes = |token: &String| match is_bytes {
            true => token.chars().map(|char| names.get(&char).copied()).collect::<Option<Vec<_>>>(),
            false => Some(token.replace('\u{2581}', " ").into_bytes()),
        };
        let added = self.file["added_tokens"].as_array().expect("added tokens");
        let added = added.iter().filter_map(|token| token["content"].as_str().map(str::to_owned));
        (vocabulary.keys().filter_map(bytes).collect(), added.collect())
    }

    /// Ids by the engine's library. The offsets that it can give are left out.
    pub(crate) fn engine(&self, text: &str) -> Ids {
        let bare = self.engine.encode_fast(text, false).expect("any text has ids");
        let full = self.engine.post_process(bare.clone(), None, true).expect("any ids are completed");
        [bare, full].map(|encoding| encoding.get_ids().to_vec())
    }

    /// The same by the way that vLLM takes.
    pub(crate) fn engine_with_offsets(&self, text: &str) -> Ids {
        [false, true]
            .map(|special| self.engine.encode(text, special).expect("any text has ids").get_ids().to_vec())
    }

    /// Ids by our tokenizer, unless it refuses the text.
    pub(crate) fn ours(&self, which: usize, text: &str) -> Option<Ids> {
        let ours = self.ours[which].as_ref()?;
        let [bare, full] = [false, true].map(|special| ours.encode(text, special));
        Some([bare.ok()?, full.ok()?])
    }

    /// `text` without what our tokenizer refuses.
    pub(crate) fn allowed(&mut self, which: usize, text: &str) -> String {
        let Some(ours) = &self.ours[which] else { return text.to_owned() };
        let refused = &mut self.refused[which];
        let mut is_refused = |char: char| {
            let bytes = &mut [0; 4];
            *refused.entry(char).or_insert_with(|| ours.encode(char.encode_utf8(bytes), false).is_err())
        };
        let text: String = text.chars().filter(|char| char.is_ascii() || !is_refused(*char)).collect();
        let mut text = text.replace("'\u{17f}", "");
        let added = self.file["added_tokens"].as_array().into_iter().flatten();
        let added = added.filter_map(|token| token["content"].as_str());
        let refused: Vec<_> = added.filter(|content| ours.encode(content, false).is_err()).collect();
        // Where one was taken out, its neighbours may make another.
        while let Some(token) = refused.iter().find(|token| text.contains(**token)) {
            text = text.replace(token, "");
        }
        text
    }

    /// A short part of `text` of which the ids differ, and how: for a message that can be read.
    pub(crate) fn difference(&self, which: usize, text: &str) -> String {
        let differ = |text: &str| self.ours(which, text).is_some_and(|ids| ids != self.engine(text));
        let mut chars: Vec<char> = text.chars().collect();
        let mut cut = chars.len() / 2;
        while cut > 0 {
            let mut at = 0;
            while at + cut <= chars.len() {
                let rest: String = chars[..at].iter().chain(&chars[at + cut..]).collect();
                if differ(&rest) {
                    chars.drain(at..at + cut);
                } else {
                    at += cut;
                }
            }
            cut /= 2;
        }
        let text: String = chars.into_iter().collect();
        format!("{text:?}: {:?} and not {:?}", self.ours(which, &text), self.engine(&text))
    }
}

/// What stands for each byte in the vocabularies that work on bytes.
fn byte_names() -> BTreeMap<char, u8> {
    let prints: BTreeSet<u8> = (33..=126).chain(161..=172).chain(174..=255).collect();
    let plain = prints.iter().map(|byte| (char::from(*byte), *byte));
    let others = (0..=u8::MAX).filter(|byte| !prints.contains(byte));
    plain.chain((256..).filter_map(char::from_u32).zip(others)).collect()
}
