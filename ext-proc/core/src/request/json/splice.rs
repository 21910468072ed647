//! Changes to a body that leave every other byte as it is: the model that the gateway wants in place of the client's, and
//! what no client should be able to ask an engine for.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;

use super::{
    model::{members, skip_space},
    text,
};

/// Bytes of a body that others stand for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Edit {
    /// Where they are.
    pub range: Range<usize>,
    /// What stands there instead.
    pub text: Bytes,
}

/// An object of a body whose members vLLM hands to its sampler as they are.
const EXTRA_ARGUMENTS: &str = "vllm_xargs";

/// The member of it that makes an engine announce blocks that it has had before, which reads as if it had them twice.
const REPORT_MODE: &str = "kv_cache_report_mode";

/// What is to be changed in `body` so that it names `model`, where one is wanted, and asks for no reports. Ranges rise and
/// do not overlap. Every `model` at the top is replaced, as of several the last counts; an object without one gets it.
/// What is no JSON object is left alone; of one that is cut, what is whole is changed.
#[must_use]
pub fn edits(body: &[u8], model: Option<&str>) -> Vec<Edit> {
    if !text::is_wide(body) {
        return edits_of_text(body, model);
    }
    let Ok(decoded) = text::decoded(body) else { return Vec::new() };
    let edits = edits_of_text(decoded.as_bytes(), model);
    if edits.is_empty() {
        return edits;
    }
    // In the encoding that all JSON may have.
    vec![Edit { range: 0..body.len(), text: applied(decoded.as_bytes(), &edits).into() }]
}

/// `body` with those edits.
#[must_use]
pub fn applied(body: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut edited = Vec::with_capacity(body.len() + edits.iter().map(|it| it.text.len()).sum::<usize>());
    let mut from = 0;
    for edit in edits {
        edited.extend_from_slice(&body[from..edit.range.start]);
        edited.extend_from_slice(&edit.text);
        from = edit.range.end;
    }
    edited.extend_from_slice(&body[from..]);
    edited
}

fn edits_of_text(body: &[u8], model: Option<&str>) -> Vec<Edit> {
    if model.is_none() && !may_ask_for_reports(body) {
        return Vec::new();
    }
    let start = if body.starts_with(text::MARK) { text::MARK.len() } else { 0 };
    let model = model.and_then(|it| serde_json::to_string(it).ok()).map(Bytes::from);
    let mut edits = Vec::new();
    let mut has_model = false;
    let end = members(body, start, |name, value| {
        if let Some(model) = model.as_ref().filter(|_| is(&body[name.clone()], "model")) {
            has_model = true;
            edits.push(Edit { range: value, text: model.clone() });
        } else if is(&body[name], EXTRA_ARGUMENTS) {
            edits.extend(removals(body, value.start));
        }
    });
    if let (Some(model), false, Some(end)) = (model, has_model, end) {
        let open = skip_space(body, start) + 1;
        let is_empty = skip_space(body, open) + 1 == end;
        let comma = if is_empty { "" } else { "," };
        let text = [b"\"model\":", &model[..], comma.as_bytes()].concat().into();
        edits.insert(0, Edit { range: open..open, text });
    }
    edits
}

/// Whether it is worth reading: most bodies have neither the name nor escapes, by which a name can be written otherwise.
fn may_ask_for_reports(body: &[u8]) -> bool {
    memchr::memmem::find(body, REPORT_MODE.as_bytes()).is_some()
        || memchr::memmem::find(body, b"\\u").is_some()
}

/// What takes the report mode out of the object that begins at `start`, each time with one of the commas around it.
fn removals(body: &[u8], start: usize) -> Vec<Edit> {
    let mut all = Vec::new();
    let _end = members(body, start, |name, value| {
        let is_removed = is(&body[name.clone()], REPORT_MODE);
        all.push((name.start..value.end, is_removed));
    });
    let Some(first_kept) = all.iter().position(|(_, is_removed)| !is_removed) else {
        let (Some((first, _)), Some((last, _))) = (all.first(), all.last()) else { return Vec::new() };
        return vec![Edit { range: first.start..last.end, text: Bytes::new() }];
    };
    let mut edits = Vec::new();
    if 0 < first_kept {
        edits.push(Edit { range: all[0].0.start..all[first_kept].0.start, text: Bytes::new() });
    }
    for pair in all[first_kept..].windows(2) {
        let ((before, _), (member, is_removed)) = (&pair[0], &pair[1]);
        if *is_removed {
            edits.push(Edit { range: before.end..member.end, text: Bytes::new() });
        }
    }
    edits
}

