//! The model that a body names, found without reading the rest: replicas of another model could not answer it, so it is
//! wanted even where the body is cut, too large to look at, or waits for its turn.

use std::ops::Range;

/// The value of the first `model` at the top of a JSON object; `None` where it does not come, or is no string. `bytes` may
/// end anywhere, and what follows the value is not looked at.
#[must_use]
pub fn model_of(bytes: &[u8]) -> Option<String> {
    let mut at = skip_space(bytes, 0);
    if bytes.get(at) != Some(&b'{') {
        return None;
    }
    at += 1;
    loop {
        at = skip_space(bytes, at);
        if bytes.get(at) == Some(&b',') {
            at += 1;
            continue;
        }
        let key_end = string_end(bytes, at)?;
        let is_model = &bytes[at..key_end] == b"\"model\"";
        at = skip_space(bytes, key_end);
        if bytes.get(at) != Some(&b':') {
            return None;
        }
        at = skip_space(bytes, at + 1);
        if is_model {
            let end = string_end(bytes, at)?;
            return serde_json::from_slice(&bytes[at..end]).ok();
        }
        at = value_end(bytes, at)?;
    }
}

/// Calls `each` with every member at the top of a JSON object: the name as it stands there, quotes included, and the
/// bytes of the value. `bytes` may end anywhere; a member that is cut is not one.
pub fn for_each_member<'a>(bytes: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) {
    let _end = members(bytes, 0, |name, value| each(&bytes[name], &bytes[value]));
}

/// The same for the object that begins at `start`, by their places. Returns what is behind the object, where it ends.
pub(super) fn members(
    bytes: &[u8],
    start: usize,
    mut each: impl FnMut(Range<usize>, Range<usize>),
) -> Option<usize> {
    let mut at = skip_space(bytes, start);
    if bytes.get(at) != Some(&b'{') {
        return None;
    }
    let inside = skip_space(bytes, at + 1);
    if bytes.get(inside) == Some(&b'}') {
        return Some(inside + 1);
    }
    loop {
        at = skip_space(bytes, at + 1);
        let name = at..string_end(bytes, at)?;
        at = skip_space(bytes, name.end);
        if bytes.get(at) != Some(&b':') {
            return None;
        }
        at = skip_space(bytes, at + 1);
        let end = value_end(bytes, at)?;
        each(name, at..at + bytes[at..end].trim_ascii_end().len());
        at = end;
        match bytes.get(at) {
            Some(b',') => (),
            Some(b'}') => return Some(at + 1),
            _ => return None,
        }
    }
}

/// The first text of that name anywhere in JSON, or in what has JSON in it; `None` where none is whole yet. For beginnings
/// of answers, where what stands first is what is meant.
#[must_use]
pub fn first_text(bytes: &[u8], name: &str) -> Option<String> {
    let name = format!("\"{name}\"");
    let found = bytes.windows(name.len()).position(|it| it == name.as_bytes())?;
    let colon = skip_space(bytes, found + name.len());
    if bytes.get(colon) != Some(&b':') {
        return None;
    }
    let at = skip_space(bytes, colon + 1);
    let end = string_end(bytes, at)?;
    serde_json::from_slice(&bytes[at..end]).ok()
}

pub(super) fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// Behind the closing quote of the string that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Behind the value that begins at `at`, whatever it is.
fn value_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' if depth == 0 => return None,
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            b',' if depth == 0 => return Some(at),
            _ => at += 1,
        }
        if depth == 0 && matches!(bytes.get(at)?, b',' | b'}') {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_wherever_it_stands() {
        for body in [
            r#"{"model": "qwen3", "messages": "#,
            r#" { "a" : [1, {"model": "no"}, "]}"] , "b":"\"\\", "c": -1.5e3, "model":"qwen3"} trailing"#,
            r#"{"a": {"b": {}}, "d": [], "e": null, "model": "qwen\u0033", "model": "later"}"#,
            r#"{"messages":[{"role":"user","content":"the \"model\": \"x\""}],"model":"qwen3""#,
        ] {
            assert_eq!(model_of(body.as_bytes()).as_deref(), Some("qwen3"), "{body}");
        }
    }

    #[test]
    fn what_names_none_gives_none() {
        for body in [
            "",
            "[]",
            "{",
            "{}",
            "nonsense",
            r#"{"model"#,
            r#"{"model": "qw"#,
            r#"{"model": 5}"#,
            r#"{"model" "x"}"#,
            r#"{"a": ]"model": "x"}"#,
            r#"["model", "x"]"#,
            r#"{"a": "\"#,
            r#"{"a": [[[[""#,
            "{,,,",
            r#"{"a":"b""#,
        ] {
            assert_eq!(model_of(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn members_are_those_of_the_top() {
        let body = br#" {"a" : [1, {"b": 2}] , "c":"x,y" ,"d":null, "e": {"f": "}"}, "g": tr"#;
        let mut found = Vec::new();
        for_each_member(body, |name, value| found.push((str::from_utf8(name), str::from_utf8(value))));
        let found: Vec<_> = found.into_iter().map(|(name, value)| (name.unwrap(), value.unwrap())).collect();
        let want = [
            (r#""a""#, r#"[1, {"b": 2}]"#),
            (r#""c""#, r#""x,y""#),
            (r#""d""#, "null"),
            (r#""e""#, r#"{"f": "}"}"#),
        ];
        assert_eq!(found, want);
        for end in 0..=body.len() {
            for_each_member(&body[..end], |_, _| ());
        }
        for body in ["", "[]", "{", "{}", "{,}", "{\"a\"}", "{\"a\":}"] {
            for_each_member(body.as_bytes(), |_, _| panic!("{body}"));
        }
    }

    #[test]
    fn the_first_text_of_a_name_is_found_when_it_is_whole() {
        let whole = r#"{"id":"resp_1","x":{"id":"no"}}"#;
        let event = "event: response.created\ndata: {\"response\": {\"id\" : \"resp_1\", \"object\": 1}}\n\n";
        for text in [whole, event] {
            assert_eq!(first_text(text.as_bytes(), "id").as_deref(), Some("resp_1"));
            for end in 0..text.len() {
                let found = first_text(&text.as_bytes()[..end], "id");
                assert!(found.is_none() || found.as_deref() == Some("resp_1"), "{end}: {found:?}");
            }
        }
        for text in ["", "id", r#"{"id":5}"#, r#""id""#, r#"{"a":"\"id\": \"x\""}"#] {
            assert_eq!(first_text(text.as_bytes(), "id"), None, "{text}");
        }
    }

    #[test]
    fn any_cut_of_a_body_is_safe() {
        let body = r#"{"a": [1, {"k": "v\""}, "]}"], "b": {"x": []}, "model": "qwen3", "z": 1}"#.as_bytes();
        for end in 0..=body.len() {
            let found = model_of(&body[..end]);
            assert!(found.is_none() || found.as_deref() == Some("qwen3"));
        }
    }
}
