//! What a request says before its body, as far as it matters here: by its headers, and by the gateway's metadata.

use crate::{among::Among, reply};

/// Longest value of a header that is taken, in bytes. They are names; a longer one is none.
const MOST_VALUE: usize = 1_024;

/// Most headers beyond the known ones that are removed.
const MOST_STRIPPED: usize = 16;

/// The beginning of a request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Head {
    /// Without its query string.
    pub path: String,
    /// The client's session, where a header names it.
    pub session: Option<String>,
    /// How the body is compressed.
    pub encoding: Encoding,
    /// The body's length in bytes, where it is told.
    pub content_length: Option<u64>,
    /// Which replicas the gateway lets be picked.
    pub subset: Among,
    /// Which ones a conformance test wants; in force only where its behaviours are switched on.
    pub selection: Option<Among>,
    /// Name of what the request is for, which has a priority.
    pub objective: Option<String>,
    /// Name of whose share of the fleet it takes.
    pub fairness_id: Option<String>,
    /// The model that the gateway wants in place of the body's.
    pub model_rewrite: Option<String>,
    /// Names of headers that are to be removed, beyond those that always are: [`reply::REMOVED_PREFIX`].
    pub stripped: Vec<String>,
}

/// How a body is compressed (`content-encoding`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "the codings' own names")]
pub enum Encoding {
    #[default]
    Identity,
    Gzip,
    /// zlib's format, or deflate without it, as some clients send it.
    Deflate,
    Brotli,
    Zstd,
    /// Another one, or several one after the other.
    Other,
}

impl Head {
    /// Reads headers, whose names are in small letters, and the gateway's subset hint; `session_header` names a client's
    /// session. Tolerant: what can't be read is not there. Of control headers that come more than once the last counts,
    /// as gateways append.
    #[must_use]
    pub fn read<'a>(
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
        session_header: Option<&str>,
        hint: Option<&[String]>,
    ) -> Self {
        let mut head = Self::default();
        let [mut objective, mut fairness_id, mut rewrite] = [const { Named::NONE }; 3];
        let mut encodings = Vec::new();
        let mut has_path = false;
        for (name, value) in headers {
            match name {
                ":path" if !has_path => {
                    let path = String::from_utf8_lossy(value);
                    path.split('?').next().unwrap_or_default().clone_into(&mut head.path);
                    has_path = true;
                }
                "content-encoding" => encodings.push(text(value).unwrap_or("?")),
                "content-length" => head.content_length = text(value).and_then(|it| it.parse().ok()),
                "x-llm-d-inference-objective" => objective.llm_d = text(value),
                "x-gateway-inference-objective" => objective.gateway = text(value),
                "x-llm-d-inference-fairness-id" => fairness_id.llm_d = text(value),
                "x-gateway-inference-fairness-id" => fairness_id.gateway = text(value),
                "x-llm-d-model-name-rewrite" => rewrite.llm_d = text(value),
                "x-gateway-model-name-rewrite" => rewrite.gateway = text(value),
                "test-epp-endpoint-selection" => {
                    head.selection = Some(Among::selected(&String::from_utf8_lossy(value)));
                }
                _ if name.starts_with(reply::REMOVED_PREFIX) && head.stripped.len() < MOST_STRIPPED => {
                    head.stripped.push(name.to_owned());
                }
                _ => (),
            }
            if session_header == Some(name) && head.session.is_none() {
                head.session = text(value).map(str::to_owned);
            }
        }
        head.encoding = Encoding::of(&encodings);
        head.objective = objective.first();
        head.fairness_id = fairness_id.first();
        head.model_rewrite = rewrite.first();
        if let Some(hint) = hint {
            head.subset = Among::hinted(hint.iter().map(String::as_str));
        }
        head
    }
}

/// A header of two names: that of newer gateways goes first.
struct Named<'a> {
    llm_d: Option<&'a str>,
    gateway: Option<&'a str>,
}

impl Named<'_> {
    const NONE: Self = Self { llm_d: None, gateway: None };

    fn first(&self) -> Option<String> {
        self.llm_d.or(self.gateway).map(str::to_owned)
    }
}