/// Whether a name, as it stands with its quotes, is that one.
fn is(quoted: &[u8], name: &str) -> bool {
    let plain = quoted.strip_prefix(b"\"").and_then(|it| it.strip_suffix(b"\"")).unwrap_or(quoted);
    if plain.contains(&b'\\') {
        serde_json::from_slice::<Cow<'_, str>>(quoted).is_ok_and(|it| it == name)
    } else {
        plain == name.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Json, Object, parse};
    use super::*;

    fn edited(body: &str, model: Option<&str>) -> String {
        String::from_utf8(applied(body.as_bytes(), &edits(body.as_bytes(), model))).unwrap()
    }

    #[test]
    fn the_model_alone_is_replaced() {
        for (body, want) in [
            (r#"{"model":"a","x":1.50}"#, r#"{"model":"b\"","x":1.50}"#),
            (
                r#" { "x" : {"model":"a"} , "model" : "a" } "#,
                r#" { "x" : {"model":"a"} , "model" : "b\"" } "#,
            ),
            (
                r#"{"model":"a","model":null , "mod\u0065l":[1]}"#,
                r#"{"model":"b\"","model":"b\"" , "mod\u0065l":"b\""}"#,
            ),
            ("{}", r#"{"model":"b\""}"#),
            (" { } ", r#" {"model":"b\"" } "#),
            (r#"{ "x":1}"#, r#"{"model":"b\"", "x":1}"#),
            ("\u{feff}{\"model\":1}", "\u{feff}{\"model\":\"b\\\"\"}"),
            ("[]", "[]"),
            ("", ""),
            ("no", "no"),
            (r#"{"model":"a","x":"#, r#"{"model":"b\"","x":"#),
            (r#"{"x":1,"y":[1,"#, r#"{"x":1,"y":[1,"#),
            (r#"{"model":"a"#, r#"{"model":"a"#),
        ] {
            assert_eq!(edited(body, Some("b\"")), want, "{body}");
            assert_eq!(edited(body, None), body);
        }
    }

    #[test]
    fn reports_are_not_asked_for() {
        for (args, want) in [
            (r#"{"kv_cache_report_mode":"full"}"#, "{}"),
            (r#"{ "kv_cache_report_mode" : "full" , "a":1}"#, r#"{ "a":1}"#),
            (r#"{"a":1, "kv_cache_report_mode":"full" }"#, r#"{"a":1 }"#),
            (
                r#"{"kv_cache_report_mode":1,"a":1,"kv_cache_report_mode":2,"b":2,"kv_cache_report_mode":3}"#,
                r#"{"a":1,"b":2}"#,
            ),
            (r#"{"kv_cache_report_mode":1,"kv_cache_report_mod\u0065":2}"#, "{}"),
            (r#"{"b":{"kv_cache_report_mode":1}}"#, r#"{"b":{"kv_cache_report_mode":1}}"#),
            ("5", "5"),
            ("{}", "{}"),
        ] {
            let body = |args: &str| format!(r#"{{"prompt":"x","vllm_xargs":{args},"n":1}}"#);
            assert_eq!(edited(&body(args), None), body(want), "{args}");
        }
        let other =
            r#"{"kv_cache_report_mode":"full","prompt":"\"vllm_xargs\": {\"kv_cache_report_mode\":1}"}"#;
        assert_eq!(edited(other, None), other, "where vLLM does not look");
    }

    #[test]
    fn other_encodings_are_found_out() {
        let body = r#"{"vllm_xargs":{"kv_cache_report_mode":"full"},"x":"é"}"#;
        let wide: Vec<u8> = body.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let edited = applied(&wide, &edits(&wide, None));
        assert_eq!(str::from_utf8(&edited), Ok(r#"{"vllm_xargs":{},"x":"é"}"#));
        let harmless: Vec<u8> = r#"{"x":1}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(edits(&harmless, None), []);
    }

    /// The text of some JSON, with space and repeated names.
    fn text() -> impl Strategy<Value = String> {
        let space = || proptest::string::string_regex("[ \n\t]{0,2}").unwrap();
        let name = prop_oneof![
            Just("\"model\"".to_owned()),
            Just("\"vllm_xargs\"".to_owned()),
            Just("\"kv_cache_report_mode\"".to_owned()),
            Just("\"kv_cache_report\\u005fmode\"".to_owned()),
            Just("\"a\\\"b\\\\\"".to_owned()),
            Just("\"c,}\"".to_owned()),
        ];
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("-1.50e3".to_owned()),
            Just("\"t,\\\"}]{\"".to_owned()),
            Just("\"\"".to_owned()),
        ];
        let value = leaf.prop_recursive(3, 24, 5, move |inner| {
            let member = (name.clone(), space(), inner.clone(), space());
            let member = member.prop_map(|(name, a, value, b)| format!("{a}{name}{b}:{a}{value}{b}"));
            let object =
                proptest::collection::vec(member, 0..5).prop_map(|it| format!("{{{}}}", it.join(",")));
            let array = proptest::collection::vec(inner, 0..3).prop_map(|it| format!("[{}]", it.join(" , ")));
            prop_oneof![3 => object, 1 => array]
        });
        (space(), value, space()).prop_map(|(a, value, b)| format!("{a}{value}{b}"))
    }

    fn edited_after_parsing(mut object: Object, model: Option<&str>) -> Object {
        if let Some(Json::Object(args)) = object.get_mut(EXTRA_ARGUMENTS) {
            args.shift_remove(REPORT_MODE);
        }
        if let Some(model) = model {
            object.insert("model".to_owned(), Json::String(model.to_owned()));
        }
        object
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn to_splice_and_parse_is_to_parse_and_edit(body in text(), model in proptest::option::of("[a\"\\\\é\n]{0,3}")) {
            let spliced = parse(edited(&body, model.as_deref()).as_bytes());
            let want = parse(body.as_bytes()).unwrap();
            let Json::Object(want) = want else {
                prop_assert_eq!(spliced, Ok(want));
                return Ok(());
            };
            let want = edited_after_parsing(want, model.as_deref());
            let Ok(Json::Object(spliced)) = spliced else { panic!("{body}: {spliced:?}") };
            // A map's equality knows no order; a model that was not there comes first.
            prop_assert_eq!(spliced, want);
        }

        #[test]
        fn any_bytes_are_safe(body in proptest::collection::vec(any::<u8>(), 0..40), cut in text(), end in 0..200_usize) {
            for bytes in [&body[..], &cut.as_bytes()[..end.min(cut.len())]] {
                let edits = edits(bytes, Some("m"));
                prop_assert!(edits.windows(2).all(|it| it[0].range.end <= it[1].range.start));
                let _edited = applied(bytes, &edits);
            }
        }
    }
}