/// A value that says something.
fn text(value: &[u8]) -> Option<&str> {
    let text = str::from_utf8(value).ok()?.trim();
    (!text.is_empty() && text.len() <= MOST_VALUE).then_some(text)
}

impl Encoding {
    fn of(values: &[&str]) -> Self {
        let codings = values.iter().flat_map(|it| it.split(',')).map(|it| it.trim().to_ascii_lowercase());
        let mut codings = codings.filter(|it| !it.is_empty() && it != "identity");
        let (first, second) = (codings.next(), codings.next());
        match (first.as_deref(), second) {
            (None, _) => Self::Identity,
            (Some("gzip" | "x-gzip"), None) => Self::Gzip,
            (Some("deflate"), None) => Self::Deflate,
            (Some("br"), None) => Self::Brotli,
            (Some("zstd"), None) => Self::Zstd,
            (Some(_), _) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Head {
        Head::read(headers.iter().map(|(name, value)| (*name, value.as_bytes())), Some("x-session-id"), None)
    }

    #[test]
    fn a_head_is_read() {
        let head = read(&[
            (":path", "/v1/completions?x=/a"),
            ("content-length", "12"),
            ("x-session-id", "s"),
            ("x-gateway-inference-objective", "old"),
            ("x-llm-d-inference-objective", "new"),
            ("x-gateway-inference-fairness-id", "tenant"),
            ("x-gateway-model-name-rewrite", "a client's"),
            ("x-gateway-model-name-rewrite", " the gateway's "),
            ("x-kvpick-anything", "1"),
        ]);
        let want = Head {
            path: "/v1/completions".to_owned(),
            session: Some("s".to_owned()),
            content_length: Some(12),
            objective: Some("new".to_owned()),
            fairness_id: Some("tenant".to_owned()),
            model_rewrite: Some("the gateway's".to_owned()),
            stripped: vec!["x-kvpick-anything".to_owned()],
            ..Head::default()
        };
        assert_eq!(head, want);
    }

    #[test]
    fn what_says_nothing_is_not_there() {
        let long = "x".repeat(MOST_VALUE + 1);
        let head = read(&[
            ("x-llm-d-model-name-rewrite", ""),
            ("x-llm-d-inference-objective", &long),
            ("x-session-id", " "),
            ("content-length", "-1"),
        ]);
        assert_eq!(head, Head::default());
        let bytes: [(&str, &[u8]); 2] = [(":path", b"/\xff"), ("x-llm-d-inference-objective", b"\xff")];
        let head = Head::read(bytes.into_iter(), None, None);
        assert_eq!((head.path.as_str(), head.objective), ("/\u{fffd}", None));
        let many: Vec<_> = (0..100).map(|i| format!("x-kvpick-{i}")).collect();
        let head = Head::read(many.iter().map(|it| (it.as_str(), &b""[..])), None, None);
        assert_eq!(head.stripped.len(), MOST_STRIPPED);
    }

    #[test]
    fn encodings_are_told_apart() {
        for (values, want) in [
            (&[][..], Encoding::Identity),
            (&["identity"], Encoding::Identity),
            (&["GZip"], Encoding::Gzip),
            (&["x-gzip"], Encoding::Gzip),
            (&["deflate"], Encoding::Deflate),
            (&["identity, br"], Encoding::Brotli),
            (&["zstd"], Encoding::Zstd),
            (&["gzip, br"], Encoding::Other),
            (&["gzip", "gzip"], Encoding::Other),
            (&["snappy"], Encoding::Other),
        ] {
            assert_eq!(Encoding::of(values), want, "{values:?}");
        }
    }

    #[test]
    fn a_hint_is_there_or_not() {
        let of = |hint: Option<&[String]>| Head::read(std::iter::empty(), None, hint).subset;
        assert_eq!(of(None), Among::All);
        assert_eq!(of(Some(&[])), Among::hinted([]));
        assert!(of(Some(&["10.0.0.1:1,10.0.0.1:2".to_owned()])).has(([10, 0, 0, 1], 2).into()));
        assert!(read(&[("test-epp-endpoint-selection", "10.0.0.1")]).selection.unwrap().is_in_turn());
    }
}
